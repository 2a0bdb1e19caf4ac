"""The workspace's state file: what was applied, in which form, and what was left out and why.

Parsed strictly: a truncated or forged file, or one from a newer patchctl, is refused before anything acts on it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where
from patchctl.language import message
from patchctl.manifest.typeinfo import build, shape_of
from patchctl.manifest.types import ObjectId, Pattern
from patchctl.os_errors import as_user_error

VERSION = 1
_SINCE = {"record", "pin_base", "differing", "release"}  # keys that states of earlier releases do not have
FOLDER = ".patchctl"
# Files that a killed run leaves of its state and journal; earlier versions named them without the dot.
UNFINISHED = (".state.json.new", ".journal.json.new", "state.json.new", "journal.json.new")
_RECORD = re.compile(r"[^/\x00-\x1f\x7f]+\.dist-info/RECORD")

# A manifest name cannot contain terminal control sequences; a path may hold bytes that are not UTF-8, as os.fsdecode gives them.
Name = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._@-]*", "a name")]
FileText = Annotated[str, Pattern("[^\ud800-\udc7f\udd00-\udfff]*", "a text")]
Utf8 = Annotated[str, Pattern("[^\ud800-\udfff]*", "a text")]


@dataclass(frozen=True)
class AppliedPatch:
    """A patch applied to a tree."""

    file: Annotated[Name, Doc("path in the distribution")]
    feature: Annotated[Name, Doc("feature name")]
    digest: Annotated[Name, Doc("sha256 of the patch and its carried files")]
    commit: Annotated[ObjectId, Doc("resulting commit")]


@dataclass(frozen=True)
class LeftOutFeature:
    """A feature that is not in the tree."""

    feature: Annotated[Name, Doc("feature name")]
    reason: Annotated[FileText, Doc("what left it out, or what the source lacks")]


@dataclass(frozen=True)
class TreeState:
    """A tree of the workspace."""

    kind: Annotated[str, Doc("`managed`, or `into` for `--in-place`")]
    folder: Annotated[FileText, Doc("path relative to the workspace for a managed tree, absolute otherwise")]
    stack: Annotated[Name, Doc("stack name")]
    form: Annotated[Name, Doc("source form: `git` or `sdist`")]
    origin: Annotated[FileText, Doc("where the source came from")]
    base_commit: Annotated[ObjectId, Doc("unpatched base commit")]
    base_tree: Annotated[ObjectId, Doc("tree id of the base commit")]
    tip_commit: Annotated[ObjectId, Doc("commit of the last patch")]
    tip_tree: Annotated[ObjectId, Doc("tree id of the tip commit")]
    locked: Annotated[bool, Doc("true if the lock records exactly this result")]
    patches: Annotated[tuple[AppliedPatch, ...], Doc("patches, in the order applied")] = ()
    left_out: Annotated[tuple[LeftOutFeature, ...], Doc("features not in the tree")] = ()
    generated: Annotated[
        dict[FileText, Utf8], Doc("files written in place of upstream's build, with the sha256 of each")
    ] = field(default_factory=dict)
    record: Annotated[
        FileText,
        Doc(
            "path of the package's RECORD below the folder, for a package patched where it is installed; empty otherwise"
        ),
    ] = ""
    pin_base: Annotated[
        str,
        Pattern(r"([0-9a-f]{40})?", "an object id"),
        Doc("with `--on-this-base`: commit of the pin's base, on which patchctl made `base_commit`; empty otherwise"),
    ] = ""
    differing: Annotated[
        tuple[FileText, ...], Doc("with `--on-this-base`: files that are not the pin's in the base")
    ] = ()


@dataclass(frozen=True)
class SkippedUpstream:
    """An unavailable upstream."""

    upstream: Annotated[Name, Doc("upstream name")]
    tried: Annotated[tuple[tuple[FileText, FileText], ...], Doc("sources tried, with the reason for each failure")]


@dataclass(frozen=True)
class WorkspaceState:
    """The whole file. `profile` is None after a revert. `release` is the applied release; None if the profile has none,
    or in files of earlier versions.
    """

    profile: Name | None
    root: FileText
    without: tuple[Name, ...] = ()
    trees: dict[Name, TreeState] = field(default_factory=dict)
    skipped: tuple[SkippedUpstream, ...] = ()
    release: Name | None = None

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def in_profile(tree: TreeState) -> bool:
    """Whether the applied profile has this tree, all its patches left out or not. A tree that only an earlier profile had stays at its
    base and is never installed.
    """
    return bool(tree.patches or tree.left_out) or tree.locked or tree.tip_commit != tree.base_commit


def load_state(workspace: Path) -> WorkspaceState | None:
    """Return the state of a workspace, or None if there is none. Raises BadManifest."""
    file = workspace / FOLDER / "state.json"
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        instead = message("name a workspace of your own with --workspace")
        raise as_user_error(error, message("the workspace's state cannot be read"), instead, workspace) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadManifest(message("the state cannot be read: {error}", error=error), where=Where(str(file))) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(file, message("it is not JSON ({error})", error=error)) from error
    return state_from_json(data, file)


def state_from_json(data: Any, file: Path) -> WorkspaceState:
    """Build the state from parsed JSON, checking every value that is later used as a path, an id or a name."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        why = message(
            "version {wanted} was expected and {found} found; a newer patchctl may have written it",
            wanted=VERSION,
            found=repr(found),
        )
        raise _broken(file, why)
    try:
        trees = {name: _known(TreeState, tree) for name, tree in data["trees"].items()}
        state: WorkspaceState = build(WorkspaceState, {**_known(WorkspaceState, data), "trees": trees})
        for name, tree in state.trees.items():
            check_place(name, tree.kind, tree.folder, tree.record)
            check_generated(tree.generated)
            if bool(tree.pin_base) != bool(tree.differing):
                raise ValueError(f"tree {name!r}: files differ from a base that is not named, or the other way round")
        return state
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, str(error) or "a value is missing") from error


def save_json(file: Path, data: Any) -> None:
    """Replace `file` with JSON, atomically and durably."""
    # ASCII, since a folder's name may hold bytes that are not UTF-8; one line, since Python indents ten times as slowly.
    replace_file(file, (json.dumps(data, sort_keys=True) + "\n").encode())


def _known(record: type, data: dict[str, Any]) -> dict[str, Any]:
    """Without the keys of another version. No patches and a list that is gone are two things: raises ValueError for what is missing."""
    names = {one.name for one in fields(record)}
    if absent := sorted(names - data.keys() - _SINCE):
        raise ValueError(f"{absent[0]!r} is missing")
    return {name: value for name, value in data.items() if name in names}


def check_place(name: str, kind: str, folder: str, record: str = "") -> None:
    """Raise ValueError unless a tree of this kind can be there: inside the workspace under its name, or at an absolute path."""
    if record and (kind != "into" or not _RECORD.fullmatch(record)):
        raise ValueError(f"tree {name!r} is no package with the RECORD {record!r}")
    at_home = kind == "managed" and folder == name
    elsewhere = kind == "into" and os.path.isabs(folder) and os.path.normpath(folder) == folder
    if not (at_home or elsewhere) or "\0" in folder or not shape_of(Name).takes_text(name):
        raise ValueError(f"tree {name!r} lies where no tree can be: {folder!r}")


def check_generated(*generated: dict[str, str]) -> None:
    """Raise ValueError unless every path stays in its tree and out of its git directory."""
    for path in (path for one in generated for path in one):
        parts = path.split("/")
        if os.path.isabs(path) or "\0" in path or any(p in ("", ".", "..") or p.lower() == ".git" for p in parts):
            raise ValueError(f"a generated file lies outside its tree: {path!r}")


def _broken(file: Path, why: str) -> BadManifest:
    hint = message("nothing was changed; restore the file, or let `patchctl repair` make a clean base")
    return BadManifest(
        message("the workspace's state cannot be used: {why}", why=why), where=Where(str(file)), hint=hint
    )
