"""The stack function: (base, ordered patches) -> commits, in memory. Reads only the base's objects.

Deterministic: authors and dates come from the patches, the committer is fixed and commits at the author's date. The
same base and patches give the same ids on every machine, and `git am --committer-date-is-author-date` gives them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from patchctl.delta import Copy
from patchctl.errors import DoesNotApply, Where
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import (
    COMMITTER,
    EXECUTABLE,
    GITLINK,
    REGULAR,
    Person,
    TreeBuilder,
    TreeEntry,
    object_id,
    render_commit,
)
from patchctl.git.pack import PackWriter
from patchctl.language import message
from patchctl.patch.hunks import apply_and_tell, apply_change, hunk_position, split_lines
from patchctl.patch.names import collision_key, path_text
from patchctl.patch.parse import FileChange, Hunk
from patchctl.stack.patches import StackPatch
from patchctl.stack.result_cache import Built, StepResult, Touched

_MINUS, _PLUS = ord("-"), ord("+")
_CONTEXT = 3


@dataclass(slots=True)
class _Line:
    text: bytes
    writer: int
    deleters: set[int] = field(default_factory=set)


class Misfit(Exception):
    """A hunk has no exact place without the patches left out. `number` is the hunk's index."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Weave:
    """Leaves a patch out of the middle of a stack, exactly.

    Without a patch, later patches to the same file meet other line numbers, and their recorded preimages no longer exist.
    Searching for the place would be fuzz. Instead a file is kept as a weave (Rochkind's SCCS, 1975): every line that any
    patch of the stack ever wrote, in order, with the patch that wrote it and those that deleted it. The file without some
    patches is then a selection of lines, and a later hunk's place in it is known. A hunk fits if its old lines are
    adjacent in that selection, and if it starts or ends with the file where its context is short. Otherwise the patch
    builds on the one left out, and is refused.

    `left_out` are the numbers of the patches to leave out.
    """

    BASE = -1

    def __init__(self, content: bytes, left_out: set[int]) -> None:
        self._lines = [_Line(text, self.BASE) for text in split_lines(content)]
        self._left_out = left_out

    def keeps(self, patch: int) -> bool:
        """Whether this patch is kept."""
        return patch not in self._left_out

    def content(self) -> bytes:
        """Return the file without the patches left out."""
        return b"".join(line.text for line in self._lines if self._selected(line))

    def full(self) -> bytes:
        """Return the file with all patches so far."""
        return b"".join(line.text for line in self._lines if not line.deleters)

    def apply(self, patch: int, hunks: list[Hunk]) -> None:
        """Apply the hunks of patch number `patch`, which must fit the full file (the caller has checked).

        Raises Misfit if the patch is kept and a hunk has no exact place in the selection.
        """
        if self.content() == (whole := self.full()):  # what was left out is undone again, or not there yet
            self._lines = [_Line(text, self.BASE) for text in split_lines(whole)]
        full = [i for i, line in enumerate(self._lines) if not line.deleters]
        for number, hunk in reversed(list(enumerate(hunks))):  # backwards, so that earlier positions stay valid
            first = hunk_position(hunk)
            old = full[first : first + len(hunk.old)]
            if self.keeps(patch) and not self._fits(hunk, full, first):
                raise Misfit(number)
            at = old[0] if old else (full[first - 1] + 1 if first else 0)
            self._work_in(patch, hunk, old, at)

    def _fits(self, hunk: Hunk, full: list[int], first: int) -> bool:
        """Whether all old lines are selected and adjacent, with the file's start or end where the hunk implies it.

        Less than three lines of context mean the file's start or end. Without leading context the neighbouring line
        takes its place: a line deleted by a left-out patch could be before or after the additions.
        """
        last = first + len(hunk.old)
        before = len(hunk.marks) - len(hunk.marks.lstrip(b" "))
        after = len(hunk.marks) - len(hunk.marks.rstrip(b" "))
        wanted = full[first - 1 if not before and first else first : last]
        low = 0 if first == 0 and before < _CONTEXT else wanted[0]
        high = len(self._lines) if last == len(full) and after < _CONTEXT else wanted[-1] + 1 if wanted else 0
        return [i for i in range(low, high) if self._selected(self._lines[i])] == wanted

    def _work_in(self, patch: int, hunk: Hunk, old: list[int], at: int) -> None:
        additions: list[tuple[int, _Line]] = []
        taken = 0
        written = 0
        for mark in hunk.marks:
            if mark == _PLUS:
                additions.append((at, _Line(hunk.new[written], patch)))
                written += 1
                continue
            if mark == _MINUS:
                self._lines[old[taken]].deleters.add(patch)
            else:
                written += 1
            at = old[taken] + 1
            taken += 1
        for place, line in reversed(additions):
            self._lines.insert(place, line)

    def _selected(self, line: _Line) -> bool:
        return line.writer not in self._left_out and line.deleters <= self._left_out


@dataclass
class _State:
    tree: TreeBuilder
    objects: PackWriter
    contents: dict[bytes, bytes] = field(default_factory=dict)  # current content only
    # Names that each visited folder has or had, by collision key.
    names: dict[bytes, dict[str, set[bytes]]] = field(default_factory=dict)

    def exists(self, path: bytes) -> bool:
        return self.tree.get(path) is not None or self.tree.is_folder(path)

    def put(self, path: bytes, entry: TreeEntry) -> None:
        """Add or replace a file."""
        self.tree.put(path, entry)
        for own in (path, *_above(path)):
            folder, _, name = own.rpartition(b"/")
            if folder in self.names:
                self.names[folder].setdefault(collision_key(name), set()).add(name)

    def twin(self, path: bytes) -> bytes | None:
        """Return an existing file or folder that collides with `path` where case is ignored."""
        places = [b""]
        for part in path.split(b"/"):
            key = collision_key(part)
            found = (_join(place, name) for place in places for name in sorted(self._keyed(place).get(key, ())))
            places = [own for own in found if self.exists(own)]
        return next(iter(places), None)

    def _keyed(self, folder: bytes) -> dict[str, set[bytes]]:
        if folder not in self.names:
            keyed = self.names[folder] = {}
            for name in self.tree.names(folder):
                keyed.setdefault(collision_key(name), set()).add(name)
        return self.names[folder]


@dataclass(frozen=True)
class _Result:
    """The effect of one change: a removed path, a written path with entry and content, or both.

    `origin` is the blob that the content was made from, `kept` the regions both share, if known.
    """

    removes: bytes | None
    path: bytes | None
    entry: TreeEntry | None
    data: bytes
    is_new: bool
    line: int
    origin: str | None = None
    kept: list[Copy] | None = None


class StackBuilder:
    """Evaluates the stack function on one base."""

    def __init__(self, reader: ObjectReader, commit: str, tree: str) -> None:
        self._reader = reader
        self._commit = commit
        self._base_tree = tree

    def build(self, patches: Sequence[StackPatch], left_out: Iterable[StackPatch] = ()) -> Built:
        """Apply `patches` in order without `left_out`. Raises DoesNotApply. Writes nothing."""
        out = {id(p) for p in left_out}
        out_numbers = {i for i, p in enumerate(patches) if id(p) in out}
        # Stored, not deflated: deflating took a fifth of an apply of 200 patches, and inflating for the check came on
        # top. A stored pack is 2.5 times as large: 6 MB beside a base's 20.
        state = _State(TreeBuilder(base=self._base_tree, read=self._reader.tree_data), PackWriter(stored=True))
        self._prefetch(patches, state)
        weaves = self._weaves(patches, out_numbers, state)
        steps: list[StepResult] = []
        commit = self._commit
        for number, patch in enumerate(patches):
            touched = self._apply(number, patch, state, weaves, number in out_numbers)
            if number not in out_numbers:
                step = self._commit_step(patch, touched, state, commit)
                commit = step.commit
                steps.append(step)
        tree = steps[-1].tree if steps else self._base_tree
        at = self._commit, self._base_tree, commit, tree
        return Built(*at, steps, tree=state.tree, objects=state.objects)

    def _prefetch(self, patches: Sequence[StackPatch], state: _State) -> None:
        """Read every base blob that the patches need, in one go."""
        paths = {c.old_path for p in patches for c in p.patch.changes if c.old_path is not None}
        base = {path: entry for path in sorted(paths) if (entry := state.tree.get(path)) is not None}
        state.contents.update(self._reader.blobs(base, base))

    def _weaves(self, patches: Sequence[StackPatch], out: set[int], state: _State) -> dict[bytes, Weave]:
        """Return a weave for every file that a left-out patch changes before a kept one does: what comes last is left out as it is."""
        left = {path: i for i in sorted(out, reverse=True) for path in patches[i].paths}
        kept = {path: i for i, p in enumerate(patches) if i not in out for path in p.paths}
        both = sorted(path for path in left.keys() & kept.keys() if left[path] < kept[path])
        return {p: Weave(state.contents[p], out) for p in both if p in state.contents}

    def _apply(
        self, number: int, patch: StackPatch, state: _State, weaves: dict[bytes, Weave], out: bool
    ) -> list[Touched]:
        """Compute all changes on the tree before the patch, then do all removals, then all additions.

        So a folder can become a file, and two files can be swapped.
        """
        results: list[_Result] = []
        for change in patch.patch.changes:
            weave = weaves.get(change.path)
            if weave is not None:
                result = self._woven(number, patch, change, weave, state)
                results += [] if out else [result]
            elif not out:
                results.append(self._plain(patch, change, state))
        if out:
            return []
        results += [
            _Result(None, p.encode(), TreeEntry(REGULAR, object_id("blob", d)), d, True, 0)
            for p, d in patch.carried.items()
        ]
        names = {p for r in results for p in (r.removes, r.path) if p is not None}
        before = {p: state.tree.get(p) for p in sorted(names)}
        for result in results:
            if result.removes is not None:
                state.contents.pop(result.removes, None)
                state.tree.remove(result.removes)
        for result in results:
            self._write(patch, result, state)
        after = {p: state.tree.get(p) for p in before}
        return [Touched(p, b, after[p]) for p, b in before.items() if b != after[p]]

    def _plain(self, patch: StackPatch, change: FileChange, state: _State) -> _Result:
        where = Where(patch.shown, change.line)
        old = self._preimage(patch, change, state)
        content = b"" if old is None else self._content(change.old_path, old, state)
        data, kept = apply_and_tell(change, content, patch.shown)
        removes = change.old_path if change.kind in ("delete", "rename") else None
        if change.new_path is None:
            return _Result(removes, None, None, b"", False, change.line)
        mode = change.new_mode or (old.mode if old else REGULAR)
        oid = submodule_commit(data, change, where) if mode == GITLINK else object_id("blob", data)
        self._check_postimage(change, oid, where)
        origin = old.id if old else None
        return _Result(
            removes, change.new_path, TreeEntry(mode, oid), data, change.kind != "modify", change.line, origin, kept
        )

    def _woven(self, number: int, patch: StackPatch, change: FileChange, weave: Weave, state: _State) -> _Result:
        where = Where(patch.shown, change.line)
        if change.kind != "modify" or change.binary is not None or not change.hunks:
            hint = message("leave out every feature that changes this file, or none")
            raise DoesNotApply(
                message("a feature left out changes {path}, but not line by line", path=path_text(change.path)),
                where=where,
                hint=hint,
            )
        full = weave.full()
        self._check_id(change, change.old_path, object_id("blob", full), where)
        full = apply_change(change, full, patch.shown)
        self._check_postimage(change, object_id("blob", full), where)
        try:
            weave.apply(number, change.hunks)
        except Misfit as misfit:
            hunk = change.hunks[misfit.number]
            what = message(
                "{feature} builds on lines of a feature that is left out, in {path} line {line}",
                feature=patch.feature,
                path=path_text(change.path),
                line=hunk.old_start,
            )
            hint = message("leave out {feature} as well, or keep both", feature=patch.feature)
            raise DoesNotApply(what, where=Where(patch.shown, hunk.line), hint=hint) from None
        data = weave.content()
        old = state.tree.get(change.path)
        assert old is not None  # a file with a weave exists
        sets_mode = change.new_mode is not None and change.new_mode != change.old_mode
        if sets_mode and change.old_mode != old.mode and weave.keeps(number):
            what = message(
                "the patch changes the mode of {path}, which is {mode} without the features left out",
                path=path_text(change.path),
                mode=f"{old.mode:06o}",
            )
            raise DoesNotApply(
                what, where=where, hint=message("leave out {feature} as well, or keep both", feature=patch.feature)
            )
        mode = change.new_mode if sets_mode and change.new_mode else old.mode
        entry = TreeEntry(mode, object_id("blob", data))
        return _Result(None, change.path, entry, data, False, change.line, old.id)

    def _preimage(self, patch: StackPatch, change: FileChange, state: _State) -> TreeEntry | None:
        """Return the preimage after checking its existence, mode and blob id against the patch."""
        if change.old_path is None:
            return None
        where = Where(patch.shown, change.line)
        old = state.tree.get(change.old_path)
        if old is None:
            raise DoesNotApply(message("{path} is not in the tree", path=path_text(change.old_path)), where=where)
        if change.old_mode is None and old.mode not in (REGULAR, EXECUTABLE):
            what = message(
                "{path} has mode {mode}, which the patch does not state",
                path=path_text(change.old_path),
                mode=f"{old.mode:06o}",
            )
            raise DoesNotApply(what, where=where)
        if change.old_mode is not None and change.old_mode != old.mode:
            raise DoesNotApply(
                message(
                    "{path} has mode {mode}, the patch is for {wanted}",
                    path=path_text(change.old_path),
                    mode=f"{old.mode:06o}",
                    wanted=f"{change.old_mode:06o}",
                ),
                where=where,
            )
        self._check_id(change, change.old_path, old.id, where)
        return old

    def _check_id(self, change: FileChange, path: bytes | None, oid: str, where: Where) -> None:
        if change.old_id is not None and not oid.startswith(change.old_id):
            what = message(
                "{path} is blob {blob}, the patch is for {wanted}",
                path=path_text(path or change.path),
                blob=oid[:12],
                wanted=change.old_id[:12],
            )
            hint = message("the patch was made for another revision of this file, or its `index` line is wrong")
            raise DoesNotApply(what, where=where, hint=hint)

    def _content(self, path: bytes | None, entry: TreeEntry, state: _State) -> bytes:
        if entry.mode == GITLINK:
            return b"Subproject commit %s\n" % entry.id.encode()
        assert path is not None
        if path not in state.contents:
            state.contents[path] = self._reader.read(entry.id)[1]
        return state.contents[path]

    def _check_postimage(self, change: FileChange, oid: str, where: Where) -> None:
        if change.new_id is not None and not oid.startswith(change.new_id):
            what = message(
                "{path} becomes blob {blob}, the patch's `index` line promises {wanted}",
                path=path_text(change.path),
                blob=oid[:12],
                wanted=change.new_id[:12],
            )
            hint = message(
                "the patch was edited by hand: take the file back from git, and change it"
                " with `patchctl edit` and `patchctl export`"
            )
            raise DoesNotApply(what, where=where, hint=hint)

    def _write(self, patch: StackPatch, result: _Result, state: _State) -> None:
        if result.path is None or result.entry is None:
            return
        if result.is_new:
            self._check_new(result.path, Where(patch.shown, result.line or None), state)
        state.put(result.path, result.entry)
        if result.entry.mode == GITLINK:
            state.contents.pop(result.path, None)
        else:
            state.contents[result.path] = result.data
            if result.origin != result.entry.id:  # otherwise the base or this pack already has it
                state.objects.add_known(result.entry.id, "blob", result.data, result.origin, result.kept)

    def _check_new(self, path: bytes, where: Where, state: _State) -> None:
        """Check that a new path does not exist, is not below a file, and does not collide where case is ignored."""
        if state.tree.get(path) is not None:
            raise DoesNotApply(message("{path} already exists", path=path_text(path)), where=where)
        above = _above(path)
        if state.tree.is_folder(path) or any(state.tree.get(f) is not None for f in above):
            raise DoesNotApply(message("{path} cannot be a file and a folder", path=path_text(path)), where=where)
        for own in (path, *(f for f in above if not state.tree.is_folder(f))):
            twin = state.twin(own)
            if twin is not None:
                raise DoesNotApply(
                    message(
                        "{path} and {other} collide where case is ignored", path=path_text(own), other=path_text(twin)
                    ),
                    where=where,
                )

    def _commit_step(self, patch: StackPatch, touched: list[Touched], state: _State, parent: str) -> StepResult:
        tree = state.tree.write_to(lambda oid, data, before: state.objects.add_known(oid, "tree", data, before))
        header = patch.header
        author = Person(header.name, header.email, header.date)
        committer = Person(*COMMITTER, header.date)
        commit = state.objects.add("commit", render_commit(tree, [parent], author, committer, header.message))
        return StepResult(patch, commit, tree, tuple(touched))


def _above(path: bytes) -> list[bytes]:
    """Return the parent folders of a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def submodule_commit(data: bytes, change: FileChange, where: Where) -> str:
    """Return the commit in a submodule's one-line diff text: git diffs a submodule like a file of that line."""
    match = re.fullmatch(rb"Subproject commit ([0-9a-f]{40})\n", data)
    if match is None:
        raise DoesNotApply(
            message("{path} is a submodule, but the patch names no commit", path=path_text(change.path)), where=where
        )
    return match[1].decode()
