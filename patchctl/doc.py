"""What a field of a dataclass means, in an annotation: `name: Annotated[str, Doc("its name")]`.

Manifests and what `--json` prints are both described so; `manifest.shape` reads it, `output` writes by it.
"""

from __future__ import annotations


class Doc:
    """The meaning, for editors and readers of JSON. A class is printed by its fields and properties that have one.

    `key` is the key where the name cannot be it. `optional`: left out where the value is None. `line`: texts are put on one line
    that a terminal may show. `pairs`: records are written as lists of their values.
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
    """The keys of this record stand among those of the record that has it."""
