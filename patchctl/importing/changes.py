"""From sections to changes: how many folders to take off names, our strict parser on the result, and the policy of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchctl.errors import BadPatch
from patchctl.git.objects import TreeEntry
from patchctl.importing.sections import Section, read_sections, render
from patchctl.importing.types import ImportFault, Message, Options
from patchctl.patch.header import Header
from patchctl.patch.names import path_text
from patchctl.patch.parse import FileChange, Patch, parse_diff
from patchctl.patch.policy import check_patch

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
