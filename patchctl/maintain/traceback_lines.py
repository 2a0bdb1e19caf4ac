"""Python's tracebacks in what launchers and collectors of logs have made of them (`log_lines`). The prefix of a frame's line stands
before the line of code below it, too."""

from __future__ import annotations

import re
from dataclasses import dataclass

from patchctl.maintain.log_lines import plain, without_note, without_prefix

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?!\d)(?:, in (?P<function>.+))?')


@dataclass(frozen=True)
class Frame:
    """A line of a file, `said` the text that the traceback gave for it, `function` the one it is in."""

    file: str
    line: int
    function: str | None
    said: str | None


def frames(text: str) -> list[Frame]:
    """The frames of all tracebacks in a text, in its order. Linear in its length."""
    found: list[Frame] = []
    lines = [plain(line) for line in text.splitlines()]
    for number, line in enumerate(lines):
        match = _FRAME.search(line)
        if match is None:
            continue
        below = lines[number + 1] if number + 1 < len(lines) else ""
        function = without_note(match["function"]).rstrip() if match["function"] else None
        found.append(Frame(match["file"], int(match["line"]), function, _said(line[: match.start()], below)))
    return found


def _said(before: str, below: str) -> str | None:
    """The code below a frame, of whose line `before` stood before `File`; None where the traceback shows none."""
    count, own = without_prefix(before)
    _, rest = without_prefix(below, count)
    said = without_note(rest).strip()
    # What is no code, the next frame or the error itself, begins no further right.
    is_code = said and _spaces(rest) > _spaces(own)
    return said if is_code and not _FRAME.search(below) else None


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
