"""Describes a dataclass field in its annotation: `name: Annotated[str, Doc("upstream name")]`.

Used for manifests and for the output of `--json`.
"""

from __future__ import annotations


class Doc:
    """The description of a field or property, for editors and readers of JSON. Only described ones are printed.

    `key` is the JSON key if it differs from the name. `optional`: omitted if None. `line`: strings are reduced to one line that
    is safe for a terminal. `pairs`: records are written as lists of their values.
    """

    def __init__(
        self, text: str, *, key: str | None = None, optional: bool = False, line: bool = False, pairs: bool = False
    ) -> None:
        self.text = text
        self.key = key
        self.optional = optional
        self.line = line
        self.pairs = pairs


class Spread:
    """Marks a record whose keys are merged into those of the record that contains it."""
