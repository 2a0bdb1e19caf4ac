"""The owner of each line of a patched file: upstream, or the last patch that wrote it; and local edits in the trees of a workspace, as a
diff to the applied state with the owner of the lines changed by each hunk.

The patches are reversed one by one, which needs the file and the patches, but no repository and no source. In a workspace each
patch is a commit, and `git blame` answers.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import BrokenRepository, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.run import GitFailed
from patchctl.git.worktree import WorkTree
from patchctl.patch.hunks import split_lines
from patchctl.patch.parse import FileChange, Hunk
from patchctl.source.upstream_releases import RevisionTree
from patchctl.stack.patches import StackPatch
from patchctl.workspace.state import TreeState, load_state
from patchctl.workspace.trees import Tree

_BLAMED = re.compile(rb"(?m)^([0-9a-f]{40}) \d+ (\d+)(?: \d+)?$")
_Lines = list["tuple[bytes, int | None]"]


@dataclass(frozen=True)
class Owned:
    """The number of the patch that owns each line, None for upstream; `before` is the unpatched content, None if a patch adds the
    file."""

    owners: tuple[int | None, ...]
    before: bytes | None


def owners_of(path: bytes, content: bytes, patches: Sequence[StackPatch]) -> Owned | None:
    """The owners of the lines of a file to which these patches were applied in order; None if they were not."""
    lines: _Lines = [(text, number) for number, text in enumerate(split_lines(content))]
    owners: list[int | None] = [None] * len(lines)
    for number in reversed(range(len(patches))):
        change = next((c for c in patches[number].patch.changes if c.new_path == path), None)
        if path.decode("utf-8", "surrogateescape") in patches[number].carried or (change and change.kind == "add"):
            for _, index in lines:
                if index is not None:
                    owners[index] = number
            return Owned(tuple(owners), None)
        if change is None:
            continue
        found = _without(lines, change)
        if found is None:
            return None
        lines, written = found
        for index in written:
            owners[index] = number
        path = change.old_path or path
    return Owned(tuple(owners), b"".join(text for text, _ in lines))


def _without(lines: _Lines, change: FileChange) -> tuple[_Lines, list[int]] | None:
    """The lines before a change, and those that it wrote."""
    written: list[int] = []
    for hunk in reversed(change.hunks):
        first = _place(lines, hunk)
        if first is None:
            return None
        old, new = iter(hunk.old), iter(lines[first : first + len(hunk.new)])
        part: _Lines = []
        for mark in hunk.marks:
            if mark == ord("-"):
                part.append((next(old), None))
                continue
            line = next(new)
            if mark == ord("+"):
                written += [line[1]] if line[1] is not None else []
            else:
                next(old)
                part.append(line)
        lines = [*lines[:first], *part, *lines[first + len(hunk.new) :]]
    return lines, written


def _place(lines: _Lines, hunk: Hunk) -> int | None:
    """The line of the hunk's new lines, nearest to where it says: a patch that is left out shifts the others."""
    wanted = hunk.new_start - 1 if hunk.new else hunk.new_start
    texts = [text for text, _ in lines]
    places = [at for at in range(len(texts) - len(hunk.new) + 1) if texts[at : at + len(hunk.new)] == hunk.new]
    return min(places, key=lambda at: abs(at - wanted), default=None)


def owners_by_git(work: WorkTree, base: str, tip: str, path: bytes) -> list[str]:
    """The commit that each line of a file has from, by git's own blame; `base` for upstream's. Raises GitFailed."""
    name = path.decode("utf-8", "surrogateescape")
    out = work.git("blame", "--porcelain", f"{base}..{tip}", "--", name)
    return [commit.decode() for commit, _ in sorted(_BLAMED.findall(out), key=lambda row: int(row[1]))]


def line_before(old: bytes, new: bytes, line: int) -> int | None:
    """The line of `old` that is line `line` of `new` (from 1); None if it was written since."""
    if old == new:
        return line
    for tag, first, _, start, end in matching(old, new):
        if tag == "equal" and start < line <= end:
            return first + line - start
    return None


def matching(old: bytes, new: bytes) -> Sequence[tuple[str, int, int, int, int]]:
    """difflib's operations from `old` to `new`, by lines."""
    return difflib.SequenceMatcher(None, split_lines(old), split_lines(new), autojunk=False).get_opcodes()


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
    name = os.fsdecode(path)
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
