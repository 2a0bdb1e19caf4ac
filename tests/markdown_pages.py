"""Pages in Markdown: which there are, their headings as links reach them, their links, and the release of their commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
# Of the last kind GitHub makes a link as well; the end of a sentence is no part of it.
_TARGET = re.compile(
    r"\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)"
    r"|<(?P<angled>https?://[^>\s]+)>"
    r"|(?<![\w/])(?P<bare>https?://[^\s<>|()\[\]\"']*[^\s<>|()\[\]\"'.,;:!?])"
)
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")

_HEADING = re.compile(r"^ {0,3}(?P<level>#{1,6})[ \t]+(?P<title>.*?)[ \t]*#*[ \t]*$")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\([^)]*\)")
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


def pages_of(root: Path) -> Iterator[Path]:
    """Every page of a distribution: the READMEs, docs/ and examples/."""
    yield from sorted(root.glob("README*.md"))
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "examples").glob("*.md"))  # examples/stations has init's


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


def release_of_shell(line: str, before: str | None) -> str | None:
    """The release that PATCHCTL_RELEASE says after a line of a shell; `before` is what it said until then, None for nothing."""
    said = re.match(r"export PATCHCTL_RELEASE=(\S+)|unset PATCHCTL_RELEASE", line)
    return said[1] if said else before
