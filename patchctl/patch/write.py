"""Writes patch files: the same commit gives the same bytes on every machine and with every version of git.

No git makes these diffs, since git's own differ between versions and settings: function names after `@@`, rename
detection, the signature, quoting, `index` abbreviation (Electron#15389, #17598, #24895, #48797, #50121). The lines come
from difflib.SequenceMatcher without its heuristics for long files, whose result is fixed by its documentation.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from patchctl.patch.apply import split_lines
from patchctl.patch.header import Header
from patchctl.patch.names import quote
from patchctl.patch.parse import NO_NEWLINE

CONTEXT = 3
ZERO_COMMIT = "0" * 40
ZERO_ID = "0" * 40


@dataclass(frozen=True)
class Side:
    """A file on one side of a change: its mode, its blob id, its content."""

    mode: int
    id: str
    data: bytes


@dataclass(frozen=True)
class Difference:
    """A file before and after; None where it does not exist."""

    path: bytes
    before: Side | None
    after: Side | None


def render_patch(header: Header, differences: list[Difference], commit: str = ZERO_COMMIT) -> bytes:
    """A whole patch file: header, message, `---`, the differences in order of their paths."""
    head = "\n".join(
        [
            f"From {commit} Mon Sep 17 00:00:00 2001",
            f"From: {_mail_name(header.name)} <{header.email}>",
            f"Date: {mail_date(header.date)}",
            f"Subject: [PATCH] {header.subject}",
            "",
            header.body.strip("\n"),
            "---",
            "",
        ]
    )
    ordered = sorted(differences, key=lambda d: d.path)
    return head.encode("utf-8") + b"".join(render_difference(d) for d in ordered)


def mail_date(date: str) -> str:
    """git's `seconds zone` as a mail has it: Sat, 21 Nov 2026 00:00:00 +0000."""
    seconds, zone = date.split()
    offset = (int(zone[1:3]) * 60 + int(zone[3:5])) * 60 * (-1 if zone[0] == "-" else 1)
    t = time.gmtime(int(seconds) + offset)
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[t.tm_wday]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[t.tm_mon - 1]
    return f"{day}, {t.tm_mday} {month} {t.tm_year:04d} {t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} {zone}"


def _mail_name(name: str) -> str:
    """Quoted where a mail needs it; our own reader and git's take UTF-8 as it is."""
    if any(c in '()<>[]:;@\\,."' for c in name):
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return name


def render_difference(difference: Difference) -> bytes:
    """One `diff --git` section with full ids; b"" when nothing differs."""
    before, after = difference.before, difference.after
    if before == after:
        return b""
    old_name, new_name = quote(b"a/" + difference.path), quote(b"b/" + difference.path)
    lines = [b"diff --git %s %s\n" % (old_name, new_name)]
    if before is None and after is not None:
        lines.append(b"new file mode %06o\n" % after.mode)
    elif after is None and before is not None:
        lines.append(b"deleted file mode %06o\n" % before.mode)
    elif before is not None and after is not None and before.mode != after.mode:
        lines.append(b"old mode %06o\nnew mode %06o\n" % (before.mode, after.mode))
    old_id, new_id = (before.id if before else ZERO_ID), (after.id if after else ZERO_ID)
    if old_id == new_id:
        return b"".join(lines)
    mode = b" %06o" % after.mode if before and after and before.mode == after.mode else b""
    lines.append(b"index %s..%s%s\n" % (old_id.encode(), new_id.encode(), mode))
    old, new = before.data if before else b"", after.data if after else b""
    if b"\0" in old[:8000] or b"\0" in new[:8000]:
        return b"".join(lines) + b"GIT binary patch\n" + _binary(new) + _binary(old)
    hunks = _hunks(split_lines(old), split_lines(new)) if old or new else []  # an empty file comes or goes
    if hunks:
        lines.append(b"--- %s\n" % (old_name if before else b"/dev/null"))
        lines.append(b"+++ %s\n" % (new_name if after else b"/dev/null"))
    return b"".join(lines + hunks)


_Code = tuple[str, int, int, int, int]
"""As difflib has it: equal, replace, insert or delete; start and end in the old lines, start and end in the new."""


def _hunks(old: list[bytes], new: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    for group in _grouped(_slid_down(_codes(old, new), old, new)):
        first, last = group[0], group[-1]
        out.append(b"@@ -%s +%s @@\n" % (_span(first[1], last[2]), _span(first[3], last[4])))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_line(b" ", line) for line in old[i1:i2]]
                continue
            out += [_line(b"-", line) for line in old[i1:i2]]
            out += [_line(b"+", line) for line in new[j1:j2]]
    return out


def _codes(old: list[bytes], new: list[bytes]) -> list[_Code]:
    """difflib's opcodes. Equal lines at both ends are cut off before, since its time grows with the square."""
    shortest = min(len(old), len(new))
    head = 0
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    matcher = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    codes: list[_Code] = [("equal", 0, head, 0, head)]
    codes += [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in matcher.get_opcodes()]
    codes.append(("equal", len(old) - tail, len(old), len(new) - tail, len(new)))
    return codes


def _slid_down(codes: list[_Code], old: list[bytes], new: list[bytes]) -> list[_Code]:
    """An insertion or deletion between equal lines can stand in several places; it goes down as far as it can, as git
    has it: a new function then begins with its `def` and not with the blank lines before it."""
    out = list(codes)
    for k in range(1, len(out) - 1):
        tag, i1, i2, j1, j2 = out[k]
        if tag not in ("insert", "delete") or out[k - 1][0] != "equal" or out[k + 1][0] != "equal":
            continue
        lines, start, end = (new, j1, j2) if tag == "insert" else (old, i1, i2)
        room = out[k + 1][2] - out[k + 1][1] - (0 if k + 2 == len(out) else 1)
        by = 0
        while by < room and lines[start + by] == lines[end + by]:
            by += 1
        before, after = out[k - 1], out[k + 1]
        out[k - 1] = ("equal", before[1], before[2] + by, before[3], before[4] + by)
        out[k] = (tag, i1 + by, i2 + by, j1 + by, j2 + by)
        out[k + 1] = ("equal", after[1] + by, after[2], after[3] + by, after[4])
    return out


def _grouped(codes: list[_Code]) -> Iterator[list[_Code]]:
    """Changes with CONTEXT equal lines around them; those that share context are one hunk."""
    group: list[_Code] = []
    for number, (tag, i1, i2, j1, j2) in enumerate(codes):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
            continue
        is_last = number == len(codes) - 1
        if group and (is_last or i2 - i1 > 2 * CONTEXT):
            group.append((tag, i1, min(i2, i1 + CONTEXT), j1, min(j2, j1 + CONTEXT)))
            yield group
            group = []
        if not is_last:
            cut = 0 if group else max(0, i2 - i1 - CONTEXT)
            group.append((tag, i1 + cut, i2, j1 + cut, j2))
    if any(code[0] != "equal" for code in group):
        yield group


def _span(start: int, stop: int) -> bytes:
    """git's range: the count goes when it is 1; an empty side names the line before."""
    count = stop - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + NO_NEWLINE + b"\n"


def _binary(data: bytes) -> bytes:
    """One `literal` block: base 85 of the deflated file, 52 bytes a line."""
    import base64
    import zlib

    packed = zlib.compress(data, 9)
    lines = [b"literal %d\n" % len(data)]
    for at in range(0, len(packed), 52):
        chunk = packed[at : at + 52]
        length = len(chunk)
        letter = bytes([length + 64 if length <= 26 else length + 70])
        lines.append(letter + base64.b85encode(chunk, pad=True) + b"\n")
    return b"".join(lines) + b"\n"
