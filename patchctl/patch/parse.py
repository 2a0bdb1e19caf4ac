"""Parse a patch file on bytes: mail header, message and git diff.

Grammar: git's Documentation/diff-generate-patch.txt and `git help format-patch`. Stricter than git where git guesses:
anything not understood is an error with its line, since a parser that skips what it does not know accepts patches
that do nothing (pnpm#9160, GNU patch, `git apply` in a subdirectory).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress

from patchctl.errors import BadPatch, Where
from patchctl.patch.binary import MAX_INFLATED, BinaryChange, parse_binary
from patchctl.patch.header import Header, parse_header, splits_mails
from patchctl.patch.names import header_names, parse_moved, parse_name

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?$")
_EXTENDED = re.compile(
    rb"((?:old|new|deleted file|new file) mode|(?:copy|rename) (?:from|to)|(?:similarity |dissimilarity )?index) "
)
_INDEX = re.compile(rb"([0-9a-f]{4,40})\.\.([0-9a-f]{4,40})(?: ([0-7]{6}))?$")
_DIFF = b"\ndiff --git "
NO_NEWLINE = b"\\ No newline at end of file"
# Translation tables that map a line's sign to whether that side has the line.
_OLD_HAS, _NEW_HAS = (bytes.maketrans(sign, b"\0") for sign in (b"+", b"-"))
_LONGEST_NAMES = 9000
MAX_LINE = 4 * 1024 * 1024
MAX_PATCH = 256 * 1024 * 1024


@dataclass(slots=True)
class Hunk:
    """One hunk: 1-based first line of each side from its header, the lines of each side, its line in the patch.

    `old` and `new` hold whole lines with their newline; only the last line of a file may lack it. `marks` has the
    sign of each line in patch order (b" ", b"-", b"+"), which blame needs and applying does not.
    """

    old_start: int
    new_start: int
    old: list[bytes]
    new: list[bytes]
    marks: bytes
    line: int


@dataclass(slots=True)
class FileChange:
    """What a patch does to one file. `old_path` is None for a new file, `new_path` None for a deleted one.

    Ids are as in the `index` line (full or abbreviated), None without one. Modes are None if they do not change and
    the patch does not state them.
    """

    old_path: bytes | None
    new_path: bytes | None
    line: int
    old_mode: int | None = None
    new_mode: int | None = None
    old_id: str | None = None
    new_id: str | None = None
    kind: str = "modify"  # add, delete, modify, rename, copy
    hunks: list[Hunk] = field(default_factory=list)
    binary: BinaryChange | None = None

    @property
    def path(self) -> bytes:
        """The path after the change, or the deleted path."""
        path = self.new_path if self.new_path is not None else self.old_path
        assert path is not None
        return path

    @property
    def counts(self) -> tuple[int, int]:
        """How many lines are added and removed."""
        marks = b"".join(h.marks for h in self.hunks)
        return marks.count(b"+"), marks.count(b"-")


@dataclass(slots=True)
class Patch:
    """A parsed patch file."""

    name: str
    header: Header
    changes: list[FileChange]


class LatePatch(Patch):
    """A patch whose header is parsed at once and whose changes are parsed on first access. Both raise BadPatch."""

    def __init__(self, data: bytes, name: str) -> None:
        begin = data.find(_DIFF)
        top = data if begin < 0 else data[: begin + len(_DIFF)]  # the header ends before the first section
        self.name = name
        self.header, self._start = parse_header(top.split(b"\n"), name)
        self._data = data

    @cached_property
    def changes(self) -> list[FileChange]:  # type: ignore[override]
        return _changes(self._data, self._start, self.name)


def parse_patch(data: bytes, name: str) -> Patch:
    """Parse the bytes of one patch file. `name` is the file's name in error messages.

    Raises BadPatch with file and line: no author, date, subject or hunk; CRLF in the header; counts that do not add
    up; two sections for one path; names that differ within a section; anything not understood.
    """
    if len(data) > MAX_PATCH:
        raise BadPatch(f"the patch is larger than {MAX_PATCH // 2**20} MiB", where=Where(name))
    patch = LatePatch(data, name)
    return Patch(name, patch.header, patch.changes)


def _changes(data: bytes, start: int, name: str) -> list[FileChange]:
    """Parse the diff, which starts at line `start` (0-based)."""
    lines = data.split(b"\n")
    cut_off = lines[-1] != b""
    if not cut_off:
        lines.pop()
    if len(data) > MAX_LINE and (longest := max(lines, key=len, default=b"")) and len(longest) > MAX_LINE:
        where = Where(name, lines.index(longest) + 1)
        raise BadPatch(f"a line is longer than {MAX_LINE // 2**20} MiB", where=where)
    changes = _Diff(lines, start, name, cut_off=cut_off).parse()
    if not changes:
        raise BadPatch("the patch changes nothing: no `diff --git` section was found", where=Where(name))
    return changes


def parse_diff(lines: list[bytes], name: str) -> list[FileChange]:
    """Parse a diff without mail header and message, given its lines without newlines. Raises BadPatch."""
    return _Diff(lines, 0, name, cut_off=False).parse()


class _Diff:
    """A cursor over the diff. Every method leaves it on the first line it did not consume."""

    def __init__(self, lines: list[bytes], start: int, name: str, *, cut_off: bool) -> None:
        self.lines = lines
        self.cut_off = cut_off  # the last line has no newline
        self.at = start
        self.name = name
        self.budget = MAX_INFLATED

    def bad(self, what: str, at: int | None = None) -> BadPatch:
        return BadPatch(what, where=Where(self.name, (self.at if at is None else at) + 1))

    def peek(self) -> bytes | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def parse(self) -> list[FileChange]:
        changes: list[FileChange] = []
        taken: dict[bytes, FileChange] = {}
        given: dict[bytes, FileChange] = {}
        while (line := self.peek()) is not None:
            if line.startswith(b"diff --git "):
                change = self.section()
                self.check_twice(change, taken, given)
                changes.append(change)
            elif (line in (b"-- ", b"--") and self.only_signature_left()) or (
                line == b"" and all(rest == b"" for rest in self.lines[self.at :])
            ):
                break
            else:
                raise self.bad(_not_understood(line))
        if self.at == len(self.lines) and self.cut_off:
            raise self.bad("the file is truncated in the middle of this line", self.at - 1)
        return changes

    def check_twice(self, change: FileChange, taken: dict[bytes, FileChange], given: dict[bytes, FileChange]) -> None:
        """Refuse a second section that reads or writes a path. A rename does one of each, so files can be swapped."""
        source = change.old_path if change.kind == "rename" and change.old_path is not None else change.path
        for path, seen in ((source, taken), (change.path, given)):
            if path in seen and not _changes_type(seen[path], change):
                what = f"second section for {_show(path)}; the first is at line {seen[path].line}"
                raise self.bad(what, change.line - 1)
            seen[path] = change

    def only_signature_left(self) -> bool:
        """Whether only `-- `, one line (git's version) and blank lines follow the last section."""
        rest = [x for x in self.lines[self.at + 1 :] if x.strip()]
        return len(rest) <= 1 and not any(x.startswith((b"diff ", b"@@")) or splits_mails(x) for x in rest)

    def section(self) -> FileChange:
        start = self.at
        line = self.lines[start]
        if len(line) > _LONGEST_NAMES:
            raise self.bad(f"the names are longer than {_LONGEST_NAMES} bytes")
        change = FileChange(None, None, start + 1)
        names = header_names(line[len(b"diff --git ") :])
        self.at += 1
        extended = self.extended(change)
        old_name, new_name = self.name_lines(change)
        self.check_pairs(extended, start)
        self.settle_names(change, names, extended, old_name, new_name, start)
        while (line2 := self.peek()) is not None and line2.startswith(b"@@"):
            change.hunks.append(self.hunk())
        self.check(change, old_name is not None, extended, start)
        return change

    def extended(self, change: FileChange) -> dict[str, bytes]:
        """Read the extended header lines between `diff --git` and `---`: modes, renames, copies, index."""
        found: dict[str, bytes] = {}
        while match := _EXTENDED.match(self.peek() or b""):
            word = match[1].decode()
            if word in found:
                raise self.bad(f"duplicate `{word}` in this section")
            found[word] = match.string[match.end() :]
            self.one_extended(change, word, found[word])
            self.at += 1
        return found

    def one_extended(self, change: FileChange, word: str, value: bytes) -> None:
        if word.endswith("mode"):
            mode = self.mode(value)
            if word in ("old mode", "deleted file mode"):
                change.old_mode = mode
            else:
                change.new_mode = mode
            change.kind = {"deleted file mode": "delete", "new file mode": "add"}.get(word, change.kind)
        elif word.startswith(("copy", "rename")):
            change.kind = word.split()[0]
        elif word == "index":
            match = _INDEX.fullmatch(value)
            if match is None:
                raise self.bad("an `index` line must read `index <id>..<id> [mode]`")
            change.old_id, change.new_id = match[1].decode(), match[2].decode()
            if match[3] is not None:
                change.old_mode = change.new_mode = self.mode(match[3])

    def mode(self, value: bytes) -> int:
        if re.fullmatch(rb"(100644|100755|120000|160000)", value) is None:
            raise self.bad(f"mode {_show(value)} is not one of git's file modes (100644, 100755, 120000, 160000)")
        return int(value, 8)

    def name_lines(self, change: FileChange) -> tuple[bytes | None, bytes | None]:
        """Read `---` and `+++`, or the binary patch in their place. Returns (None, None) without either."""
        line = self.peek()
        if line == b"GIT binary patch":
            change.binary, self.at, self.budget = parse_binary(self.lines, self.at, self.name, self.budget)
            return None, None
        if line is not None and line.startswith(b"Binary files "):
            raise self.bad("the patch lacks this binary file's content: make it with `git format-patch --binary`")
        if line is None or not line.startswith(b"--- "):
            return None, None
        old = line[4:]
        self.at += 1
        line = self.peek()
        if line is None or not line.startswith(b"+++ "):
            raise self.bad("`---` must be followed by `+++`")
        self.at += 1
        if not (self.peek() or b"").startswith(b"@@"):
            raise self.bad("no hunk follows `---` and `+++`")
        return old, line[4:]

    def settle_names(
        self,
        change: FileChange,
        names: list[tuple[bytes, bytes]],
        extended: dict[str, bytes],
        old_line: bytes | None,
        new_line: bytes | None,
        start: int,
    ) -> None:
        """Check that every line that names the file agrees; git and GNU patch each trust different ones."""
        if change.kind in ("rename", "copy"):
            pair = tuple(extended.get(f"{change.kind} {side}") for side in ("from", "to"))
            if pair[0] is None or pair[1] is None:
                raise self.bad(f"`{change.kind} from` and `{change.kind} to` belong together", start)
            old, new = parse_moved(pair[0]), parse_moved(pair[1])
        else:
            same = [a for a, b in names if a == b]
            if not same:
                raise self.bad("the two names of `diff --git` differ, and no rename or copy is declared", start)
            old = new = self.pick(same, old_line, new_line)
        if b"\0" in old + new or b"\r" in self.lines[start]:
            raise self.bad("a name contains a NUL or an unquoted carriage return, where git would end it", start)
        if (old, new) not in names:
            raise self.bad(f"`diff --git` does not name {_show(new)} as the lines below it do", start)
        expected_old = b"/dev/null" if change.kind == "add" else b"a/" + old
        expected_new = b"/dev/null" if change.kind == "delete" else b"b/" + new
        for given, expected in ((old_line, expected_old), (new_line, expected_new)):
            if given is not None and parse_name(given) != expected:
                raise self.bad(f"`---`/`+++` names {_show(parse_name(given))}, expected {_show(expected)}", start)
        change.old_path = None if change.kind == "add" else old
        change.new_path = None if change.kind == "delete" else new

    def pick(self, same: list[bytes], old_line: bytes | None, new_line: bytes | None) -> bytes:
        """Choose among the ways to split `diff --git a/x b/x`, ambiguous with blanks, by the `---` and `+++` lines."""
        for line, prefix in ((new_line, b"b/"), (old_line, b"a/")):
            if line is not None and (name := parse_name(line)).startswith(prefix) and name[2:] in same:
                return name[2:]
        return same[0]

    def hunk(self) -> Hunk:
        start = self.at
        match = _HUNK.fullmatch(self.lines[start])
        if match is None:
            raise self.bad("a hunk header must read `@@ -start,count +start,count @@`")
        old_count, new_count = int(match[2] or 1), int(match[4] or 1)
        hunk = Hunk(int(match[1]), int(match[3]), [], [], b"", start + 1)
        self.at += 1
        self.hunk_lines(hunk, old_count, new_count)
        old, new = len(hunk.old), len(hunk.new)
        if (old, new) != (old_count, new_count):
            raise self.bad(
                f"the hunk announces {old_count} old and {new_count} new lines but has {old} and {new}", start
            )
        if b"-" not in hunk.marks and b"+" not in hunk.marks:
            raise self.bad("the hunk changes nothing", start)
        return hunk

    def hunk_lines(self, hunk: Hunk, old_count: int, new_count: int) -> None:
        """Read the lines of a hunk until both counts are reached or a line does not belong to it."""
        marks = bytearray()
        short: list[tuple[list[bytes], int]] = []
        while True:
            run, signs = self.run(old_count - len(hunk.old), new_count - len(hunk.new))
            hunk.old += compress(run, signs.translate(_OLD_HAS))
            hunk.new += compress(run, signs.translate(_NEW_HAS))
            marks += signs
            self.at += len(run)
            if not (self.peek() or b"").startswith(b"\\ "):
                break
            short += self.no_newline(hunk, marks, self.at)
            self.at += 1
        if any(len(side) != length for side, length in short):
            raise BadPatch("`\\ No newline` is not after the hunk's last line", where=Where(self.name, hunk.line))
        hunk.marks = bytes(marks)

    def run(self, old: int, new: int) -> tuple[list[bytes], bytes]:
        """Return the next lines with newlines, and their signs, up to `old` old and `new` new ones or the hunk's end.

        Takes them all at once: line by line, this took a third of the time of reading a patch.
        """
        block = self.lines[self.at : self.at + max(old, 0) + max(new, 0)]
        # Mail programs strip the blank of an empty context line; git accepts that as well.
        signs = b"".join([line[:1] or b" " for line in block])
        end, taken = len(signs) - len(signs.lstrip(b" +-")), 0
        while taken < end:
            missing = max(old - taken + signs.count(b"+", 0, taken), new - taken + signs.count(b"-", 0, taken))
            if missing <= 0:
                break
            taken = min(taken + missing, end)
        return [line[1:] + b"\n" for line in block[:taken]], signs[:taken]

    def no_newline(self, hunk: Hunk, marks: bytearray, at: int) -> list[tuple[list[bytes], int]]:
        """Strip the newline of the last line; return the sides that must end there, with their lengths."""
        if not marks:
            raise self.bad("`\\ No newline` has no line before it", at)
        sides = {ord(b"-"): [hunk.old], ord(b"+"): [hunk.new], ord(b" "): [hunk.old, hunk.new]}[marks[-1]]
        for side in sides:
            if not side[-1].endswith(b"\n"):
                raise self.bad("duplicate `\\ No newline` for one line", at)
            side[-1] = side[-1][:-1]
        return [(side, len(side)) for side in sides]

    def check(self, change: FileChange, named: bool, extended: dict[str, bytes], start: int) -> None:
        """Check that a section changes something, and only what its kind allows."""
        modes = change.old_mode is not None and change.new_mode is not None and change.old_mode != change.new_mode
        content = bool(change.hunks) or change.binary is not None
        empty_file = change.kind in ("add", "delete")
        if not content and not modes and not empty_file and change.kind == "modify":
            raise self.bad(f"no hunk for {_show(change.path)}", start)
        if change.hunks and not named:
            raise self.bad("a hunk must follow `---` and `+++`", start)
        self.check_extended(change, extended, start)
        if change.kind == "add" and any(h.old for h in change.hunks):
            raise self.bad("a new file cannot have removed or context lines", start)
        if change.kind == "delete" and any(h.new for h in change.hunks):
            raise self.bad("a deleted file cannot have added or context lines", start)
        last = 0
        for hunk in change.hunks:
            first = hunk.old_start + (0 if hunk.old else 1)
            if first < 1 or first <= last:
                raise BadPatch(
                    "the hunk overlaps the previous one or starts before line 1", where=Where(self.name, hunk.line)
                )
            last = first + len(hunk.old) - 1

    def check_pairs(self, extended: dict[str, bytes], start: int) -> None:
        for one, other in (("old mode", "new mode"), ("rename from", "rename to"), ("copy from", "copy to")):
            if (one in extended) != (other in extended):
                raise self.bad(f"`{one}` and `{other}` belong together", start)

    def check_extended(self, change: FileChange, extended: dict[str, bytes], start: int) -> None:
        """Refuse extended header lines that contradict each other: git could trust others than this parser."""
        words = extended.keys()
        families = {"new file mode", "deleted file mode", "rename from", "copy from"} & words
        if len(families) > 1 or (families & {"new file mode", "deleted file mode"} and "old mode" in words):
            raise self.bad(f"{' and '.join(sorted(families | ({'old mode'} & words)))} contradict each other", start)
        if b" " in extended.get("index", b"") and any(word.endswith("mode") for word in words):
            raise self.bad("the `index` line names a mode, but so do other lines", start)
        for side, oid, absent in (
            ("old", change.old_id, change.kind == "add"),
            ("new", change.new_id, change.kind == "delete"),
        ):
            if oid is not None and absent != (oid.strip("0") == ""):
                raise self.bad(f"the `index` line's {side} id does not fit: zeros mean no file", start)
        if change.binary is not None and len(change.old_id or "") + len(change.new_id or "") < 80:
            raise self.bad("a binary patch needs an `index` line with full ids: use `--full-index`", start)


def _changes_type(first: FileChange, second: FileChange) -> bool:
    """Whether two sections turn a file into a link or back: git writes a deletion, then an addition."""
    pair = (first.kind, second.kind) == ("delete", "add")
    return pair and ((first.old_mode or 0) ^ (second.new_mode or 0)) & 0o170000 != 0


def _show(name: bytes) -> str:
    return ascii(name[:200].decode("utf-8", "backslashreplace"))


def _not_understood(line: bytes) -> str:
    if line.startswith((b"--- ", b"+++ ", b"@@ ")):
        return "a diff must start with `diff --git`: make patches with git, or with `patchctl export`"
    if line[:1].isdigit() and re.fullmatch(rb"[0-9,]+[acd][0-9,]*", line):
        return "this is an ed script or a normal diff; only git diffs are supported"
    return f"not understood: {_show(line[:80])}"
