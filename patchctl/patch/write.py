"""Write patch files: the same commit gives the same bytes on every machine and with every version of git.

Does not call git, whose diffs depend on version and settings: function names after `@@`, rename detection, signature,
quoting, abbreviated `index` ids (Electron#15389, #17598, #24895, #48797, #50121). The lines come from
difflib.SequenceMatcher without its junk heuristic, so its documented algorithm fixes the result.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass

from patchctl.patch.header import Header
from patchctl.patch.hunks import split_lines
from patchctl.patch.names import quote
from patchctl.patch.parse import NO_NEWLINE

CONTEXT = 3
ZERO_COMMIT = "0" * 40
ZERO_ID = "0" * 40


@dataclass(frozen=True)
class Side:
    """One side of a change: mode, blob id and content."""

    mode: int
    id: str
    data: bytes


@dataclass(frozen=True)
class FileDiff:
    """A file before and after; None where it does not exist."""

    path: bytes
    before: Side | None
    after: Side | None


def render_patch(header: Header, differences: list[FileDiff], commit: str = ZERO_COMMIT) -> bytes:
    """Return a whole patch file: header, message, `---`, and the differences sorted by path."""
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
    """Convert git's `seconds zone` to a mail date: Sat, 21 Nov 2026 00:00:00 +0000."""
    seconds, zone = date.split()
    offset = (int(zone[1:3]) * 60 + int(zone[3:5])) * 60 * (-1 if zone[0] == "-" else 1)
    day, month, number, clock, year = time.asctime(time.gmtime(int(seconds) + offset)).split()  # in no locale
    return f"{day}, {number} {month} {year} {clock} {zone}"


def _mail_name(name: str) -> str:
    """Quote the name if the mail syntax needs it. UTF-8 stays: git and our parser accept it."""
    if any(c in '()<>[]:;@\\,."' for c in name):
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return name


def render_difference(difference: FileDiff) -> bytes:
    """Return one `diff --git` section with full ids; b"" if nothing differs."""
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
    hunks = _hunks(split_lines(old), split_lines(new)) if old or new else []  # an empty file is added or deleted
    if hunks:
        lines.append(b"--- %s\n" % (old_name if before else b"/dev/null"))
        lines.append(b"+++ %s\n" % (new_name if after else b"/dev/null"))
    return b"".join(lines + hunks)


_Code = tuple[str, int, int, int, int]
"""A difflib opcode: tag, start and end in the old lines, start and end in the new lines."""


def _hunks(old: list[bytes], new: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    matcher = difflib.SequenceMatcher(a=b"", b=b"")
    matcher.opcodes = _slid_down(_codes(old, new), old, new)  # type: ignore[attr-defined]  # what get_opcodes returns
    for group in matcher.get_grouped_opcodes(CONTEXT):
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
    """Return difflib's opcodes. Common lines at both ends are cut off first, since difflib's time is quadratic."""
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
    """Slide each insertion and deletion down as far as possible, as git does.

    A new function then starts with its `def` instead of the blank lines before it.
    """
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


def _span(start: int, stop: int) -> bytes:
    """Format a range as git does: a count of 1 is omitted, and an empty side names the line before."""
    count = stop - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + NO_NEWLINE + b"\n"


def _binary(data: bytes) -> bytes:
    """Return one `literal` block: the deflated file in base 85, 52 bytes per line."""
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
