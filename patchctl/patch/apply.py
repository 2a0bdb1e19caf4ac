"""Applies a file's change in memory: exactly where the patch says, or not at all. No fuzz, no offset, no search.

`git apply` and `patch` look elsewhere when a hunk does not fit where it says, and with repeated context they find the
wrong copy and report success. Here a shifted hunk is an error that says where its lines would have been found.
"""

from __future__ import annotations

from patchctl.delta import Copy, apply_delta
from patchctl.errors import DoesNotApply, Where
from patchctl.patch.binary import MAX_INFLATED
from patchctl.patch.names import path_text
from patchctl.patch.parse import FileChange, Hunk

_WITH_CONTEXT = "make the patch with three lines of context, as `patchctl export` does"


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newline; unlike bytes.splitlines, a lone CR ends no line. b"" has no lines."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines]
    if last:
        lines.append(last)
    return lines


def apply_change(change: FileChange, before: bytes, name: str) -> bytes:
    """The file's content after `change`, from its content before it (b"" for a new file).

    Raises DoesNotApply with the patch file and the hunk's line.
    """
    return apply_and_tell(change, before, name)[0]


def apply_and_tell(change: FileChange, before: bytes, name: str) -> tuple[bytes, list[Copy] | None]:
    """`apply_change`, and what lies around its hunks: where in the result, where in `before`, how much; None without hunks."""
    if change.binary is not None:
        return _apply_binary(change, before, name), None
    if not change.hunks:
        if change.kind == "delete" and before:
            raise DoesNotApply(
                f"{path_text(change.path)} is to be deleted as an empty file and is not empty",
                where=Where(name, change.line),
            )
        return before, None
    out: list[bytes] = []
    kept: list[Copy] = []
    at = line = shift = 0  # bytes and lines of `before` that are done, and how many lines more the result has by now
    made = 0  # bytes of the result
    for hunk in change.hunks:
        first = hunk_position(hunk)
        old = b"".join(hunk.old)
        start = _locate(before, old, at, first - line)
        if start < 0:
            raise _misfit(change, hunk, before, name)
        end = start + len(old)
        _check_ends(change, hunk, before, end, name)
        if hunk.old_start == 1 and not hunk.old:
            what = f"a hunk without context goes behind line 1 of {path_text(change.path)}, where git takes it for the file's start"
            raise DoesNotApply(what, where=Where(name, hunk.line), hint=_WITH_CONTEXT)
        if first + shift != _new_position(hunk):
            what = f"the hunk's new side should begin at line {first + shift + 1} of {path_text(change.path)}"
            raise DoesNotApply(what, where=Where(name, hunk.line))
        new = b"".join(hunk.new)
        kept.append(Copy(made, at, start - at))
        out += (before[at:start], new)
        made += start - at + len(new)
        at, line, shift = end, first + len(hunk.old), shift + len(hunk.new) - len(hunk.old)
    kept.append(Copy(made, at, len(before) - at))
    after = b"".join([*out, before[at:]])
    if change.kind == "delete" and after:
        raise DoesNotApply(
            f"{path_text(change.path)} still has lines after its deletion", where=Where(name, change.line)
        )
    return after, kept


def _locate(before: bytes, old: bytes, at: int, skip: int) -> int:
    """The offset of the line that stands `skip` lines after the line at `at`, if `old` stands there; else -1.

    A search within reach finds it at once unless the context is repeated; whatever is found counts only when it is on
    exactly that line. Otherwise the lines are counted.
    """
    reach = at + len(old) + 256 * skip
    start = before.find(old, at, reach) if old and skip else at
    if start > at and (before[start - 1] != 0x0A or before.count(b"\n", at, start) != skip):
        start = -1
    if start < 0 or (start == at and skip):
        start = at
        for _ in range(skip):
            start = before.find(b"\n", start) + 1
            if not start:
                return -1
    return start if before.startswith(old, start) else -1


def _check_ends(change: FileChange, hunk: Hunk, before: bytes, end: int, name: str) -> None:
    """What holds at a hunk's end: only a file's last line lacks a newline, and context is missing only where it ends."""
    where = Where(name, hunk.line)
    if end == len(before):
        return
    if hunk.old and not hunk.old[-1].endswith(b"\n"):
        raise DoesNotApply(f"{path_text(change.path)} goes on where the patch expects its end", where=where)
    if hunk.new and not hunk.new[-1].endswith(b"\n"):
        raise DoesNotApply(f"a line without newline would end up inside {path_text(change.path)}", where=where)
    if not hunk.marks.endswith(b" "):
        what = f"no context follows the hunk's last change, and {path_text(change.path)} goes on there"
        raise DoesNotApply(what, where=where, hint=_WITH_CONTEXT)


def hunk_position(hunk: Hunk) -> int:
    """The 0-based line where the hunk's old side begins. With no old lines, the header names the line before."""
    return hunk.old_start - 1 if hunk.old else hunk.old_start


def _new_position(hunk: Hunk) -> int:
    return hunk.new_start - 1 if hunk.new else hunk.new_start


def _apply_binary(change: FileChange, before: bytes, name: str) -> bytes:
    assert change.binary is not None
    if not change.binary.delta:
        return change.binary.data
    try:
        return apply_delta(before, change.binary.data, MAX_INFLATED)
    except (ValueError, IndexError) as error:
        raise DoesNotApply(
            f"binary patch of {path_text(change.path)}: {error}", where=Where(name, change.binary.line)
        ) from error


def _misfit(change: FileChange, hunk: Hunk, before: bytes, name: str) -> DoesNotApply:
    """Say what is different, and where the lines are instead; worked out only after the failure."""
    where = Where(name, hunk.line)
    path = path_text(change.path)
    places = _places(before, b"".join(hunk.old)) if hunk.old else []
    if places:
        return DoesNotApply(
            f"the hunk is for line {hunk.old_start} of {path}, and its lines stand at line {', '.join(map(str, places))}",
            where=where,
            hint="the file is not the one the patch was made for; patchctl never shifts a hunk",
        )
    lines = split_lines(before)
    first = hunk_position(hunk)
    for offset, line in enumerate(hunk.old):
        have = lines[first + offset] if first + offset < len(lines) else None
        if have != line:
            shown = "the end of the file" if have is None else _line(have)
            return DoesNotApply(
                f"{path} line {first + offset + 1} is {shown}, the patch expects {_line(line)}", where=where
            )
    return DoesNotApply(f"{path} has only {len(lines)} lines, or hunks that are out of order", where=where)


def _places(before: bytes, old: bytes) -> list[int]:
    """The first five lines where `old` stands; a bounded search, since it only serves a message."""
    places: list[int] = []
    at = before.find(old)
    for _ in range(1000):
        if at < 0 or len(places) == 5:
            break
        if at == 0 or before[at - 1] == 0x0A:
            places.append(before.count(b"\n", 0, at) + 1)
        at = before.find(old, at + 1)
    return places


def _line(line: bytes) -> str:
    """One line for a message: escaped, and no longer than a message may be."""
    return ascii(line[:120].decode("utf-8", "backslashreplace").rstrip("\n"))[:120]
