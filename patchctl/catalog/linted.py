"""A patch file as rules and generated pages read it: its name, its lines, the paragraphs of its message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from patchctl.stack.patches import StackPatch


@dataclass(frozen=True)
class LintedPatch:
    """A parsed patch file with its raw lines."""

    source: StackPatch

    @cached_property
    def lines(self) -> list[bytes]:
        return self.source.data.split(b"\n")

    @cached_property
    def header_end(self) -> int:
        """The 0-based number of the diff's first line."""
        return self.source.patch.changes[0].line - 1

    @property
    def kind(self) -> str:
        """feature or bugfix, from the file name."""
        return self.source.file.name.split("-")[1] if self.source.file.name.count("-") >= 2 else ""

    @property
    def name(self) -> str:
        """The feature, from the file name."""
        return self.source.file.stem.split("-", 2)[-1]

    def line_of(self, text: bytes) -> int:
        """Return the header line that starts with `text`, or 1."""
        found = (n for n, line in enumerate(self.lines[: self.header_end], 1) if line.startswith(text))
        return next(found, 1)

    def trailer_line(self, key: str) -> int:
        """Return the line of a trailer, or of the first trailer if it is missing."""
        trailers = self.source.header.trailers
        if key in trailers:
            return trailers[key][0].line
        return min((t.line for found in trailers.values() for t in found), default=self.line_of(b"Subject:"))

    @property
    def paragraphs(self) -> list[str]:
        """The paragraphs of the body, without trailers."""
        header = self.source.header
        paragraphs = [p.strip("\n") for p in re.split(r"\n[ \t]*\n", header.body) if p.strip()]
        return paragraphs[:-1] if header.trailers else paragraphs
