"""Apply one file's change in memory, exactly where the patch says or not at all: no fuzz, no offset, no search.

`git apply` and `patch` look elsewhere when a hunk does not fit; where context repeats they pick the wrong copy and
report success. Here a shifted hunk is an error that says where its lines were found.
"""

from __future__ import annotations

from patchctl.delta import Copy, apply_delta
from patchctl.errors import DoesNotApply, Where
from patchctl.language import joined, message
from patchctl.patch.binary import MAX_INFLATED
from patchctl.patch.names import path_text
from patchctl.patch.parse import FileChange, Hunk

_WITH_CONTEXT = message("make the patch with three lines of context, as `patchctl export` does")


def split_lines(data: bytes) -> list[bytes]:
    """Split into lines that keep their newline. Unlike bytes.splitlines, a lone CR ends no line; b"" has no lines."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines]
    if last:
        lines.append(last)
    return lines


def apply_change(change: FileChange, before: bytes, name: str) -> bytes:
    """Return the file's content after `change`, given its content `before` (b"" for a new file).

    `name` is the patch file, for messages. Raises DoesNotApply with the patch file and the hunk's line.
    """
    return apply_and_tell(change, before, name)[0]


def apply_and_tell(change: FileChange, before: bytes, name: str) -> tuple[bytes, list[Copy] | None]:
    """Like `apply_change`, and also return the unchanged regions as Copy tuples; None for a change without hunks."""
    if change.binary is not None:
        return _apply_binary(change, before, name), None
    if not change.hunks:
        if change.kind == "delete" and before:
            raise DoesNotApply(
                message("the patch deletes {path} as an empty file, but it is not empty", path=path_text(change.path)),
                where=Where(name, change.line),
            )
        return before, None
    out: list[bytes] = []
    kept: list[Copy] = []
    at = line = shift = 0  # consumed bytes and lines of `before`; lines added so far
    made = 0  # bytes written to the result
    for hunk in change.hunks:
        first = hunk_position(hunk)
        old = b"".join(hunk.old)
        start = _locate(before, old, at, first - line)
        if start < 0:
            raise _misfit(change, hunk, before, name)
        end = start + len(old)
        _check_ends(change, hunk, before, end, name)
        if hunk.old_start == 1 and not hunk.old:
            what = message(
                "a hunk without context inserts after line 1 of {path}, which git reads as the start of the file",
                path=path_text(change.path),
            )
            raise DoesNotApply(what, where=Where(name, hunk.line), hint=_WITH_CONTEXT)
        if first + shift != _new_position(hunk):
            what = message(
                "the hunk's new side should begin at line {line} of {path}",
                line=first + shift + 1,
                path=path_text(change.path),
            )
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
            message("{path} still has lines after the patch deletes it", path=path_text(change.path)),
            where=Where(name, change.line),
        )
    return after, kept


def _locate(before: bytes, old: bytes, at: int, skip: int) -> int:
    """Return the offset of the line `skip` lines after the one at `at` if `old` is there, else -1."""
    for _ in range(skip):
        at = before.find(b"\n", at) + 1
        if not at:
            return -1
    return at if before.startswith(old, at) else -1


def _check_ends(change: FileChange, hunk: Hunk, before: bytes, end: int, name: str) -> None:
    """Check a hunk's end: only a file's last line may lack a newline, and context may be missing only there."""
    where = Where(name, hunk.line)
    if end == len(before):
        return
    if hunk.old and not hunk.old[-1].endswith(b"\n"):
        raise DoesNotApply(
            message("{path} continues where the patch expects its end", path=path_text(change.path)), where=where
        )
    if hunk.new and not hunk.new[-1].endswith(b"\n"):
        raise DoesNotApply(
            message("a line without a newline would end up in the middle of {path}", path=path_text(change.path)),
            where=where,
        )
    if not hunk.marks.endswith(b" "):
        what = message("the hunk has no trailing context, but {path} continues there", path=path_text(change.path))
        raise DoesNotApply(what, where=where, hint=_WITH_CONTEXT)


def hunk_position(hunk: Hunk) -> int:
    """Return the 0-based line where the old side begins. Without old lines, the hunk header names the line before."""
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
            message("binary patch of {path}: {error}", path=path_text(change.path), error=error),
            where=Where(name, change.binary.line),
        ) from error


def _misfit(change: FileChange, hunk: Hunk, before: bytes, name: str) -> DoesNotApply:
    """Build the error for a hunk that does not fit: what differs, and where its lines are instead."""
    where = Where(name, hunk.line)
    path = path_text(change.path)
    places = _places(before, b"".join(hunk.old)) if hunk.old else []
    if places:
        return DoesNotApply(
            message(
                "the hunk is for line {line} of {path}, but its lines are at line {names}",
                line=hunk.old_start,
                path=path,
                names=joined(map(str, places)),
            ),
            where=where,
            hint=message("the patch was made for another version of this file; patchctl never shifts a hunk"),
        )
    lines = split_lines(before)
    first = hunk_position(hunk)
    for offset, line in enumerate(hunk.old):
        have = lines[first + offset] if first + offset < len(lines) else None
        if have != line:
            shown = message("the end of the file") if have is None else _line(have)
            return DoesNotApply(
                message(
                    "{path} line {number} is {shown}, the patch expects {line}",
                    path=path,
                    number=first + offset + 1,
                    shown=shown,
                    line=_line(line),
                ),
                where=where,
            )
    return DoesNotApply(
        message("{path} has only {count} lines, or the hunks are out of order", path=path, count=len(lines)),
        where=where,
    )


def _places(before: bytes, old: bytes) -> list[int]:
    """Return up to five lines where `old` occurs. The search is bounded, since it only serves a message."""
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
    """Return one line escaped and cut to 120 characters, for a message."""
    return ascii(line[:120].decode("utf-8", "backslashreplace").rstrip("\n"))[:120]
