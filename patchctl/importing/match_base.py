"""Matches foreign patches against the tree that they apply to, one after the other and exactly.

It goes on after a fault, so that one run names them all.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import DoesNotApply, PatchctlError, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import REGULAR, Files, TreeEntry, object_id
from patchctl.importing.changes import Foreign, Section, Stripping, parse_sections, stripping
from patchctl.importing.types import ImportFault, Options
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import DamagedLock, read_lock
from patchctl.manifest.typeinfo import shape_of
from patchctl.manifest.types import Stack, StackName
from patchctl.patch.hunks import apply_change
from patchctl.patch.names import path_text
from patchctl.patch.parse import FileChange
from patchctl.stack.tree_lists import read_tree_list

ABSENT = "0" * 40
_IS_IN = "leave it out: the stack has it"
_EXACT = "its lines apply exactly all the same: --repair, or --repair-only ids, takes it"
_BARE = re.compile(rb"\s*(?:diff |--- |Index: |\*\*\* )")
_DEEPEST = 12
PinFiles = Callable[[Stack], Files]
"""The files of a stack's pin, where the distribution has no list of them. May raise SourceUnavailable."""


@dataclass
class Matched:
    """A patch that was laid on the tree: its changes with full ids, how its names were read, and what was mended."""

    foreign: Foreign
    changes: list[FileChange]
    stripping: Stripping
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _After:
    path: bytes
    entry: TreeEntry
    data: bytes


class BaseMatch:
    """The tree as it stands, and the faults so far. `way` is what a person can do with a patch that does not apply."""

    def __init__(self, reader: ObjectReader, files: Files, options: Options, form: str, way: str) -> None:
        self._reader = reader
        self._options = options
        self._form = form
        self._way = way
        self._contents: dict[bytes, bytes] = {}
        self._broken: dict[bytes, str] = {}  # files that a patch with a fault was to change: what follows says nothing
        self._writers: dict[bytes, str] = {}
        self._known: list[Stripping] = []
        self._leaving: set[bytes | None] = set()  # names that the patch at hand takes away
        self._base = files
        self.files: Files = dict(files)
        self.faults: list[ImportFault] = []
        self.lacking = False

    def add(self, foreign: Foreign) -> Matched:
        """Lay one patch on the tree. Its faults are in `faults`."""
        found = stripping(foreign, self.files, self._options, self._known)
        if isinstance(found, ImportFault):
            self.faults.append(found)
            return Matched(foreign, [], Stripping(1))
        self._known.append(found)
        changes, faults = parse_sections(foreign, found.parts, self._options)
        self.faults += faults
        matched = Matched(foreign, changes, found, [_said(found)] if found.prefix else [])
        for section in foreign.sections:  # what could not be read is not blamed again in the patches behind it
            paths = section.paths(found.parts, self._options.maps)
            if paths is not None and paths[1] not in {c.path for c in changes}:
                self._broken[paths[1]] = foreign.shown
        self._leaving = {c.old_path for c in changes if c.kind in ("delete", "rename")}
        after = [self._change(matched, change) for change in changes]
        for change in changes:
            if change.old_path is not None and change.kind in ("delete", "rename"):
                self.files.pop(change.old_path, None)
        for written in (a for a in after if a is not None):
            self.files[written.path] = written.entry
            self._contents[written.path] = written.data
        for change in changes:
            self._writers[change.path] = foreign.shown
        return matched

    def _change(self, matched: Matched, change: FileChange) -> _After | None:
        """The file after a change, or None: it goes away, or a fault was found, here or earlier in this file."""
        reads = change.old_path
        if reads is not None and reads in self._broken:
            self._broken[change.path] = self._broken[reads]
            return None
        try:
            return self._exactly(matched, change)
        except DoesNotApply as error:
            self._fault(matched, change, error)
            self._broken[change.path] = matched.foreign.shown
            return None

    def _exactly(self, matched: Matched, change: FileChange) -> _After | None:
        old = self._preimage(change)
        content = self._content(change.old_path) if old is not None else b""
        stale = old is not None and change.old_id is not None and not old.id.startswith(change.old_id)
        if stale and old is not None and old.id.startswith(change.new_id or "-"):
            what = f"{path_text(change.path)} is already as this patch leaves it{self._by(change)}"
            raise DoesNotApply(what, hint=_IS_IN)
        if stale and "ids" not in self._options.repair:
            exact = True
            try:
                apply_change(change, content, matched.foreign.shown)
            except DoesNotApply:
                exact = False
            raise DoesNotApply(self._mismatch(change, old), hint=_EXACT if exact else None)
        data = apply_change(change, content, matched.foreign.shown)
        oid = object_id("blob", data)
        self._settle_ids(matched, change, old, oid, stale)
        if change.new_path is None:
            return None
        there = change.new_path in self.files and change.new_path not in self._leaving
        if change.kind != "modify" and there and change.new_path != change.old_path:
            raise DoesNotApply(f"{path_text(change.new_path)} is there already{self._by(change)}")
        return _After(change.new_path, TreeEntry(change.new_mode or (old.mode if old else REGULAR), oid), data)

    def _preimage(self, change: FileChange) -> TreeEntry | None:
        if change.old_path is None:
            return None
        old = self.files.get(change.old_path)
        if old is None:
            self.lacking = True
            where = f" of the {self._form}" if self._form == "sdist" else ""
            raise DoesNotApply(f"{path_text(change.old_path)} is not in the tree{where}")
        if change.old_mode is not None and change.old_mode != old.mode:
            what = f"{path_text(change.old_path)} has mode {old.mode:06o}, the patch is for {change.old_mode:06o}"
            raise DoesNotApply(what)
        return old

    def _content(self, path: bytes | None) -> bytes:
        assert path is not None
        if path not in self._contents:
            self._contents[path] = self._reader.read(self.files[path].id)[1]
        return self._contents[path]

    def _mismatch(self, change: FileChange, old: TreeEntry | None) -> str:
        have = old.id[:12] if old else "not there"
        return f"{path_text(change.path)} is blob {have} here{self._by(change)}, the patch is for {(change.old_id or '')[:12]}"

    def _by(self, change: FileChange) -> str:
        writer = self._writers.get(change.old_path or change.path)
        return f", as {writer} leaves it" if writer else ""

    def _settle_ids(self, matched: Matched, change: FileChange, old: TreeEntry | None, oid: str, stale: bool) -> None:
        """Full ids of both sides, worked out; a fault where the patch's own are missing or false and nobody asked."""
        content = bool(change.hunks) or change.binary is not None
        name = path_text(change.path)
        false = change.new_id is not None and change.new_path is not None and not oid.startswith(change.new_id)
        if change.old_id is None and content:
            self._mend(
                matched,
                change,
                f"{name} has no `index` line: nothing says which file the change is for",
                f"ids: written for {name}, which it applies to exactly",
            )
        elif false and not stale:
            self._mend(
                matched,
                change,
                f"{name} becomes blob {oid[:12]}, the `index` line promises {change.new_id}",
                f"ids: {name} becomes {oid[:12]}, not {change.new_id}",
            )
        elif stale:
            matched.notes.append(
                f"ids: {name} was {change.old_id}, is {old.id[:12] if old else ''}; it applies exactly"
            )
        elif change.old_id is not None and len(change.old_id) < 40:
            matched.notes.append(f"{name}: the abbreviated ids were completed")
        if content or change.old_id is not None:
            change.old_id = old.id if old else ABSENT
            change.new_id = oid if change.new_path is not None else ABSENT

    def _mend(self, matched: Matched, change: FileChange, what: str, done: str) -> None:
        if "ids" in self._options.repair:
            matched.notes.append(done)
        else:
            self.faults.append(matched.foreign.fault(change.line - 1, "ids", what, "--repair, or --repair-only ids"))

    def _fault(self, matched: Matched, change: FileChange, error: DoesNotApply) -> None:
        line = error.where.line if error.where and error.where.line else change.line
        way = self._way.format(command=self._git_command(matched, lost=self._lost_ends(change)))
        hint = error.hint if error.hint in (_IS_IN, _EXACT) else self._placed(matched) or way
        if self.lacking and self._form == "sdist" and "is not in the tree" in error.what:
            hint = "--mirror UPSTREAM=URL: a git repository has every file"
        what = error.what
        if self._lost_ends(change):
            what += "; the file has CRLF line ends, and the patch lost them"
        self.faults.append(matched.foreign.fault(line - 1, "does-not-apply", what, hint))

    def _git_command(self, matched: Matched, *, lost: bool) -> str:
        """What git takes such a file with, in a work tree of the stack: `git am` knows mails alone, and merges where it has the blobs."""
        file = matched.foreign.message.mail.file
        file = shlex.quote(os.path.abspath(file) if os.path.exists(file) else file)
        ids = {s.old_id for s in matched.foreign.sections if s.moves or not s.is_new}
        known = {e.id[: len(i)] for i in ids for e in (*self._base.values(), *self.files.values())}
        merges = "" not in ids and ids <= known and not lost
        more = " --ignore-whitespace" if lost else ""
        if matched.stripping.parts != 1:
            more += f" -p{matched.stripping.parts}"
        if not _BARE.match(matched.foreign.message.mail.data):
            return f"`git am{' -3' if merges else ' --reject'}{more} {file}`"
        return f"`git apply{' --3way' if merges else ' --index'}{more} {file}` and `git commit`"

    def _lost_ends(self, change: FileChange) -> bool:
        """Whether the file here ends its lines with CRLF and the patch does not: a web page or a mail took them away."""
        if change.old_path not in self.files:
            return False
        lines = [line for hunk in change.hunks for line in (*hunk.old, *hunk.new)]
        return b"\r\n" in self._content(change.old_path) and not any(
            line.rstrip(b"\n").endswith(b"\r") for line in lines
        )

    def _placed(self, matched: Matched) -> str | None:
        """What places a patch that was made inside a folder: the one folder of the tree that has all files that it reads."""
        read = [c.old_path for c in matched.changes if c.old_path is not None]
        if not read or any(path in self.files for path in read):
            return None
        ends = [{f.removesuffix(path) for f in self.files if f.endswith(b"/" + path)} for path in read]
        folders = set.intersection(*ends)
        if len(folders) != 1:
            return None
        folder = os.fsdecode(folders.pop())
        tops = dict.fromkeys(os.fsdecode(c.path).split("/")[0] for c in matched.changes)
        maps = " ".join(f"--map {shlex.quote(f'{top}={folder}{top}')}" for top in tops)
        return f"{maps}: the patch was made in {folder}"


def _said(found: Stripping) -> str:
    return f"prefix {found.prefix.decode('utf-8', 'backslashreplace')!a} taken off its names, as --strip {found.parts}"


@dataclass(frozen=True)
class Candidate:
    """A stack that may be the base of a series."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    wanted: Annotated[
        int, Doc("number of preimage blobs named in the mails, except those that the mails create", key="blobs")
    ]
    at_pin: Annotated[int, Doc("number of these blobs present at the pin")]
    at_tip: Annotated[int, Doc("number of these blobs present after the stack's last patch")]
    paths_wanted: Annotated[int, Doc("number of files that the patches read", key="paths")]
    paths: Annotated[int, Doc("number of these files present after the stack's last patch", key="paths_found")]
    base_commit: Annotated[bool, Doc("true if a mail's `base-commit:` is the pin", key="named_as_base")]

    @property
    def rank(self) -> tuple[int, int, bool]:
        return max(self.at_pin, self.at_tip), self.paths, self.base_commit

    @property
    def name(self) -> str:
        return f"{self.upstream}/{self.stack}"


@dataclass(frozen=True)
class Target:
    """The stack to write. `like` is the stack whose pin a new one takes; None for an existing stack."""

    stack: Stack
    like: Stack | None
    candidates: tuple[Candidate, ...]

    @property
    def is_new(self) -> bool:
        return self.like is not None


class NoBase(PatchctlError):
    """No stack, or more than one, matches the series."""

    code = 4
    kind = "does-not-apply"


def find_target(
    dist: Distribution, name: str | None, series: Sequence[Foreign], options: Options, pin_files: PinFiles
) -> Target:
    """Return the stack named `name`, as UPSTREAM/STACK, created if necessary; without a name, the one with all the blobs.

    Raises NoBase, WrongUse for an invalid name.
    """
    upstream, _, wanted = (name or "").partition("/")
    if name:
        dist.upstream(upstream)
    stacks = [s for (u, _), s in dist.stacks.items() if not name or u == upstream]
    found = _candidates(dist, stacks, series, options, pin_files)
    known = dist.stacks.get((upstream, wanted))
    if known is not None:
        return Target(known, None, found)
    best = _best(found, any_of_one_pin=bool(name), dist=dist)
    like = dist.stacks[best.upstream, best.stack]
    if not name:
        return Target(like, None, found)
    _check_name(wanted)
    extends = like.name if best.at_tip > best.at_pin else None
    own = Stack(like.schema, like.upstream, wanted, like.pin, extends=extends, generated=like.generated)
    return Target(own, like, found)


def _check_name(name: str) -> None:
    if not shape_of(StackName).takes_text(name):
        raise WrongUse(f"{quoted(name)} is no name of a stack", hint="lower-case letters, digits, '.', '_', '-'")


def _best(found: Sequence[Candidate], any_of_one_pin: bool, dist: Distribution) -> Candidate:
    if not found:
        raise NoBase("there is no stack to lend a pin", hint="write its manifest first: docs/writing-patches.md")
    ranked = sorted(found, key=lambda c: c.rank, reverse=True)
    best = ranked[0]
    rivals = [c for c in ranked[1:] if c.rank == best.rank]
    if any_of_one_pin:
        pin = dist.stacks[best.upstream, best.stack].pin
        rivals = [c for c in rivals if dist.stacks[c.upstream, c.stack].pin != pin]
    table = "\n".join(f"  {line}" for line in (describe(c) for c in ranked[:10]))
    if best.rank[:2] == (0, 0):
        hint = "--stack UPSTREAM/STACK says where they belong; --strip or --map, where their paths have a prefix"
        raise NoBase(f"no stack has a file that these patches begin with\n{table}", hint=hint)
    if rivals:
        hint = "--stack UPSTREAM/STACK"
        if best.paths < best.paths_wanted and len({one.upstream for one in (best, *rivals)}) > 1:
            hint = "split what changes several upstreams (`filterdiff -i PATTERN`, of patchutils), then import each part with --stack"
        elif any_of_one_pin:
            hint = f"`patchctl pin {best.upstream} REVISION --name NAME` makes the stack on one of their pins; then the same import"
        raise NoBase(f"several stacks have what these patches begin with\n{table}", hint=hint)
    return best


def describe(found: Candidate) -> str:
    """Return one line on how well a stack fits."""
    named = "; a mail names its commit as base" if found.base_commit else ""
    if not found.wanted:
        return f"{found.name}: {found.paths} of {found.paths_wanted} paths, the patches name no blobs{named}"
    where = f"{found.at_tip} of {found.wanted} preimage blobs behind its last patch, {found.at_pin} at its pin"
    return f"{found.name}: {where}{named}"


def _candidates(
    dist: Distribution, stacks: Sequence[Stack], series: Sequence[Foreign], options: Options, pin_files: PinFiles
) -> tuple[Candidate, ...]:
    named = {f.message.base_commit for f in series}
    found = []
    for stack in stacks:
        files = _pin_files(dist, stack, pin_files)
        if files is None:
            continue
        ids = {p: e.id for p, e in files.items()}
        last = {**ids, **_after_patches(dist, stack)}
        read = _preimages(series, ids, options)
        by_id = [s for s in read if s.old_id]
        found.append(
            Candidate(
                stack.upstream,
                stack.name,
                len(by_id),
                sum(1 for s in by_id if _has(s, ids, options)),
                sum(1 for s in by_id if _has(s, last, options)),
                len(read),
                sum(1 for s in read if any(p in last for p in _readings(s, options))),
                stack.pin.identity in named,
            )
        )
    return tuple(sorted(found, key=lambda c: c.rank, reverse=True))


def _preimages(series: Sequence[Foreign], ids: Mapping[bytes, str], options: Options) -> list[Section]:
    """Return the sections that start from a file of the base, not from one written by an earlier patch of the series."""
    made: list[str] = []
    written: set[bytes] = set()
    found = []
    for section in (s for f in series for s in f.sections):
        own = section.old_id and any(m.startswith(section.old_id) or section.old_id.startswith(m) for m in made)
        path = next((p for p in _readings(section, options) if p in ids), None)
        if (section.moves or not section.is_new) and not own and path not in written:
            found.append(section)
        if section.new_id.strip("0"):
            made.append(section.new_id)
        if path is not None:
            written.add(path)
    return found


def _readings(section: Section, options: Options) -> list[bytes]:
    parts = [options.strip] if options.strip is not None else range(min(section.depth, _DEEPEST) + 1)
    return [p[0] for n in parts if (p := section.paths(n, options.maps))]


def _has(section: Section, ids: Mapping[bytes, str], options: Options) -> bool:
    return any(ids.get(p, "").startswith(section.old_id) for p in _readings(section, options))


def _pin_files(dist: Distribution, stack: Stack, pin_files: PinFiles) -> Files | None:
    listed = read_tree_list(dist.root, stack)
    if listed is not None:
        return listed.files
    try:
        return pin_files(stack)
    except PatchctlError:
        return None  # an unavailable stack is skipped; naming it explicitly reports the reason


def _after_patches(dist: Distribution, stack: Stack) -> dict[bytes, str]:
    """Return the ids of the files that a stack's patches change, from its lock; a deleted file has none."""
    try:
        lock = read_lock(dist.root, stack)
    except DamagedLock:
        return {}
    files = [f for p in (lock.patches if lock else ()) for f in p.files or ()]
    return {f.path.encode("utf-8", "surrogateescape"): f.after[1] if f.after else "" for f in files}
