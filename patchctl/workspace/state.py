"""The workspace's state file: what was applied, in which form, and what was left out and why.

Read strictly: a file that is truncated, forged or from a newer patchctl is refused before anything is done by it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from patchctl.errors import BadManifest, Where

VERSION = 1
FOLDER = ".patchctl"
_ID = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
T = TypeVar("T")


@dataclass(frozen=True)
class AppliedPatch:
    """One patch in a tree: its file in the distribution, its feature, its digest and its commit."""

    file: str
    feature: str
    digest: str
    commit: str


@dataclass(frozen=True)
class LeftOut:
    """A feature that is not in the tree, and why: asked for, or unavailable from this source."""

    feature: str
    reason: str


@dataclass(frozen=True)
class TreeState:
    """One tree of the workspace. `folder` is relative to the workspace for managed trees, absolute for `--into`."""

    kind: str
    folder: str
    stack: str
    form: str
    origin: str
    base_commit: str
    base_tree: str
    tip_commit: str
    tip_tree: str
    locked: bool
    patches: tuple[AppliedPatch, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    generated: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SkippedUpstream:
    """An upstream that could not be had, with the places tried, as (place, reason)."""

    upstream: str
    tried: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class State:
    """The whole file. `profile` is None after a revert."""

    profile: str | None
    root: str
    without: tuple[str, ...] = ()
    trees: dict[str, TreeState] = field(default_factory=dict)
    skipped: tuple[SkippedUpstream, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def load_state(workspace: Path) -> State | None:
    """The state of a workspace, or None when there is none. Raises BadManifest."""
    file = workspace / FOLDER / "state.json"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadManifest(f"the state cannot be read: {error}", where=Where(str(file))) from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _broken(file, f"it is not JSON ({error})") from error
    return state_from_json(data, file)


def state_from_json(data: Any, file: Path) -> State:
    """Build a State from parsed JSON, checking every value that is later used as a path, an id or a name."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise _broken(file, f"version {VERSION} was expected and {found!r} found; a newer patchctl may have written it")
    try:
        trees = {name: _tree(tree) for name, tree in data["trees"].items()}
        skipped = tuple(SkippedUpstream(s["upstream"], tuple((p, r) for p, r in s["tried"])) for s in data["skipped"])
        state = State(data["profile"], data["root"], tuple(data["without"]), trees, skipped)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, f"a value is missing or of the wrong kind ({error})") from error
    for name, tree in state.trees.items():
        _check(file, name, tree)
    return state


def save_json(file: Path, data: Any) -> None:
    """Replace `file` by JSON, on disk before this returns: by rename, synchronised."""
    temporary = file.with_name(f"{file.name}.new")
    with temporary.open("w", encoding="utf-8") as out:
        json.dump(data, out, indent=1, sort_keys=True, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def _tree(data: dict[str, Any]) -> TreeState:
    plain = {f.name: data[f.name] for f in fields(TreeState)}
    plain["patches"] = tuple(_exactly(AppliedPatch, p) for p in data["patches"])
    plain["left_out"] = tuple(_exactly(LeftOut, p) for p in data["left_out"])
    return TreeState(**plain)


def _exactly(kind: type[T], data: dict[str, Any]) -> T:
    return kind(**data)


def _check(file: Path, name: str, tree: TreeState) -> None:
    ids = (tree.base_commit, tree.base_tree, tree.tip_commit, tree.tip_tree)
    if not _NAME.fullmatch(name) or not all(isinstance(i, str) and _ID.fullmatch(i) for i in ids):
        raise _broken(file, f"tree {name!r} has a name or an id that cannot be")
    relative = PurePosixPath(tree.folder)
    inside = tree.kind == "managed" and tree.folder == name
    if not (inside or (tree.kind == "into" and relative.is_absolute())):
        raise _broken(file, f"tree {name!r} lies where no tree can be: {tree.folder!r}")
    for path in tree.generated:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise _broken(file, f"tree {name!r} has a generated file outside it: {path!r}")


def _broken(file: Path, why: str) -> BadManifest:
    hint = "nothing was changed; apply into a new workspace, or restore the file"
    return BadManifest(f"the workspace's state cannot be used: {why}", where=Where(str(file)), hint=hint)
