"""A patch file as the rules and the generated pages read it: its name, its lines, the paragraphs of its message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from patchctl.stack.patches import StackPatch


@dataclass(frozen=True)
class LintedPatch:
    """A patch file as rules see it: parsed, and its lines as they are."""

    source: StackPatch

    @cached_property
    def lines(self) -> list[bytes]:
        return self.source.data.split(b"\n")

    @cached_property
    def header_end(self) -> int:
        """0-based number of the first line of the diff."""
        return self.source.patch.changes[0].line - 1

    @property
    def kind(self) -> str:
        """feature or bugfix, by the file's name."""
        return self.source.file.name.split("-")[1] if self.source.file.name.count("-") >= 2 else ""

    @property
    def name(self) -> str:
        """The feature, by the file's name."""
        return self.source.file.stem.split("-", 2)[-1]

    def line_of(self, text: bytes) -> int:
        """The line of the header that begins with `text`, or 1."""
        found = (n for n, line in enumerate(self.lines[: self.header_end], 1) if line.startswith(text))
        return next(found, 1)

    def trailer_line(self, key: str) -> int:
        """Where a trailer stands, or where the trailers begin when it is not there."""
        trailers = self.source.header.trailers
        if key in trailers:
            return trailers[key][0].line
        return min((t.line for found in trailers.values() for t in found), default=self.line_of(b"Subject:"))

    @property
    def paragraphs(self) -> list[str]:
        """The body without its trailers, a string a paragraph."""
        header = self.source.header
        paragraphs = [p.strip("\n") for p in re.split(r"\n[ \t]*\n", header.body) if p.strip()]
        return paragraphs[:-1] if header.trailers else paragraphs
