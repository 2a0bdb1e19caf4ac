"""The headings of a page in Markdown, as links reach them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.terminal.markdown import prose

_HEADING = re.compile(r"^ {0,3}(?P<level>#{1,6})[ \t]+(?P<title>.*?)[ \t]*#*[ \t]*$")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\([^)]*\)")
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


def anchors(text: str) -> set[str]:
    """The fragments that lead to the headings of a page, as GitHub makes them: `a heading` twice gives a-heading and
    a-heading-1."""
    return {anchor for _, _, anchor in _headings(text)}


def section(text: str, anchor: str) -> str:
    """A heading and what stands below it, down to the next one of its level or above; empty where there is none."""
    lines = text.splitlines()
    headings = list(_headings(text))
    for place, (start, level, name) in enumerate(headings):
        if name == anchor:
            ends = (line for line, other, _ in headings[place + 1 :] if other <= level)
            return "\n".join(lines[start : next(ends, len(lines))])
    return ""


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    """(index of the line, level, fragment) of each heading outside fenced code."""
    found: set[str] = set()
    for index, line in prose(text):
        heading = _HEADING.match(line)
        if heading is None:
            continue
        title = _LINK.sub(lambda m: m["text"], heading["title"]).replace("`", "").replace("*", "")
        anchor = name = _NOT_IN_ANCHOR.sub("", title.lower()).replace(" ", "-")
        count = 0
        while anchor in found:
            count += 1
            anchor = f"{name}-{count}"
        found.add(anchor)
        yield index, len(heading["level"]), anchor
