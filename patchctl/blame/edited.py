"""Local edits in the trees of a workspace, as a diff to the applied state with the owner of the lines changed by each hunk."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.blame.line_owners import owners_by_git
from patchctl.doc import Doc
from patchctl.errors import BrokenRepository, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.run import GitFailed
from patchctl.patch.hunks import split_lines
from patchctl.patch.names import path_text
from patchctl.source.upstream_releases import RevisionTree
from patchctl.workspace.state import TreeState, load_state
from patchctl.workspace.trees import Tree

_CONTEXT = 3
UPSTREAM = "upstream"


@dataclass(frozen=True)
class EditedHunk:
    """A hunk of a local edit."""

    line: Annotated[int, Doc("first changed line in the current file")]
    owners: Annotated[tuple[str, ...], Doc("owners of the changed lines: feature names or `upstream`")]
    diff: Annotated[tuple[str, ...], Doc("lines of the hunk, starting with the `@@` header")]


@dataclass(frozen=True)
class EditedFile:
    """An edited file."""

    path: Annotated[str, Doc("path in the tree")]
    state: Annotated[str, Doc("`changed`, `deleted` or `binary`")]
    hunks: Annotated[tuple[EditedHunk, ...], Doc("edited hunks; empty unless `state` is `changed`")] = ()


@dataclass(frozen=True)
class EditedTree:
    """A tree of the workspace."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    folder: Annotated[str, Doc("absolute path of the tree")]
    files: Annotated[tuple[EditedFile, ...], Doc("files that differ from the applied state")] = ()
    problem: Annotated[str | None, Doc("why the tree cannot be inspected; null if it can")] = None


def drift_of_workspace(workspace: Path) -> list[EditedTree]:
    """Return every tree, from its own repository. Raises WrongUse if nothing is applied, BadManifest for a broken state."""
    state = load_state(workspace)
    if state is None or not state.trees:
        raise WrongUse(f"nothing was applied to {workspace}", hint="name the workspace with --workspace DIR")
    return [_tree(Tree.of(workspace, name, tree), tree) for name, tree in state.trees.items()]


def _tree(tree: Tree, state: TreeState) -> EditedTree:
    try:
        paths = tree.differences(state.tip_commit)
        with ObjectReader(tree.git_dir, tree.name) as reader:
            tip = RevisionTree(reader, state.tip_tree)
            files = tuple(_file(tree, state, tip, path) for path in paths)
    except (BrokenRepository, GitFailed) as error:
        return EditedTree(tree.name, state.stack, str(tree.folder), problem=error.what)
    return EditedTree(tree.name, state.stack, str(tree.folder), files)


def _file(tree: Tree, state: TreeState, tip: RevisionTree, path: bytes) -> EditedFile:
    name = path_text(path)
    place = tree.folder / path.decode("utf-8", "surrogateescape")
    if not place.is_file():
        return EditedFile(name, "deleted")
    old, new = tip.read(path), place.read_bytes()
    if old is None or b"\0" in old + new:
        return EditedFile(name, "binary")
    features = {p.commit: p.feature for p in state.patches}
    owners = owners_by_git(tree.work, state.base_commit, state.tip_commit, path)
    return EditedFile(name, "changed", tuple(_hunks(old, new, [features.get(o, UPSTREAM) for o in owners])))


def _hunks(old: bytes, new: bytes, owners: Sequence[str]) -> Iterator[EditedHunk]:
    before, after = split_lines(old), split_lines(new)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        touched: list[str] = []
        lines = []
        for tag, i, j, k, m in group:
            if tag == "equal":
                lines += [" " + _text(line) for line in before[i:j]]
                continue
            # for a pure addition, the surrounding lines
            touched += owners[i:j] if j > i else owners[max(0, i - 1) : i + 1]
            lines += ["-" + _text(line) for line in before[i:j]] + ["+" + _text(line) for line in after[k:m]]
        first, last = group[0], group[-1]
        head = f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@"
        changed = next(k for tag, _, _, k, _ in group if tag != "equal")
        yield EditedHunk(changed + 1, tuple(dict.fromkeys(touched)) or (UPSTREAM,), (head, *lines))


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").decode("utf-8", "backslashreplace")
