"""The files that a new patch begins with: templates/*.in, with $-names for what is known of it.

What a person has to write is marked with `MARKER`, for which the lint rule `filled-in` looks in a patch's header. The test
fails until it is filled in, the probe raises, and the mutation names a file that is not there.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

MARKER = "TODO(new)"
_FOLDER = Path(__file__).with_name("templates")


def rendered(template: str, **values: str) -> str:
    """The text of templates/<template>.in."""
    return Template((_FOLDER / f"{template}.in").read_text(encoding="utf-8")).substitute(values)
