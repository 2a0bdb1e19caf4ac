"""The links of a page in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
# Of the last kind GitHub makes a link as well; the end of a sentence is no part of it.
_TARGET = re.compile(
    r"\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)"
    r"|<(?P<angled>https?://[^>\s]+)>"
    r"|(?<![\w/])(?P<bare>https?://[^\s<>|()\[\]\"']*[^\s<>|()\[\]\"'.,;:!?])"
)
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, without those in code."""
    for _, line in prose(text):
        for found in _TARGET.finditer(_CODE.sub("", line)):
            yield found["target"] or found["angled"] or found["bare"]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside fenced code, with their index."""
    fence: str | None = None
    for index, line in enumerate(text.splitlines()):
        mark = _FENCE.match(line)
        if fence is not None:
            if mark is not None and mark[1].startswith(fence):
                fence = None
        elif mark is not None:
            fence = mark[1]
        else:
            yield index, line
