"""Attributes source lines to upstream or a patch: in a workspace, an installed package, an image or a remote container.

In a workspace the state file and the trees' repositories decide. Any other file is identified by its blob id, since
those of every pin's files, patched or not, are known. For a file on another machine, the source text in the traceback
is compared with the patched and the unpatched file, if the source is in the cache or a mirror.

Strips what launchers, engines and log collectors add to lines, and reads Python tracebacks from such logs.

Prefixes come in any number and order: the process (Ray, vLLM: `(EngineCore_DP0 pid=8)`), the rank (torchrun: `[rank0]:`), times,
levels, the place that logged (`[executor.py:932]`), marks of quotes, exception groups and compose. Ray adds a note on repeated lines
at the end, and colours are anywhere.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from patchctl.blame.line_owners import UPSTREAM, Owned, line_before, matching, owners_by_git, owners_of
from patchctl.catalog.pages import PageEntry
from patchctl.doc import Doc, Spread
from patchctl.errors import DoesNotApply, PatchctlError, SourceUnavailable, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import object_id
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.os_errors import regular_file
from patchctl.patch.hunks import apply_change, split_lines
from patchctl.source.types import SourceOptions
from patchctl.source.upstream_releases import RevisionTree, UpstreamReleases
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches
from patchctl.stack.tree_lists import KnownTree, known_trees
from patchctl.terminal.progress import Progress
from patchctl.workspace.state import TreeState, WorkspaceState, load_state
from patchctl.workspace.trees import Tree

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_REPEATED = re.compile(r"\[repeated \d+x across [^\]]*\].*$")
_INDENT = re.compile(" *")
# Each takes the space behind it, but not the four spaces before code.
_PART = re.compile(
    r"""(?:
      \([^()]*\b(?:pid|ip|rank|node)=[^()]*\)            # (Worker_TP1 pid=8, ip=10.0.0.7)
    | \[[^\[\]]*\]:?                                     # [rank0]: [2026-06-04 12:00:01,123] [executor.py:932]
    | (?:\d{4}-)?\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?   # 06-04 12:00:01, 2026-06-04T12:00:01.5Z
    | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ [ \d]\d\ \d\d:\d\d:\d\d   # Jun  4 12:00:01
    | \d\d:\d\d:\d\d(?:[.,]\d+)?
    | (?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b:?
    | [DIWEF]\d{4}\ \d\d:\d\d:\d\d\.\d+\s+\d+\ [\w./-]+:\d+\]                        # E0604 12:00:01.000001 7 worker.py:9]
    | [\w./-]+\.(?:py|cc|cpp|go):\d+\]?:?                # executor.py:932]
    | std(?:out|err)\ [FP]                               # of container runtimes
    | (?:[\w.-]+\ )?[\w.-]+\[\d+\]:                      # train[123]: of syslog, node1 train[123]: of journalctl
    | \d{1,6}:(?=\ )                                     # 0: of srun --label
    | <std(?:out|err)>:                                  # of mpirun --tag-output
    | [\w.-]+[ ]+\|(?=[ ]|$)                             # compose: trainer-1  |
    | [>|]                                               # quotes, exception groups
    | \+(?:-+|\+)
    )[ ]?""",
    re.VERBOSE,
)


def plain(line: str) -> str:
    """The line without colours and other orders to a terminal."""
    return _ANSI.sub("", line)


def without_note(line: str) -> str:
    """The line without Ray's note behind it."""
    found = _REPEATED.search(line)
    return line[: found.start()].rstrip() if found else line


def without_prefix(line: str, most: int | None = None) -> tuple[int, str]:
    """How many parts of a prefix a line begins with, `most` at most, and what is left of it."""
    count = at = 0
    while (most is None or count < most) and (match := _PART.match(line, _INDENT.match(line, at).end())):  # type: ignore[union-attr]
        count, at = count + 1, match.end()
    return count, line[at:]


# faulthandler has no comma in front of `in`.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?!\d)(?:,? in (?P<function>.+))?')
_PYSPY_THREAD = re.compile(r"Thread \d+ \((?:active|idle)[^()]*\)")
_PYSPY_FRAME = re.compile(r" \(([^()]+\.pyx?):(\d{1,9})\)$")  # function (file.py:12)


def frames(text: str) -> list[SourceLine]:
    """The frames of all tracebacks, and of dumps by faulthandler, pystack and py-spy, in order. Linear in the text's length."""
    found: list[SourceLine] = []
    lines = [line for written in text.splitlines() for line in _unescaped(plain(written))]
    lines = [line.replace('(Python) File "', 'File "', 1) for line in lines if '(C) File "' not in line]  # pystack
    pyspy = False
    for number, line in enumerate(lines):
        pyspy = _PYSPY_THREAD.search(line) is not None or (pyspy and "    " in line)
        match = _FRAME.search(line)
        if match is None:
            if pyspy and (dumped := _PYSPY_FRAME.search(line)):
                found.append(SourceLine(dumped[1], int(dumped[2]), line[: dumped.start()].rpartition("    ")[2]))
            continue
        below = _below(lines, number, line[: match.start()])
        function = without_note(match["function"]).rstrip() if match["function"] else None
        found.append(SourceLine(match["file"], int(match["line"]), function, _said(line[: match.start()], below)))
    return found


_WITHIN = re.compile(r'File \\?"[^"]+", line \d+')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_PROCESS = re.compile(r"\([^()]*\bpid=[^()]*\)|\[(?:default|rank)\d+\]")
_MOST_BETWEEN = 64  # lines of other processes


def _unescaped(line: str) -> list[str]:
    """The lines of a text that JSON or repr() has made one of; docker's files have an object a line."""
    if line.startswith('{"log":'):
        try:
            return str(json.loads(line)["log"]).splitlines()
        except (ValueError, RecursionError):
            pass
    if _WITHIN.search(line, 0, max(line.rfind("\\n"), 0)):
        return _ESCAPE.sub(lambda e: chr(int(e[1], 16)) if e[1] else _ESCAPES.get(e[2], e[0]), line).splitlines()
    return [line]


def _below(lines: Sequence[str], number: int, before: str) -> str:
    """The next line of the process that wrote line `number`, which has `before` in front of `File`."""
    process = _PROCESS.findall(before)
    if not process:
        return lines[number + 1] if number + 1 < len(lines) else ""
    head, following = before.rstrip(" "), lines[number + 1 : number + 1 + _MOST_BETWEEN]
    return next((line for line in following if line.startswith(head) or _process(line) == process), "")


def _process(line: str) -> list[str]:
    return _PROCESS.findall(line[: len(line) - len(without_prefix(line)[1])])


def _said(before: str, below: str) -> str | None:
    """The code below a frame, whose own line has `before` in front of `File`; None if the traceback shows none."""
    count, own = without_prefix(before)
    _, rest = without_prefix(below, count)
    if own.strip():  # a prefix of no known form, which then is the same in front of the code
        head = before.rstrip(" ")
        if not below.startswith(head):
            return None
        own, rest = before[len(head) :], below[len(head) :]
    said = without_note(rest).strip()
    # What is no code, the next frame or the error itself, begins no further right.
    is_code = said and _spaces(rest) > _spaces(own)
    return said if is_code and not _FRAME.search(below) else None


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


# No upstream source is available locally.
_LARGEST_SOURCE = 16 << 20


@dataclass(frozen=True)
class SourceLine:
    """A source line, as requested or as a traceback names it."""

    file: Annotated[str, Doc("path as given in the request or the traceback")]
    line: Annotated[int, Doc("line number, from 1")]
    function: Annotated[str | None, Doc("enclosing function according to the traceback")] = None
    said: Annotated[str | None, Doc("source text shown in the traceback")] = None
    count: Annotated[int, Doc("number of occurrences in the traceback, over all ranks and processes")] = 1


@dataclass(frozen=True)
class Blamed:
    """A line and its owner."""

    place: Annotated[SourceLine, Spread()]
    owner: Annotated[str | None, Doc("feature name, `upstream`, `edit` (a local edit), or null if undetermined")]
    upstream: Annotated[str | None, Doc("upstream name; null if no upstream has a file of this name")] = None
    stack: Annotated[
        str | None,
        Doc(
            "stack that has the file; the first if several do (`why` lists the others); null if several have the file"
            " but none the line"
        ),
    ] = None
    path: Annotated[str | None, Doc("path in the upstream tree")] = None
    patch: Annotated[str | None, Doc("patch file; null unless the owner is a feature")] = None
    page: Annotated[str | None, Doc("documentation page of the patch; null if the distribution has none")] = None
    switch: Annotated[str | None, Doc("switch of the feature")] = None
    text: Annotated[str | None, Doc("text of the line")] = None
    told_by: Annotated[str | None, Doc("evidence used: `workspace`, `content` or `traceback`")] = None
    why: Annotated[str | None, Doc("why the owner is undetermined, or what is uncertain")] = None


EDIT = "edit"
_NO_SOURCE = "the file is not here, and its source is neither in the cache nor in a mirror"
_NO_CODE = (
    "the file is not here, and the traceback shows no code of it: --workspace names a workspace as that machine has it"
)


def places_in(text: str) -> list[SourceLine]:
    """Return the distinct places of the tracebacks in a text, in order of first occurrence."""
    return [replace(frame, count=count) for frame, count in Counter(frames(text)).items()]


def parse_place(text: str) -> SourceLine:
    """Parse FILE:LINE. Raises WrongUse."""
    file, _, line = text.rpartition(":")
    if not file or not re.fullmatch("[0-9]{1,9}", line) or int(line) < 1:
        raise WrongUse(f"{text!r} is not FILE:LINE", hint="a file, a colon and the number of a line, from 1")
    return SourceLine(file, int(line))


class Blame:
    """Attributes lines for a distribution. Uses the named workspaces and those that contain the files."""

    def __init__(self, dist: Distribution, workspaces: Iterable[Path], options: SourceOptions) -> None:
        self._dist = dist
        self._options = replace(options, offline=True)
        self._states = {w: s for w in workspaces if (s := load_state(w)) is not None}
        self._named = list(self._states.items())
        self._seen: set[Path] = set()
        self._patches: dict[tuple[str, str], list[StackPatch]] = {}
        self._owned: dict[tuple[str, str, bytes, bytes, tuple[int, ...]], Owned | None] = {}
        self._fitting: dict[tuple[str, str, bytes, str], tuple[bool, bool]] = {}
        self._read: dict[tuple[str, str, bytes], tuple[bytes | None, bytes | None] | None] = {}

    def all(self, places: Sequence[SourceLine]) -> list[Blamed]:
        """Attribute every place. For files not on this machine, only patches consistent with every shown line count."""
        told: dict[str, list[SourceLine]] = {}
        for place in places:
            told.setdefault(place.file, []).append(place)
        return [self._one(place, told[place.file]) for place in places]

    def _one(self, place: SourceLine, together: Sequence[SourceLine]) -> Blamed:
        if place.line < 1:
            return Blamed(place, None, why="no file has such a line")
        file = Path(place.file).absolute()
        found = next(filter(None, (self._in_workspace(place, w, s, file) for w, s in self._around(file))), None)
        if found is not None:
            return found
        candidates = list(self._candidates(place.file))
        if not candidates:
            return Blamed(place, None, why="no upstream has a file of this name")
        content = regular_file(file, _LARGEST_SOURCE)
        if content is None:
            named = (self._in_named(place, tree, path, w, s) for tree, path in candidates for w, s in self._named)
            return next(filter(None, named), None) or self._by_text(place, candidates, together)
        return self._by_content(place, candidates, content)

    # a workspace

    def _around(self, file: Path) -> Iterator[tuple[Path, WorkspaceState]]:
        yield from self._states.items()
        for folder in file.parents:
            if folder in self._states or folder in self._seen:
                continue
            self._seen.add(folder)
            try:
                state = load_state(folder)
            except (PatchctlError, OSError, ValueError):  # not a workspace that tells anything
                continue
            if state is not None:
                self._states[folder] = state
                yield folder, state

    def _in_workspace(self, place: SourceLine, workspace: Path, state: WorkspaceState, file: Path) -> Blamed | None:
        for name, tree in state.trees.items():
            one = Tree.of(workspace, name, tree)
            for path in {file, _resolved(file)}:
                if path.is_relative_to(one.folder) and (content := regular_file(path, _LARGEST_SOURCE)) is not None:
                    return self._in_tree(place, one, tree, path, content)
        return None

    def _in_named(
        self, place: SourceLine, tree: KnownTree, path: bytes, workspace: Path, state: WorkspaceState
    ) -> Blamed | None:
        """Attribute a line of a file that is elsewhere by the workspace that was named, if that reads as the traceback shows."""
        there = state.trees.get(tree.upstream)
        if there is None or there.stack != tree.stack.name:
            return None
        one = Tree.of(workspace, tree.upstream, there)
        file = one.folder / os.fsdecode(path)
        content = regular_file(file, _LARGEST_SOURCE)
        if content is None or place.said not in (None, _text(content, place.line)):
            return None
        return self._in_tree(place, one, there, file, content)

    def _in_tree(self, place: SourceLine, tree: Tree, state: TreeState, file: Path, content: bytes) -> Blamed | None:
        path = file.relative_to(tree.folder).as_posix()
        with ObjectReader(tree.git_dir, tree.name) as reader:
            tip = RevisionTree(reader, state.tip_tree).read(path.encode("utf-8", "surrogateescape"))
        if tip is None:
            return None
        base = Blamed(place, None, tree.name, state.stack, path, text=_text(content, place.line), told_by="workspace")
        if base.text is None:
            return replace(base, why="the file has no such line")
        line = line_before(tip, content, place.line)
        if line is None:
            return replace(base, owner=EDIT, why="the line was written after it was applied")
        commit = owners_by_git(tree.work, state.base_commit, state.tip_commit, path.encode("utf-8", "surrogateescape"))
        features = {p.commit: p.feature for p in state.patches}
        owner = features.get(commit[line - 1], UPSTREAM)
        return self._with_patch(base, owner)

    # any other file

    @cached_property
    def _known(self) -> list[KnownTree]:
        return known_trees(self._dist)

    def _candidates(self, file: str) -> Iterator[tuple[KnownTree, bytes]]:
        """Yield the trees' files that match the longest possible suffix of the path."""
        parts = Path(file).parts
        for cut in range(len(parts)):
            path = "/".join(parts[cut:]).encode("utf-8", "surrogateescape")
            found = [t for t in self._known if (path in t.files or path in t.touched) and path.strip(b"/")]
            if found:
                yield from ((tree, path) for tree in found)
                return

    def _by_content(self, place: SourceLine, candidates: Sequence[tuple[KnownTree, bytes]], content: bytes) -> Blamed:
        text = _text(content, place.line)
        oid = object_id("blob", content)
        found = list[Blamed]()
        for tree, path in candidates:
            answer = replace(_unowned(place, tree, path, text), told_by="content")
            entry = tree.files.get(path)
            if text is None:
                return replace(answer, why="the file has no such line")
            numbers = next((s.applied for s in tree.states.get(path, ()) if s.id == oid), None)
            if entry is not None and entry.id == oid:
                found.append(replace(answer, owner=UPSTREAM))
            elif numbers is not None:
                found.append(self._of_state(answer, tree, path, content, sorted(numbers), place.line))
        return _first(found) if found else self._of_unknown(place, candidates, content, text)

    def _of_state(
        self, answer: Blamed, tree: KnownTree, path: bytes, content: bytes, numbers: Sequence[int], line: int
    ) -> Blamed:
        patches = self._patches_of(tree.stack)
        key = (tree.upstream, tree.stack.name, path, content, tuple(numbers))
        if key not in self._owned:
            self._owned[key] = owners_of(path, content, [patches[n] for n in numbers])
        owned = self._owned[key]
        if owned is None:
            return replace(answer, why="the patches that it holds cannot be taken back from it")
        number = owned.owners[line - 1]
        return self._with_patch(answer, UPSTREAM if number is None else patches[numbers[number]].feature)

    def _of_unknown(
        self, place: SourceLine, candidates: Sequence[tuple[KnownTree, bytes]], content: bytes, text: str | None
    ) -> Blamed:
        """Attribute a line of a file that matches no pin, by comparing it with the nearest patched version available."""
        tips = [v[1] if (v := self._versions(*one)) is not None else None for one in candidates]
        near = [0 if tip is None else _alike(tip, content) for tip in tips]
        nearest = near.index(max(near))
        (tree, path), tip = candidates[nearest], tips[nearest]
        answer = _unowned(place, tree, path, text)
        if text is not None and tip is not None:
            line = line_before(tip, content, place.line)
            if line is not None:
                numbers = tree.touched.get(path, ())
                found = self._of_state(replace(answer, told_by="content"), tree, path, tip, numbers, line)
                return replace(found, why="the file is not as any pin has it; the line is")
            if None not in tips:
                return replace(answer, owner=EDIT, told_by="content", why="no patch and not this pin has the line")
        return _untold(answer, candidates, "the file is not as any known pin has it, patched or not")

    # a file that is elsewhere

    def _by_text(
        self, place: SourceLine, candidates: Sequence[tuple[KnownTree, bytes]], together: Sequence[SourceLine]
    ) -> Blamed:
        answers = [self._by_text_of(place, tree, path, together) for tree, path in candidates]
        found = [one for one in answers if one.owner is not None]
        if found:
            return _first(found)
        one = next((one for one in answers if one.why == _NO_SOURCE), answers[0])
        return _untold(one, candidates, one.why)

    def _by_text_of(self, place: SourceLine, tree: KnownTree, path: bytes, together: Sequence[SourceLine]) -> Blamed:
        answer = _unowned(place, tree, path, place.said)
        if all(one.said is None for one in together):
            return replace(answer, why=_NO_CODE)
        versions = self._versions(tree, path)
        if versions is None:
            return replace(answer, why=_NO_SOURCE)
        patched = versions[1]
        answer = replace(answer, told_by="traceback")
        key = (tree.upstream, tree.stack.name, path, place.file)
        if key not in self._fitting:  # once for all lines of a file: a log may have thousands
            self._fitting[key] = _fits(versions[0], together), _fits(patched, together)
        plain, fits = self._fitting[key]
        if patched is None or not fits:
            why = "the file is not here, and its lines are not those of any known pin, patched or not"
            return replace(answer, owner=UPSTREAM) if plain else replace(answer, told_by=None, why=why)
        found = self._of_state(answer, tree, path, patched, tree.touched.get(path, ()), place.line)
        same = plain and found.owner != UPSTREAM
        return replace(found, why="the unpatched file reads the same there") if same else found

    def _patches_of(self, stack: Stack) -> list[StackPatch]:
        key = (stack.upstream, stack.name)
        if key not in self._patches:
            self._patches[key] = load_patches(self._dist, stack)
        return self._patches[key]

    def _versions(self, tree: KnownTree, path: bytes) -> tuple[bytes | None, bytes | None] | None:
        """Return the file without and with the whole stack; None if no source is available offline."""
        key = (tree.upstream, tree.stack.name, path)
        if key not in self._read:
            self._read[key] = self._versions_now(tree, path)
        return self._read[key]

    def _versions_now(self, tree: KnownTree, path: bytes) -> tuple[bytes | None, bytes | None] | None:
        upstream = self._dist.upstream(tree.upstream)
        places = UpstreamReleases(tree.stack, upstream, self._options, Progress(), frozenset())
        try:
            base = places.base()
            with ObjectReader(base.repo) as reader:
                before = RevisionTree(reader, base.tree).read(path)
            return before, _after(path, before, self._patches_of(tree.stack))
        except (SourceUnavailable, DoesNotApply):
            return None

    def _with_patch(self, answer: Blamed, owner: str) -> Blamed:
        stack = self._dist.stacks.get((answer.upstream or "", answer.stack or ""))
        patches = self._patches_of(stack) if stack is not None and owner != UPSTREAM else []
        patch = next((p for p in patches if p.feature == owner), None)
        if stack is None or patch is None:
            return replace(answer, owner=owner)
        page = PageEntry(stack, patch).page
        page_there = page if (self._dist.root / page).is_file() else None
        switch = patch.header.trailer("Switch")
        return replace(answer, owner=owner, patch=patch.shown, page=page_there, switch=switch)


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, ValueError, RuntimeError):
        return file


def _unowned(place: SourceLine, tree: KnownTree, path: bytes, text: str | None) -> Blamed:
    return Blamed(place, None, tree.upstream, tree.stack.name, path.decode("utf-8", "replace"), text=text)


def _first(found: Sequence[Blamed]) -> Blamed:
    """Return the first of several stacks that have the line; `why` lists the others."""
    first, others = found[0], [f"{one.upstream}/{one.stack}" for one in found[1:]]
    why = [*([first.why] if first.why else []), *([f"it can be of {', '.join(others)} as well"] if others else [])]
    return replace(first, why="; ".join(why) or None)


def _untold(answer: Blamed, candidates: Sequence[object], why: str | None) -> Blamed:
    """Return an unattributed line: several stacks have a file of this name, but none has the line."""
    return replace(answer, stack=answer.stack if len(candidates) == 1 else None, why=why)


def _alike(old: bytes, new: bytes) -> int:
    """Return the number of lines in common."""
    return sum(end - start for tag, _, _, start, end in matching(old, new) if tag == "equal")


def _after(path: bytes, before: bytes | None, patches: Sequence[StackPatch]) -> bytes | None:
    content = before
    for patch in patches:
        carried = patch.carried.get(path.decode("utf-8", "surrogateescape"))
        content = content if carried is None else carried
        for change in patch.patch.changes:
            if change.path == path and change.old_path in (path, None):
                content = apply_change(change, content or b"", patch.shown)
    return content


def _fits(content: bytes | None, places: Sequence[SourceLine]) -> bool:
    """Whether the file has every line whose text the traceback shows."""
    told = [p for p in places if p.said is not None]
    lines = split_lines(content) if content is not None else []
    return bool(told) and all(_line(lines, p.line) == p.said for p in told)


def _text(content: bytes, line: int) -> str | None:
    return _line(split_lines(content), line)


def _line(lines: Sequence[bytes], line: int) -> str | None:
    return lines[line - 1].decode("utf-8", "replace").strip() if line <= len(lines) else None
