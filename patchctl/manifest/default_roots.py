"""The distributions that a run takes where none is named or around: what `patchctl use` chose, else the wheel's own.

    <data>/default                           the commit of the one that `use` chose
    <data>/distributions/<commit>/use.json   where it came from
    <data>/distributions/<commit>/files/     its files at that commit

<data> is $XDG_DATA_HOME/patchctl, else ~/.local/share/patchctl: a cache may be cleaned. Nothing writes into either kind.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import patchctl
from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.language import message
from patchctl.manifest.typeinfo import BadRecord, parse
from patchctl.manifest.types import ObjectId

MARKER = Path("manifests") / "upstreams.yaml"
SCHEMA = ("schema", 1)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OWN = Path(patchctl.__file__).resolve().parent / "_distribution"


@dataclass(frozen=True)
class Used:
    """A distribution that `patchctl use` fetched."""

    address: Annotated[str, Doc("address of its repository, without credentials")]
    revision: Annotated[str | None, Doc("tag, branch or commit that was named, or null for the remote's HEAD")]
    commit: Annotated[ObjectId, Doc("commit that it resolved to")]
    tree: Annotated[ObjectId, Doc("git's id of its files")]


def root_around(here: Path) -> Path | None:
    """Return the nearest folder from `here` upward that is a distribution; None where there is none."""
    return next((folder for folder in (here, *here.parents) if (folder / MARKER).is_file()), None)


def edit_folder() -> Path:
    """Where work trees lie: in edit/ of the distribution around, since in one of its folders they would count as its files."""
    here = Path.cwd()
    return Path(os.path.relpath((root_around(here) or here) / "edit"))


def own_root() -> Path | None:
    """Return the wheel's own distribution; None in a clone, an editable install and on a cluster's node."""
    return _OWN if (_OWN / MARKER).is_file() else None


def data_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the user's folder of fetched distributions; None for a user without a home."""
    return user_folder("XDG_DATA_HOME", "~/.local/share", environment)


def user_folder(variable: str, otherwise: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return patchctl's folder in an XDG base directory, else in `otherwise` below the home; None for a user without a home."""
    shared = environment.get(variable, "")
    folder = shared if os.path.isabs(shared) else os.path.expanduser(otherwise)
    return Path(folder, "patchctl") if os.path.isabs(folder) else None


def place_of(data: Path, commit: str) -> Path:
    return data / "distributions" / commit


def files_of(data: Path, commit: str) -> Path:
    return place_of(data, commit) / "files"


def default_commit(data: Path) -> str | None:
    """Return the commit that `use` chose, or None."""
    try:
        text = (data / "default").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return text if _COMMIT.fullmatch(text) else None


def chosen_root() -> Path | None:
    """Return the distribution that `use` chose. Raises WrongUse if its files are gone."""
    data = data_folder()
    commit = default_commit(data) if data else None
    if data is None or commit is None:
        return None
    root = files_of(data, commit)
    if not (root / MARKER).is_file():
        hint = message("`patchctl use URL@REV` fetches it again, `patchctl use --none` goes back to the wheel's own")
        raise WrongUse(message("the distribution that `patchctl use` chose is gone: {root}", root=root), hint=hint)
    return root


def used(data: Path) -> dict[str, Used]:
    """Return every fetched distribution by commit, sorted. Unreadable records are passed over."""
    found = {}
    for record in sorted(data.glob("distributions/*/use.json")):
        try:
            found[record.parent.name] = parse(Used, record.read_bytes(), SCHEMA)
        except (OSError, BadRecord):
            continue
    return found


def used_at(root: Path) -> Used | None:
    """Return the record of a root that `use` fetched, or None."""
    data = data_folder()
    return next((u for u in used(data).values() if files_of(data, u.commit) == root), None) if data else None


def is_read_only(root: Path) -> bool:
    """Whether a distribution belongs to patchctl, and not to the user who runs it."""
    data = data_folder()
    return root == own_root() or (data is not None and root.is_relative_to(data / "distributions"))


def how_to_clone(root: Path) -> str:
    """Return what to do to change the distribution at a read-only root."""
    there = used_at(root)
    address, revision = (there.address, there.revision) if there else installed_from()
    if address is None:
        return "clone its repository (ask the person who gave you this patchctl for the address), and run the same in the clone"
    if os.path.isfile(Path(address) / MARKER):
        return f"run the same in {address}, which it was installed from"
    branch = f" --branch {revision}" if revision and not _COMMIT.fullmatch(revision) else ""
    return f"git clone{branch} {address} patchctl, and run the same in patchctl/"


def installed_from() -> tuple[str | None, str | None]:
    """Return the address and revision of the repository or folder that pip installed patchctl from (PEP 610)."""
    said = direct_url()
    url, vcs = str(said.get("url", "")), said.get("vcs_info")
    if isinstance(vcs, dict):
        return url, vcs.get("requested_revision")
    return (url.removeprefix("file://"), None) if url.startswith("file://") and "dir_info" in said else (None, None)


def installed_commit() -> str | None:
    """Return the commit that pip installed from, or that the release was made of (make release)."""
    vcs = direct_url().get("vcs_info")
    try:
        stamped = (_OWN.parent / "commit.txt").read_text(encoding="ascii").strip()
    except OSError:
        stamped = ""
    commit = str(vcs.get("commit_id")) if isinstance(vcs, dict) else stamped
    return commit if _COMMIT.fullmatch(commit) else None


def direct_url() -> dict[str, object]:
    """Return pip's direct_url.json of this patchctl; empty without one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = json.loads(distribution("patchctl").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
