"""The workspace's state file: what was applied, in which form, and what was left out and why.

Parsed strictly: a truncated or forged file, or one from a newer patchctl, is refused before anything acts on it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where
from patchctl.language import message
from patchctl.os_errors import as_user_error

VERSION = 1
FOLDER = ".patchctl"
# Files that a killed run leaves of its state and journal; earlier versions named them without the dot.
UNFINISHED = (".state.json.new", ".journal.json.new", "state.json.new", "journal.json.new")
_ID = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_RECORD = re.compile(r"[^/\x00-\x1f\x7f]+\.dist-info/RECORD")


@dataclass(frozen=True)
class AppliedPatch:
    """A patch applied to a tree."""

    file: Annotated[str, Doc("path in the distribution")]
    feature: Annotated[str, Doc("feature name")]
    digest: Annotated[str, Doc("sha256 of the patch and its carried files")]
    commit: Annotated[str, Doc("resulting commit")]


@dataclass(frozen=True)
class LeftOutFeature:
    """A feature that is not in the tree."""

    feature: Annotated[str, Doc("feature name")]
    reason: Annotated[str, Doc("what left it out, or what the source lacks")]


@dataclass(frozen=True)
class TreeState:
    """A tree of the workspace."""

    kind: Annotated[str, Doc("`managed`, or `into` for `--in-place`")]
    folder: Annotated[str, Doc("path relative to the workspace for a managed tree, absolute otherwise")]
    stack: Annotated[str, Doc("stack name")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    origin: Annotated[str, Doc("where the source came from")]
    base_commit: Annotated[str, Doc("unpatched base commit")]
    base_tree: Annotated[str, Doc("tree id of the base commit")]
    tip_commit: Annotated[str, Doc("commit of the last patch")]
    tip_tree: Annotated[str, Doc("tree id of the tip commit")]
    locked: Annotated[bool, Doc("true if the lock records exactly this result")]
    patches: Annotated[tuple[AppliedPatch, ...], Doc("patches, in the order applied")] = ()
    left_out: Annotated[tuple[LeftOutFeature, ...], Doc("features not in the tree")] = ()
    generated: Annotated[dict[str, str], Doc("files written in place of upstream's build, with the sha256 of each")] = (
        field(default_factory=dict)
    )
    record: Annotated[
        str,
        Doc(
            "path of the package's RECORD below the folder, for a package patched where it is installed; empty otherwise"
        ),
    ] = ""
    pin_base: Annotated[
        str,
        Doc("with `--on-this-base`: commit of the pin's base, on which patchctl made `base_commit`; empty otherwise"),
    ] = ""
    differing: Annotated[tuple[str, ...], Doc("with `--on-this-base`: files that are not the pin's in the base")] = ()


@dataclass(frozen=True)
class SkippedUpstream:
    """An unavailable upstream."""

    upstream: Annotated[str, Doc("upstream name")]
    tried: Annotated[tuple[tuple[str, str], ...], Doc("sources tried, with the reason for each failure")]


@dataclass(frozen=True)
class WorkspaceState:
    """The whole file. `profile` is None after a revert. `release` is the applied release; None if the profile has none,
    or in files of earlier versions.
    """

    profile: str | None
    root: str
    without: tuple[str, ...] = ()
    trees: dict[str, TreeState] = field(default_factory=dict)
    skipped: tuple[SkippedUpstream, ...] = ()
    release: str | None = None

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
        trees = {name: _tree(name, tree) for name, tree in data["trees"].items()}
        skipped = tuple(_skipped(s) for s in data["skipped"])
        profile = None if data["profile"] is None else _name(data["profile"])
        release = None if data.get("release") is None else _name(data["release"])
        without = tuple(_name(f) for f in data["without"])
        return WorkspaceState(profile, _text(data["root"]), without, trees, skipped, release)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, str(error) or "a value is missing") from error


def save_json(file: Path, data: Any) -> None:
    """Replace `file` with JSON, atomically and durably."""
    # ASCII, since a folder's name may hold bytes that are not UTF-8; one line, since Python indents ten times as slowly.
    replace_file(file, (json.dumps(data, sort_keys=True) + "\n").encode())


def check_place(name: str, kind: str, folder: str, record: str = "") -> None:
    """Raise ValueError unless a tree of this kind can be there: inside the workspace under its name, or at an absolute path."""
    _name(name)
    if "\0" in _text(folder) + _text(record):
        raise ValueError(f"tree {name!r} lies where no tree can be: {folder!r}")
    if record and (kind != "into" or not _RECORD.fullmatch(record)):
        raise ValueError(f"tree {name!r} is no package with the RECORD {record!r}")
    if kind == "managed" and folder == name:
        return
    if kind == "into" and os.path.isabs(folder) and os.path.normpath(folder) == folder:
        return
    raise ValueError(f"tree {name!r} lies where no tree can be: {folder!r}")


def check_ids(*ids: str) -> None:
    """Raise ValueError unless every one is a full object id."""
    for value in ids:
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise ValueError(f"{value!r} is no object id")


def check_generated(generated: dict[str, str]) -> None:
    """Raise ValueError unless every path stays in its tree and out of its git directory."""
    for path, value in generated.items():
        parts = _text(path).split("/")
        if os.path.isabs(path) or "\0" in path or any(p in ("", ".", "..") or p.lower() == ".git" for p in parts):
            raise ValueError(f"a generated file lies outside its tree: {path!r}")
        _text(value).encode()


def _tree(name: str, data: dict[str, Any]) -> TreeState:
    data = {"record": "", "pin_base": "", "differing": (), **data}  # absent in workspaces of earlier versions
    tree = TreeState(**{one.name: data[one.name] for one in fields(TreeState)})
    check_place(name, tree.kind, tree.folder, _text(tree.record))
    check_ids(tree.base_commit, tree.base_tree, tree.tip_commit, tree.tip_tree)
    check_generated(tree.generated)
    if bool(tree.pin_base) != bool(tree.differing):
        raise ValueError(f"tree {name!r}: files differ from a base that is not named, or the other way round")
    check_ids(*filter(None, [tree.pin_base]))
    patches = tuple(AppliedPatch(**p) for p in data["patches"])
    for patch in patches:
        check_ids(patch.commit)
        _name(patch.file), _name(patch.feature), _name(patch.digest)
    left_out = tuple(LeftOutFeature(_name(p["feature"]), _text(p["reason"])) for p in data["left_out"])
    _name(tree.stack), _name(tree.form), _text(tree.origin)
    if not isinstance(tree.locked, bool):
        raise ValueError(f"tree {name!r}: locked is {tree.locked!r}")
    differing = tuple(_text(path) for path in tree.differing)
    return replace(tree, patches=patches, left_out=left_out, differing=differing)


def _skipped(data: dict[str, Any]) -> SkippedUpstream:
    return SkippedUpstream(_name(data["upstream"]), tuple((_text(p), _text(r)) for p, r in data["tried"]))


def _name(value: Any) -> str:
    """Check a manifest name, which cannot contain terminal control sequences."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    os.fsencode(value)  # ValueError for an unpaired surrogate, which neither file names nor output can contain
    return value


def _broken(file: Path, why: str) -> BadManifest:
    hint = message("nothing was changed; restore the file, or let `patchctl repair` make a clean base")
    return BadManifest(
        message("the workspace's state cannot be used: {why}", why=why), where=Where(str(file)), hint=hint
    )
