"""Strips what launchers, engines and log collectors add to lines, and reads Python tracebacks from such logs.

Prefixes come in any number and order: the process (Ray, vLLM: `(EngineCore_DP0 pid=8)`), the rank (torchrun: `[rank0]:`), times,
levels, the place that logged (`[executor.py:932]`), marks of quotes, exception groups and compose. Ray adds a note on repeated lines
at the end, and colours are anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_REPEATED = re.compile(r"\[repeated \d+x across [^\]]*\].*$")
_INDENT = re.compile(" *")
# Each takes the space behind it, but not the four spaces before code.
_PART = re.compile(
    r"""(?:
      \([^()]*\b(?:pid|ip|rank|node)=[^()]*\)            # (Worker_TP1 pid=8, ip=10.0.0.7)
    | \[[^\[\]]*\]:?                                     # [rank0]: [2026-06-04 12:00:01,123] [executor.py:932]
    | (?:\d{4}-)?\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?   # 06-04 12:00:01, 2026-06-04T12:00:01.5Z
    | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ [ \d]\d\ \d\d:\d\d:\d\d   # Jun  4 12:00:01
    | \d\d:\d\d:\d\d(?:[.,]\d+)?
    | (?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b:?
    | [DIWEF]\d{4}\ \d\d:\d\d:\d\d\.\d+\s+\d+\ [\w./-]+:\d+\]                        # E0604 12:00:01.000001 7 worker.py:9]
    | [\w./-]+\.(?:py|cc|cpp|go):\d+\]?:?                # executor.py:932]
    | std(?:out|err)\ [FP]                               # of container runtimes
    | [\w.-]+\[\d+\]:                                    # train[123]:
    | [\w.-]+[ ]+\|(?=[ ]|$)                             # compose: trainer-1  |
    | [>|]                                               # quotes, exception groups
    | \+(?:-+|\+)
    )[ ]?""",
    re.VERBOSE,
)


def plain(line: str) -> str:
    """The line without colours and other orders to a terminal."""
    return _ANSI.sub("", line)


def without_note(line: str) -> str:
    """The line without Ray's note behind it."""
    found = _REPEATED.search(line)
    return line[: found.start()].rstrip() if found else line


def without_prefix(line: str, most: int | None = None) -> tuple[int, str]:
    """How many parts of a prefix a line begins with, `most` at most, and what is left of it."""
    count = at = 0
    while (most is None or count < most) and (match := _PART.match(line, _INDENT.match(line, at).end())):  # type: ignore[union-attr]
        count, at = count + 1, match.end()
    return count, line[at:]


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?!\d)(?:, in (?P<function>.+))?')


@dataclass(frozen=True)
class Frame:
    """A line of a file, `said` its text in the traceback, `function` the one around it."""

    file: str
    line: int
    function: str | None
    said: str | None


def frames(text: str) -> list[Frame]:
    """The frames of all tracebacks in a text, in order. Linear in its length."""
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
    """The code below a frame, whose own line has `before` in front of `File`; None if the traceback shows none."""
    count, own = without_prefix(before)
    _, rest = without_prefix(below, count)
    said = without_note(rest).strip()
    # What is no code, the next frame or the error itself, begins no further right.
    is_code = said and _spaces(rest) > _spaces(own)
    return said if is_code and not _FRAME.search(below) else None


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
