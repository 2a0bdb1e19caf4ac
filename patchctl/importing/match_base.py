"""Matches foreign patches against the tree that they apply to, one after the other and exactly.

It goes on after a fault, so that one run names them all.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from patchctl.errors import DoesNotApply
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import REGULAR, Files, TreeEntry, object_id
from patchctl.importing.changes import Foreign, Stripping, parse_sections, stripping
from patchctl.importing.types import ImportFault, Options
from patchctl.patch.hunks import apply_change
from patchctl.patch.names import path_text
from patchctl.patch.parse import FileChange

ABSENT = "0" * 40
_IS_IN = "leave it out: the stack has it"
_BARE = re.compile(rb"\s*(?:diff |--- |Index: |\*\*\* )")


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
            raise DoesNotApply(self._mismatch(change, old))
        data = apply_change(change, content, matched.foreign.shown)
        oid = object_id("blob", data)
        self._settle_ids(matched, change, old, oid, stale)
        if change.new_path is None:
            return None
        if change.kind != "modify" and change.new_path in self.files and change.new_path != change.old_path:
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
        way = self._way.format(command=_git_command(matched.foreign, lost=self._lost_ends(change)))
        hint = _IS_IN if error.hint == _IS_IN else self._placed(matched) or way
        if self.lacking and self._form == "sdist" and "is not in the tree" in error.what:
            hint = "--mirror UPSTREAM=URL: a git repository has every file"
        what = error.what
        if self._lost_ends(change):
            what += "; the file has CRLF line ends, and the patch lost them"
        self.faults.append(matched.foreign.fault(line - 1, "does-not-apply", what, hint))

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


def _git_command(foreign: Foreign, *, lost: bool) -> str:
    """What git takes such a file with, in a work tree of the stack: `git am` knows mails alone."""
    file = shlex.quote(foreign.message.mail.file)
    more = " --ignore-whitespace" if lost else ""
    if not _BARE.match(foreign.message.mail.data):
        return f"`git am{more or ' -3'} {file}`"
    three_way = " --3way" if not lost and all(s.old_id for s in foreign.sections if not s.is_new) else ""
    return f"`git apply{more or three_way} {file}` and `git commit -a`"


def _said(found: Stripping) -> str:
    return f"prefix {found.prefix.decode('utf-8', 'backslashreplace')!a} taken off its names, as --strip {found.parts}"


def match_all(match: BaseMatch, series: Sequence[Foreign]) -> list[Matched]:
    """Every patch in order."""
    return [match.add(foreign) for foreign in series]
