"""From foreign diffs to changes: sections in git's own form, how many folders to take off names, our strict parser on the result, and
the policy of a stack.

Any prefix is taken (a/ b/, i/ w/ c/ o/, none, folders more), GNU diffs, and text between sections. `git apply` passes over whatever
stands between two sections; so does this. What it also passes over, and must not, are lines of a change behind a hunk whose
header counts too few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from patchctl.errors import BadPatch
from patchctl.git.objects import TreeEntry
from patchctl.importing.types import ImportFault, Message, Options
from patchctl.patch.header import Header
from patchctl.patch.names import parse_moved, parse_name, path_text, quote, unquote
from patchctl.patch.parse import FileChange, Patch, parse_diff
from patchctl.stack.patches import check_patch
from patchctl.terminal.text import one_line

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_EXTENDED = (
    b"old mode ",
    b"new mode ",
    b"deleted file mode ",
    b"new file mode ",
    b"similarity index ",
    b"dissimilarity index ",
    b"index ",
)
_INDEX = re.compile(rb"index (?:([0-9a-f]{4,40})|[0-9a-f]+)\.\.([0-9a-f]{4,40})?")
_MOVES = (b"copy from ", b"copy to ", b"rename from ", b"rename to ")
# What GNU, svn and Mercurial write behind the name of a file that is not there; GNU alone dates empty files.
_ABSENT = re.compile(rb"\t(1970-01-01|1969-12-31) \d\d:\d\d:\d\d|\tThu Jan +1 .* 1970|\t\(nonexistent\)")
_DATED = re.compile(rb"\t\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
# What a diff that is not git's says of changes that it does not hold.
_NOT_HELD = re.compile(
    rb"Binary files .* differ$|Only in .+: .|Cannot display: |(Added|Modified|Deleted): svn:(executable|special)"
    rb"|File .+ is an? .+ while file .+ is an? |Files .+ differ$"
)
DEV_NULL = b"/dev/null"

Line = tuple[bytes, int]
"""A line of the diff and its 0-based number there."""
Maps = Sequence[tuple[bytes, bytes]]


@dataclass
class Section:
    """What a diff says of one file, with names as they stand there. `names` are old and new of `---` and `+++`."""

    at: int
    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)
    names: tuple[bytes, bytes] | None = None
    moves: dict[bytes, bytes] = field(default_factory=dict)
    extended: list[Line] = field(default_factory=list)
    body: list[Line] = field(default_factory=list)
    is_git: bool = True

    @property
    def old_id(self) -> str:
        """What the `index` line begins with, or nothing."""
        return self._id(1)

    @property
    def new_id(self) -> str:
        return self._id(2)

    def _id(self, side: int) -> str:
        match = next((_INDEX.match(line) for line, _ in self.extended if line[:5] == b"index"), None)
        return (match[side] or b"").decode() if match else ""

    @property
    def is_new(self) -> bool:
        return (self.names is not None and self.names[0] == DEV_NULL) or self._says(b"new file mode ")

    @property
    def is_gone(self) -> bool:
        return (self.names is not None and self.names[1] == DEV_NULL) or self._says(b"deleted file mode ")

    def _says(self, word: bytes) -> bool:
        return any(line.startswith(word) for line, _ in self.extended)

    def paths(self, strip: int, maps: Maps) -> tuple[bytes, bytes] | None:
        """Old and new path less `strip` leading parts, then mapped; None when the names do not have so many, or do not
        agree. The same twice but for renames and copies."""
        pair = self._stripped(strip)
        return None if pair is None else (mapped(pair[0], maps), mapped(pair[1], maps))

    def _stripped(self, strip: int) -> tuple[bytes, bytes] | None:
        """Every place that names the file has to say the same."""
        named = None if self.names is None else [stripped(n, strip) for n in self.names if n != DEV_NULL]
        if self.moves:
            sides = [stripped(v, max(strip - 1, 0)) for _, v in sorted(self.moves.items())]  # from, to
            if len(sides) != 2 or named not in (None, sides) or not self._paired(sides[0], sides[1], strip):
                return None
            return (sides[0], sides[1]) if sides[0] and sides[1] else None
        if named is not None:
            same = min((n for n in named if n), key=len, default=None)
            if same is None or not all(n and self._names_same(n, same, strip) for n in named):
                return None
            return same, same
        for old, new in self.pairs:
            same = stripped(old, strip)
            if same and same == stripped(new, strip):
                return same, same
        return None

    def _names_same(self, name: bytes, same: bytes, strip: int) -> bool:
        """GNU diffs may name x.orig and x, git's only one name."""
        if self.is_git:
            return name == same and self._paired(same, same, strip)
        return name == same or (name[len(same) :] in (b".orig", b".old", b".bak", b"~") and name.startswith(same))

    def _paired(self, old: bytes | None, new: bytes | None, strip: int) -> bool:
        return any((stripped(a, strip), stripped(b, strip)) == (old, new) for a, b in self.pairs)

    @property
    def depth(self) -> int:
        """How many leading parts can be taken off its names at most."""
        names = [n for n in (self.names or ()) if n != DEV_NULL] or [n for p in self.pairs[:1] for n in p]
        return min((n.count(b"/") for n in names), default=0)


def stripped(name: bytes, parts: int) -> bytes | None:
    """The name less its leading parts, as `git apply -p` takes them off; None when it has not so many."""
    left = [p for p in name.split(b"/") if p or not parts]
    return b"/".join(left[parts:]) or None


def mapped(path: bytes, maps: Maps) -> bytes:
    """The path with the first OLD prefix that it has replaced by its NEW; an empty NEW is the tree itself."""
    for old, new in maps:
        if path == old or path.startswith(old + b"/"):
            return b"/".join(p for p in (new, path[len(old) :].lstrip(b"/")) if p)
    return path


def read_sections(lines: Sequence[bytes]) -> tuple[list[Section], list[tuple[int, str]]]:
    """The sections of a diff, and (line, fault) of what is none: a merge's diff, a hunk without names."""
    sections: list[Section] = []
    faults: list[tuple[int, str]] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git "):
            section, at = _git_section(lines, at)
        elif line.startswith(b"--- ") and _is_gnu(lines, at):
            if any(s.is_git for s in sections):  # something came between git's lines and these
                faults.append((at, "names of a file without `diff --git`, in a diff that has it elsewhere"))
            section, at = _gnu_section(lines, at)
        else:
            if line.startswith((b"diff --cc ", b"diff --combined ")):
                faults.append((at, "this is the diff of a merge, against several parents"))
            elif _NOT_HELD.match(line):
                faults.append((at, f"the diff does not hold this change: {one_line(line.decode('utf-8', 'replace'))}"))
            elif line.startswith(b"@@ "):
                what = "a hunk stands here without the names of its file"
                faults.append(
                    (at, what if _HUNK.match(line) else "this is no header of a hunk: @@ -line,count +line,count @@")
                )
                at = max(at, _skip_hunks(lines, at) - 1)
            at += 1
            continue
        sections.append(section)
        if section.body and section.body[-1][1] == at - 1 and at < len(lines) and _belongs_to_a_hunk(lines[at]):
            faults.append((at, "the hunk before this line counts fewer lines than it has"))
    return sections, faults


def _belongs_to_a_hunk(line: bytes) -> bool:
    signature = line.rstrip() == b"--" or line.startswith((b"--- ", b"---"))
    return line[:1] in (b"+", b"-") and not signature


def _git_section(lines: Sequence[bytes], at: int) -> tuple[Section, int]:
    section = Section(at, _pairs(lines[at][len(b"diff --git ") :]))
    at += 1
    while at < len(lines):
        line = lines[at]
        move = next((m for m in _MOVES if line.startswith(m)), None)
        if move is not None:
            section.moves[move.split()[1]] = parse_moved(line[len(move) :])
            section.extended.append((move, at))
        elif line.startswith(_EXTENDED):
            section.extended.append((line, at))
        else:
            break
        at += 1
    if at < len(lines) and lines[at].startswith((b"GIT binary patch", b"Binary files ")):
        end = _skip_binary(lines, at)
    elif at + 1 < len(lines) and lines[at].startswith(b"--- ") and lines[at + 1].startswith(b"+++ "):
        section.names = parse_name(lines[at][4:]), parse_name(lines[at + 1][4:])
        at += 2
        end = _skip_hunks(lines, at)
    else:
        end = at
    section.body = [(lines[i], i) for i in range(at, end)]
    return section, end


def _is_gnu(lines: Sequence[bytes], at: int) -> bool:
    return at + 2 < len(lines) and lines[at + 1].startswith(b"+++ ") and _HUNK.match(lines[at + 2]) is not None


def _gnu_section(lines: Sequence[bytes], at: int) -> tuple[Section, int]:
    """`--- x` and `+++ y` without git's line: what is new or goes shows in the name, the time or the hunk's counts."""
    section = Section(at, is_git=False)
    old, new = parse_name(lines[at][4:]), parse_name(lines[at + 1][4:])
    hunk = _HUNK.match(lines[at + 2])
    empty = [hunk is not None and hunk[n] == b"0" for n in (2, 4)]
    if old == DEV_NULL or (hunk and empty[0] and (_ABSENT.search(lines[at]) or not _DATED.search(lines[at]))):
        old = DEV_NULL
        section.extended.append((b"new file mode 100644", at))
    elif new == DEV_NULL or (empty[1] and _ABSENT.search(lines[at + 1])):
        new = DEV_NULL
        section.extended.append((b"deleted file mode 100644", at))
    section.names = old, new
    end = _skip_hunks(lines, at + 2)
    section.body = [(lines[i], i) for i in range(at + 2, end)]
    return section, end


def _skip_hunks(lines: Sequence[bytes], at: int) -> int:
    """The line after the hunks that begin at `at`, by their counts."""
    while at < len(lines) and (hunk := _HUNK.match(lines[at])) is not None:
        old, new = int(hunk[2] or 1), int(hunk[4] or 1)
        at += 1
        while at < len(lines) and (old > 0 or new > 0):
            sign = lines[at][:1]
            if sign not in (b" ", b"-", b"+", b"\\", b""):
                break
            old -= sign in (b" ", b"-", b"")
            new -= sign in (b" ", b"+", b"")
            at += 1
        while at < len(lines) and lines[at].startswith(b"\\ "):
            at += 1
    return at


def _skip_binary(lines: Sequence[bytes], at: int) -> int:
    at += 1
    while at < len(lines) and lines[at].startswith((b"literal ", b"delta ")):
        while at < len(lines) and lines[at] != b"":
            at += 1
        at += 1
    return min(at, len(lines))


def _pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """Every way to read OLD NEW behind `diff --git`; names with blanks are ambiguous, and the prefixes are anybody's."""
    try:
        if text.startswith(b'"'):
            old, rest = unquote(text)
            return [(old, parse_name(rest[1:]))]
        if text.endswith(b'"') and b' "' in text:
            old, _, rest = text.partition(b' "')
            return [(old, parse_name(b'"' + rest))]
    except ValueError:
        return []
    blanks = [i for i, byte in enumerate(text[:9000]) if byte == 0x20]
    return [(text[:i], text[i + 1 :]) for i in blanks]


def render(section: Section, old: bytes, new: bytes) -> Iterator[Line]:
    """The section as git writes it, each line with its number in the foreign diff."""
    at = section.at
    old_name, new_name = quote(b"a/" + old), quote(b"b/" + new)
    yield b"diff --git %s %s" % (old_name, new_name), at
    for line, number in section.extended:
        if line in _MOVES:
            line += quote(old if line.endswith(b"from ") else new)
        yield line, number
    if section.names is not None:
        first = section.body[0][1] if section.body else at
        yield b"--- " + (DEV_NULL if section.is_new else old_name), max(first - 2, at)
        yield b"+++ " + (DEV_NULL if section.is_gone else new_name), max(first - 1, at)
    yield from section.body


_DEEPEST = 12


@dataclass
class Foreign:
    """A message with its sections; faults of the diff itself are found when it is read."""

    message: Message
    sections: list[Section]
    faults: list[ImportFault]

    @property
    def shown(self) -> str:
        return self.message.mail.shown

    def fault(self, at: int, kind: str, what: str, hint: str | None = None) -> ImportFault:
        """A fault at the diff's line `at`."""
        line = self.message.place(at)
        return ImportFault(self.message.mail.file if line is not None else self.shown, line, kind, what, hint)


@dataclass(frozen=True)
class Stripping:
    """How names are read: `parts` leading ones go. `prefix` is what that takes off beyond a/ and b/."""

    parts: int
    prefix: bytes = b""


def read_diff(message: Message) -> Foreign:
    """The sections of a message's diff."""
    sections, faults = read_sections(message.diff)
    foreign = Foreign(message, sections, [])
    foreign.faults += [foreign.fault(at, "diff", what, "make the patch with `git format-patch`") for at, what in faults]
    return foreign


def stripping(
    foreign: Foreign, files: Mapping[bytes, TreeEntry], options: Options, known: Sequence[Stripping]
) -> Stripping | ImportFault:
    """How many leading parts of the names to take off, so that what the patch reads is in the tree, by blob id where it
    names one. Where several would do, 1 is taken if it is among them, as `git am` does, else none is: an ImportFault.

    `known` is what earlier patches had, for one that only adds files.
    """
    if options.strip is not None:
        return _stripping(foreign, options.strip)
    deepest = min(min((s.depth for s in foreign.sections), default=1), _DEEPEST)
    read = [s for s in foreign.sections if s.moves or not s.is_new]
    if not read:
        return _of_additions(foreign, files, options, known)
    scores = {n: _score(read, n, files, options) for n in range(deepest + 1)}
    best = max(scores.values())
    chosen = [n for n, score in scores.items() if score == best]
    if best == (0, 0) or 1 in chosen:
        return _stripping(foreign, 1)
    if len(chosen) == 1:
        return _stripping(foreign, chosen[0])
    what = f"its names fit the tree with {' and with '.join(map(str, chosen))} leading folders taken off"
    return foreign.fault(foreign.sections[0].at, "diff", what, "--strip N says which, as `git am -pN`")


def _score(read: Sequence[Section], parts: int, files: Mapping[bytes, TreeEntry], options: Options) -> tuple[int, int]:
    """How many of the sections name a file of the tree by its blob id, and how many by its path."""
    paths = [(s, s.paths(parts, options.maps)) for s in read]
    there = [(s, files[p[0]]) for s, p in paths if p and p[0] in files]
    return sum(1 for s, e in there if s.old_id and e.id.startswith(s.old_id)), len(there)


def _of_additions(
    foreign: Foreign, files: Mapping[bytes, TreeEntry], options: Options, known: Sequence[Stripping]
) -> Stripping:
    for earlier in known:
        if earlier.parts > 1 and _stripping(foreign, earlier.parts) == earlier:
            return earlier
    folders = {p.split(b"/", 1)[0] for p in files if b"/" in p}
    for parts in (1, 0, 2, 3, 4):  # the first reading that begins with a folder which the tree has
        paths = [s.paths(parts, options.maps) for s in foreign.sections]
        if all(p and p[1].split(b"/", 1)[0] in folders and b"/" in p[1] for p in paths):
            return _stripping(foreign, parts)
    return Stripping(1 if all(s.paths(1, ()) for s in foreign.sections) else 0)


def _stripping(foreign: Foreign, parts: int) -> Stripping:
    plain = next((p for s in foreign.sections if (p := s.paths(1, ()))), None)
    less = next((p for s in foreign.sections if (p := s.paths(parts, ()))), None)
    prefix = plain[1].removesuffix(less[1]) if plain and less and parts > 1 else b""
    return Stripping(parts, prefix)


def parse_sections(foreign: Foreign, parts: int, options: Options) -> tuple[list[FileChange], list[ImportFault]]:
    """Each section by our own parser, and every fault that it, the names or the policy of a stack finds."""
    changes: list[FileChange] = []
    faults: list[ImportFault] = []
    seen: dict[bytes, int] = {}
    for section in foreign.sections:
        change = _parse(foreign, section, parts, options, faults)
        if change is None:
            continue
        faults += _refused(foreign, change)
        path = change.path
        if path in seen and change.kind == "add" and changes[-1].kind == "delete":
            pass  # a file that becomes something else; the policy says what
        elif path in seen:
            first = foreign.message.place(seen[path]) or seen[path] + 1
            faults.append(
                foreign.fault(
                    section.at, "diff", f"a second section for {path_text(path)}, the first is at line {first}"
                )
            )
        seen.setdefault(path, section.at)
        changes.append(change)
    return changes, faults


def _parse(
    foreign: Foreign, section: Section, parts: int, options: Options, faults: list[ImportFault]
) -> FileChange | None:
    paths = section.paths(parts, options.maps)
    if paths is None:
        what = (
            f"its names cannot be read with {parts} leading folders taken off"
            if section.pairs or section.names
            else ("the names of `diff --git` cannot be read")
        )
        faults.append(foreign.fault(section.at, "diff", what, "--strip N, as `git am -pN`"))
        return None
    lines = list(render(section, *paths))
    try:
        change = parse_diff([line for line, _ in lines], foreign.shown)[0]
    except BadPatch as error:
        at = lines[min(error.where.line or 1, len(lines)) - 1][1] if error.where else section.at
        faults.append(foreign.fault(at, "diff", error.what, error.hint or "ask for the patch anew: `git format-patch`"))
        return None
    change.line = section.at + 1
    for hunk in change.hunks:
        hunk.line = lines[hunk.line - 1][1] + 1
    if not section.is_git:
        change.old_mode = None  # a GNU diff names no modes
    return change


def _refused(foreign: Foreign, change: FileChange) -> list[ImportFault]:
    try:
        check_patch(Patch(foreign.shown, _NOBODY, [change]))
    except BadPatch as error:
        hint = "--strip or --map, if the folder is not meant" if "leaves the tree" in error.what else None
        return [foreign.fault(change.line - 1, "policy", error.what, hint or "take this file out of the patch")]
    return []


_NOBODY = Header("", "", "0 +0000", "", "")
