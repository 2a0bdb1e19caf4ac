"""How a stack's patches fare on other revisions of their upstream: which fit, which moved, which are lost, and to which commit.

Releases are walked in order, so that a patch counts as taken by the release that took it even if a later one rewrote it, and the
commit that removed a hunk's lines is searched between two releases. On each release patches apply in stack order, each onto the
result of those before; one that does not arrive is left out. Verdicts are cached by the release's tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from patchctl.atomic import replace_file
from patchctl.catalog.evidence import Evidence
from patchctl.drift.api_diff import PatchedSource, Reader, changed_names, written_lines
from patchctl.drift.file_drift import FileJudge, FileOutcome, known_of, renamed, with_commits
from patchctl.drift.types import (
    ARRIVES,
    CONFLICT,
    EXACT,
    GONE,
    MOVED,
    NO_STACK,
    THREE_WAY,
    UNKNOWN,
    UPSTREAM,
    CallerDrift,
    FileDrift,
    PatchDrift,
    ReleaseDrift,
    StackDrift,
)
from patchctl.errors import DoesNotApply, PatchctlError, SourceUnavailable, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.manifest.typeinfo import BadRecord, parse
from patchctl.manifest.types import Stack, Upstream
from patchctl.patch.hunks import apply_change
from patchctl.patch.parse import FileChange
from patchctl.source.types import SourceOptions
from patchctl.source.upstream_releases import (
    IndexAnswer,
    RevisionTree,
    UpstreamRelease,
    UpstreamReleases,
    wanted_files,
)
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress

_Row = TypeVar("_Row", PatchDrift, CallerDrift)
# Raise it when the same files give another verdict.
ENGINE = 5
_WORST = (EXACT, MOVED, THREE_WAY, UPSTREAM, UNKNOWN, GONE, CONFLICT)


@dataclass(frozen=True)
class _Step:
    """A patch's change of one file, with the contents on the stack's own base; `change` is None for a carried file. Where the patch
    renames it, `after` is the content that it has under the new name, `renamed`."""

    path: bytes
    change: FileChange | None
    before: bytes | None
    after: bytes | None
    held: bool = True
    renamed: bytes | None = None

    def contents(self, content: bytes | None) -> dict[bytes, bytes | None]:
        """What stands where after it, with this content."""
        return {self.path: content} if self.renamed is None else {self.path: None, self.renamed: content}


@dataclass(frozen=True)
class _Prepared:
    """A stack, its base open, and each patch's steps."""

    stack: Stack
    base: UpstreamRelease
    tree: RevisionTree
    patches: Sequence[StackPatch]
    steps: Mapping[int, Sequence[_Step]]
    sources: Sequence[Sequence[PatchedSource]]
    not_in_sdist: frozenset[str]


@dataclass(frozen=True)
class _Walked:
    """A release's verdicts before the distribution's records are added; `key` is the cache's."""

    release: UpstreamRelease
    key: str
    found: Sequence[PatchDrift]


@dataclass
class Drifting:
    """One run over any number of stacks."""

    dist: Distribution
    options: SourceOptions
    progress: Progress
    judge: FileJudge = field(default_factory=FileJudge)
    _callers: dict[tuple[str, str], list[_Caller] | str] = field(default_factory=dict)
    _releases: dict[tuple[str, str], UpstreamReleases] = field(default_factory=dict)
    _answers: dict[str, IndexAnswer] = field(default_factory=dict)

    def stacks(self, wanted: Iterable[tuple[Stack, Sequence[str] | None]]) -> list[StackDrift]:
        """Each stack on its revisions. One whose source cannot be had is named beside what was found of the others. Raises
        SourceUnavailable where none can."""
        found, missing = [], list[SourceUnavailable]()
        for stack, against in wanted:
            try:
                found.append(self.stack(stack, against))
            except SourceUnavailable as error:
                missing.append(error)
                found.append(StackDrift(stack.upstream, stack.name, (), unavailable=tuple(error.tried)))
            finally:
                self.progress.finish()
        if missing and len(missing) == len(found):
            raise missing[0]
        return found

    def stack(self, stack: Stack, against: Sequence[str] | None) -> StackDrift:
        """The stack on these revisions, or on every newer one. Raises SourceUnavailable."""
        patches = load_patches(self.dist, stack)
        places = self._places(stack, patches)
        self.progress.of(f"drift of {stack.upstream}/{stack.name}")
        releases = places.newer() if against is None else places.named(against)
        base = places.base()
        with ExitStack() as open_:
            reader = open_.enter_context(ObjectReader(base.repo))
            prepared = _prepare(stack, base, RevisionTree(reader, base.tree), patches, _not_in_sdist(self.dist, stack))
            beside = _stacks_beside(self.dist, stack) if releases else ()
            seen = {f"{s.upstream}/{s.name}": self._calling(s) for s in beside}
            callers = [one for found in seen.values() if not isinstance(found, str) for one in found]
            rows: list[ReleaseDrift] = []
            walk = _Walked(base, "", [])
            for release in releases:
                self.progress.note(release.name)
                walk = self._found(prepared, release, walk)
                rows.append(self._judged_all(prepared, walk, rows, self._calls(prepared, release, callers)))
        unseen = tuple(f"{name}: {why}" for name, why in seen.items() if isinstance(why, str))
        return StackDrift(stack.upstream, stack.name, tuple(rows), unseen)

    def releases_of(self, stack: Stack) -> UpstreamReleases:
        """The revisions of a stack's upstream, in the places of this run."""
        return self._places(stack, load_patches(self.dist, stack))

    def _places(self, stack: Stack, patches: Sequence[StackPatch]) -> UpstreamReleases:
        key = stack.upstream, stack.name
        if key not in self._releases:  # an index is asked once a run
            every = [*patches, *self._patches_beside(stack)]  # what one stack has downloaded serves the others
            wanted = wanted_files(path for p in every for path in p.paths)
            upstream = self.dist.upstream(stack.upstream)
            self._releases[key] = UpstreamReleases(
                stack,
                upstream,
                self.options,
                self.progress,
                wanted,
                self._answers.setdefault(stack.upstream, IndexAnswer()),
            )
        return self._releases[key]

    def _patches_beside(self, stack: Stack) -> Iterator[StackPatch]:
        """The patches of the upstream's other stacks, as far as they can be read."""
        for (upstream, name), other in self.dist.stacks.items():
            if upstream == stack.upstream and name != stack.name:
                with contextlib.suppress(PatchctlError):
                    yield from load_patches(self.dist, other)

    def _calling(self, stack: Stack) -> list[_Caller] | str:
        """A stack's patches with the Python they write; or why they cannot be read."""
        key = stack.upstream, stack.name
        if key not in self._callers:
            try:
                patches = load_patches(self.dist, stack)
                base = self._places(stack, patches).base()
                with ObjectReader(base.repo) as reader:
                    found = _prepare(stack, base, RevisionTree(reader, base.tree), patches, frozenset())
                rows = zip(patches, found.sources, strict=True)
                self._callers[key] = [_Caller(stack, patch, tuple(sources)) for patch, sources in rows]
            except (
                PatchctlError
            ) as error:  # a fault of that stack, or no source: this one can be looked at all the same
                self._callers[key] = str(error)
        return self._callers[key]

    def _calls(self, stack: _Prepared, release: UpstreamRelease, callers: Sequence[_Caller]) -> list[CallerDrift]:
        tops = _tops_of(self.dist.upstream(stack.stack.upstream))
        callers = _naming(callers, tops)
        if not callers:
            return []
        sources = [[c.patch.shown, c.patch.digest, [s.path for s in c.sources]] for c in callers]
        cache = _Cache(self.options.cache, ["callers", sorted(tops), sources, stack.base.tree, release.tree])
        found = cache.recall(list[CallerDrift])
        if found is None:
            with ObjectReader(release.repo) as reader:
                found = list(_calls_in(callers, tops, stack.tree.text, RevisionTree(reader, release.tree).text))
            cache.keep(found)
        return found

    def _found(self, stack: _Prepared, release: UpstreamRelease, before: _Walked) -> _Walked:
        digests, walked = [p.digest for p in stack.patches], [before.key, before.release.commit, release.commit]
        history = walked if release.history else []
        parts = [digests, stack.base.commit, release.tree, release.form, history]
        cache = _Cache(self.options.cache, parts)
        found = cache.recall(list[PatchDrift])
        if found is None:
            with ObjectReader(release.repo) as reader:
                tree = RevisionTree(reader, release.tree)
                found = list(self._patches(stack, tree, release.form))
                known = known_of(before.found)
                found = with_commits(found, stack.patches, reader, before.release, release, known)
                names = (tuple(changed_names(sources, stack.tree.text, tree.text)) for sources in stack.sources)
                found = [replace(p, names=n) for p, n in zip(found, names, strict=True)]
            cache.keep(found)
        return _Walked(release, cache.key, found)

    def _judged_all(
        self, stack: _Prepared, walk: _Walked, earlier: Sequence[ReleaseDrift], callers: Sequence[CallerDrift]
    ) -> ReleaseDrift:
        release = walk.release
        taken = {p.feature: r.release for r in reversed(earlier) for p in r.patches if p.state == UPSTREAM}
        own = _stack_at(self.dist, stack.stack.upstream, release)
        done = tuple(self._judged(p, own, taken) for p in walk.found)
        called = (replace(c, proof=_unproven_with(self.dist, c, own) if own else NO_STACK) for c in callers)
        return ReleaseDrift(release.name, release.form, release.commit, done, tuple(called))

    def _judged(self, patch: PatchDrift, own: Stack | None, taken: Mapping[str, str]) -> PatchDrift:
        """Add what the distribution knows: whether it is proven there, whether an earlier release took it."""
        proof: str | None = NO_STACK
        if own is not None:
            there = next((p for p in load_patches(self.dist, own) if p.feature == patch.feature), None)
            lacks = f"{own.upstream}/{own.name} does not have it"
            proof = lacks if there is None else Evidence(self.dist).unproven(own, there)
        since = None if patch.state == UPSTREAM else taken.get(patch.feature, patch.taken)
        left, later = (own.dropped, own.postponed) if own is not None else ({}, {})
        name = patch.feature
        return replace(patch, proof=proof, taken=since, dropped=left.get(name), postponed=later.get(name))

    def _patches(self, stack: _Prepared, tree: RevisionTree, form: str) -> Iterator[PatchDrift]:
        ours: dict[bytes, bytes | None] = {}
        moved: dict[bytes, bytes | None] = {}
        modes: dict[bytes, int] = {}
        for number, patch in enumerate(stack.patches):
            rows: list[FileDrift] = []
            after: dict[bytes, bytes | None] = {}
            for step in stack.steps[number]:
                row, content = self._file(stack, step, tree, ours | after, moved, modes)
                if row.state == GONE and form == "sdist" and patch.feature in stack.not_in_sdist:
                    row = FileDrift(row.path, UNKNOWN)  # the pin's own sdist lacks files of this patch too
                rows.append(row)
                after |= step.contents(content)
            state = max((r.state for r in rows), key=_WORST.index, default=EXACT)
            state = _together(state, rows)
            if state in ARRIVES:
                ours |= after
            yield PatchDrift(patch.feature, patch.shown, state, tuple(rows))

    def _file(
        self,
        stack: _Prepared,
        step: _Step,
        tree: RevisionTree,
        ours: Mapping[bytes, bytes | None],
        moved: dict[bytes, bytes | None],
        modes: dict[bytes, int],
    ) -> tuple[FileDrift, bytes | None]:
        name = os.fsdecode(step.renamed or step.path)
        if not step.held:
            return FileDrift(name, UNKNOWN), None
        if (
            step.path not in moved
            and step.path not in ours
            and step.before is not None
            and stack.tree.entry(step.path) is not None  # no file of an earlier patch, which does not arrive
            and tree.entry(step.path) is None
        ):
            moved[step.path] = renamed(step.path, step.before, stack.tree, tree)
        target = moved.get(step.path)
        here = ours[step.path] if step.path in ours else tree.read(target or step.path)
        if step.path not in ours and (entry := tree.entry(target or step.path)) is not None:
            modes[step.path] = entry.mode
        outcome = self.judge.judge(step.change, step.before, step.after, here)
        if step.renamed is not None and here is not None:
            taken = ours[step.renamed] if step.renamed in ours else tree.read(step.renamed)
            if target not in (None, step.renamed) or (taken is not None and target is None):
                outcome = FileOutcome(CONFLICT)  # two new names for one file, or two files of one name
            elif step.before == step.after:  # a rename alone is for any content
                outcome = FileOutcome(UPSTREAM if target else EXACT, content=here)
        if step.change is not None and step.path in modes and here is not None:
            outcome = _with_mode(outcome, step.change, step, modes[step.path], here)
            if step.change.new_mode != step.change.old_mode and step.change.new_mode is not None:
                modes[step.path] = step.change.new_mode
        state = outcome.state
        if target is not None and state == EXACT:  # where upstream moves a file and the patch deletes it, git asks
            state = CONFLICT if step.after is None else MOVED
        return FileDrift(name, state, os.fsdecode(target) if target else None, outcome.hunks), outcome.content


def _with_mode(outcome: FileOutcome, change: FileChange, step: _Step, mode: int, here: bytes) -> FileOutcome:
    """The verdict on a file that upstream has with this mode: the stack function takes that of the patch alone, git's merge the other one
    of a side that changed it. A patch of the mode alone is for any content."""
    if change.old_mode is None or step.before is None:
        return outcome
    if change.new_mode not in (None, change.old_mode) and step.before == step.after:
        states = {change.old_mode: EXACT, change.new_mode: UPSTREAM}
        return FileOutcome(states.get(mode, CONFLICT), content=here)
    if outcome.state in (EXACT, MOVED) and mode != change.old_mode:
        return replace(outcome, state=THREE_WAY)
    return outcome


def _together(state: str, rows: Sequence[FileDrift]) -> str:
    """The patch's state: a lost file is a conflict, a patch that upstream has in part is a three-way merge."""
    if state == GONE:
        return CONFLICT
    if state == UPSTREAM and any(r.state != UPSTREAM for r in rows):
        return THREE_WAY
    return state


def _prepare(
    stack: Stack, base: UpstreamRelease, tree: RevisionTree, patches: Sequence[StackPatch], not_in_sdist: frozenset[str]
) -> _Prepared:
    contents: dict[bytes, bytes | None] = {}
    steps: dict[int, list[_Step]] = {}
    sources: list[list[PatchedSource]] = []
    for number, patch in enumerate(patches):
        steps[number] = [*_steps_of(patch, tree, contents)]
        for step in steps[number]:
            contents |= step.contents(step.after)
        sources.append(
            [
                PatchedSource(
                    path.decode("utf-8", "replace"), s.after, written_lines(s.change.hunks) if s.change else None
                )
                for s in steps[number]
                if s.after is not None and (path := s.renamed or s.path).endswith(b".py")
            ]
        )
    return _Prepared(stack, base, tree, patches, steps, sources, not_in_sdist)


def _steps_of(patch: StackPatch, tree: RevisionTree, contents: Mapping[bytes, bytes | None]) -> Iterator[_Step]:
    for change in patch.patch.changes:
        old = change.old_path
        before = None if old is None else contents[old] if old in contents else tree.read(old)
        if old is not None and before is None:
            yield _Step(old, change, None, None, held=False)
            continue
        try:
            after = apply_change(change, before or b"", patch.shown)
        except DoesNotApply as error:
            error.hint = error.hint or "`patchctl verify` says what is wrong with the stack on its own base"
            raise
        if old is None or change.kind == "copy":
            yield _Step(change.path, change if old is None else None, None, after)
        elif change.kind == "rename":
            yield _Step(old, change, before, after, renamed=change.path)
        else:
            yield _Step(old, change, before, None if change.kind == "delete" else after)
    for path, data in patch.carried.items():
        yield _Step(path.encode(), None, None, data)


def _not_in_sdist(dist: Distribution, stack: Stack) -> frozenset[str]:
    """The features that the pin's source distribution lacks files for, by the lock."""
    lock = read_lock(dist.root, stack)
    forms = [r.forms.get("sdist") for r in lock.results] if lock is not None else []
    return frozenset(f for form in forms if isinstance(form, LockedForm) for f in form.unavailable)


def _stack_at(dist: Distribution, upstream: str, release: UpstreamRelease) -> Stack | None:
    """The distribution's stack of this very revision."""
    for (name, _), stack in dist.stacks.items():
        sdist = stack.pin.sdist
        same = release.sha256 is not None and sdist is not None and sdist.sha256 == release.sha256
        if name == upstream and (same or stack.pin.commit == release.commit):
            return stack
    return None


class _Cache:
    """Verdict cache, keyed by patches, base, release tree and the path walked."""

    def __init__(self, root: Path, parts: Sequence[object]) -> None:
        self.key = hashlib.sha256(json.dumps([ENGINE, *parts]).encode()).hexdigest()
        self._file = root / "drift" / "verdicts" / self.key[:2] / f"{self.key[2:]}.json"

    def recall(self, kind: type[list[_Row]]) -> list[_Row] | None:
        with contextlib.suppress(OSError, BadRecord):
            return parse(kind, self._file.read_bytes())
        return None

    def keep(self, found: Iterable[PatchDrift | CallerDrift]) -> None:
        """Store the verdicts. If the cache cannot be written, the next run computes them again."""
        with contextlib.suppress(OSError):
            replace_file(self._file, json.dumps([asdict(p) for p in found]).encode())


@dataclass(frozen=True)
class _Caller:
    """A patch of another stack, with the Python that it writes."""

    stack: Stack
    patch: StackPatch
    sources: tuple[PatchedSource, ...]


def _stacks_beside(dist: Distribution, stack: Stack) -> list[Stack]:
    """The stacks of other upstreams that share a profile with this one."""
    shared = (p.stacks.items() for p in dist.every_profile() if p.stacks.get(stack.upstream) == stack.name)
    return [
        dist.stack(*name) for name in dict.fromkeys(n for names in shared for n in names) if name[0] != stack.upstream
    ]


def _tops_of(upstream: Upstream) -> frozenset[str]:
    """The top-level names that it is imported by: `megatron`, which has other packages in git."""
    return frozenset(package.partition(".")[0] for package in upstream.packages)


def _naming(callers: Iterable[_Caller], tops: frozenset[str]) -> list[_Caller]:
    """The callers whose files mention one of these names, with those files only."""
    words = [top.encode() for top in tops]
    found = (replace(c, sources=tuple(s for s in c.sources if any(w in s.data for w in words))) for c in callers)
    return [caller for caller in found if caller.sources]


def _calls_in(callers: Iterable[_Caller], tops: frozenset[str], old: Reader, new: Reader) -> Iterator[CallerDrift]:
    """The callers that use a name of the old tree that is gone or different in the new one."""
    before, after = cache(old), cache(new)
    for caller in callers:
        if names := changed_names(caller.sources, before, after, tops):
            stack, patch = caller.stack, caller.patch
            yield CallerDrift(stack.upstream, stack.name, patch.feature, patch.shown, tuple(names))


def _unproven_with(dist: Distribution, caller: CallerDrift, own: Stack) -> str | None:
    """Why no record shows that a caller works with this stack; None if one does, or if a stack beside this one dropped the patch."""
    near = _stacks_beside(dist, own)
    said = f"no stack of {caller.upstream} has it with {own.upstream}/{own.name}"
    for stack in (s for (upstream, _), s in dist.stacks.items() if upstream == caller.upstream):
        if stack in near and caller.feature in stack.dropped:
            return None
        patch = next((p for p in load_patches(dist, stack) if p.feature == caller.feature), None)
        if patch is not None and (said := Evidence(dist).unproven(stack, patch, own) or "") == "":
            return None
    return said


def names_upstreams(against: Sequence[str]) -> bool:
    """Whether every --against names its upstream: others are not meant then."""
    return bool(against) and all("=" in one for one in against)


def named_revisions(
    dist: Distribution, against: Sequence[str], chosen: Sequence[Stack], *, matrix: bool
) -> dict[str, list[str]]:
    """The revisions by upstream; an upstream that is not there is asked for all newer ones. Raises WrongUse."""
    upstreams = list(dict.fromkeys(s.upstream for s in chosen))
    named: dict[str, list[str]] = {}
    for one in against:
        upstream, equals, names = one.rpartition("=")
        if equals:
            dist.upstream(upstream)
            if upstream not in upstreams:
                raise WrongUse(f"--against {one}: no stack of {upstream} is looked at")
        revisions = [n for n in names.split(",") if n]
        if not revisions:
            raise WrongUse(f"--against takes revisions, not {one!r}", hint="for example --against v0.6.1,latest")
        for name in [upstream] if equals else upstreams:
            named.setdefault(name, []).extend(revisions)
    if not against and not matrix:
        return {name: ["latest"] for name in upstreams}
    return named
