"""Applies a file's change in memory: exactly where the patch says, or not at all. No fuzz, no offset, no search.

`git apply` and `patch` look elsewhere when a hunk does not fit where it says, and with repeated context they find the
wrong copy and report success. Here a shifted hunk is an error that says where its lines would have been found.
"""

from __future__ import annotations

from patchctl.errors import DoesNotApply, Where
from patchctl.patch.binary import apply_delta
from patchctl.patch.parse import FileChange, Hunk


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
    if change.binary is not None:
        return _apply_binary(change, before, name)
    if not change.hunks:
        if change.kind == "delete" and before:
            raise DoesNotApply(f"{_path(change)} is to be deleted as an empty file and is not empty", where=Where(name, change.line))
        return before
    lines = split_lines(before)
    out: list[bytes] = []
    taken = 0
    for hunk in change.hunks:
        first = hunk_position(hunk)
        last = first + len(hunk.old)
        if lines[first:last] != hunk.old or first > len(lines):
            raise _misfit(change, hunk, lines, name)
        out += lines[taken:first]
        if len(out) != _new_position(hunk):
            where = Where(name, hunk.line)
            raise DoesNotApply(f"the hunk's new side should begin at line {len(out) + 1} of {_path(change)}", where=where)
        out += hunk.new
        taken = last
    out += lines[taken:]
    if change.kind == "delete" and out:
        raise DoesNotApply(f"{_path(change)} still has lines after its deletion", where=Where(name, change.line))
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise DoesNotApply(f"a line without newline would end up inside {_path(change)}", where=Where(name, change.line))
    return b"".join(out)


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
        return apply_delta(before, change.binary.data)
    except (ValueError, IndexError) as error:
        raise DoesNotApply(f"binary patch of {_path(change)}: {error}", where=Where(name, change.binary.line)) from error


def _misfit(change: FileChange, hunk: Hunk, lines: list[bytes], name: str) -> DoesNotApply:
    """Say what is different, and where the lines are instead; worked out only after the failure."""
    where = Where(name, hunk.line)
    path = _path(change)
    first = hunk_position(hunk)
    found = [i + 1 for i in range(len(lines) - len(hunk.old) + 1) if lines[i : i + len(hunk.old)] == hunk.old]
    if found and hunk.old:
        places = ", ".join(map(str, found[:5]))
        return DoesNotApply(
            f"the hunk is for line {hunk.old_start} of {path}, and its lines stand at line {places}",
            where=where,
            hint="the file is not the one the patch was made for; patchctl never shifts a hunk",
        )
    for offset, line in enumerate(hunk.old):
        have = lines[first + offset] if first + offset < len(lines) else None
        if have != line:
            shown = "the end of the file" if have is None else ascii(have.decode("utf-8", "backslashreplace").rstrip("\n"))[:120]
            wanted = ascii(line.decode("utf-8", "backslashreplace").rstrip("\n"))[:120]
            return DoesNotApply(f"{path} line {first + offset + 1} is {shown}, the patch expects {wanted}", where=where)
    return DoesNotApply(f"{path} has only {len(lines)} lines", where=where)


def _path(change: FileChange) -> str:
    return ascii(change.path.decode("utf-8", "backslashreplace"))[1:-1]
