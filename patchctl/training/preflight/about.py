"""What a check says of itself, for the table of docs/preflight.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """Findings of one check. `names`: as printed, or a text that says what they are named after. `of`: what is looked at; `wrong`:
    when it blocks, or warns; `source`: documents, by their number, and issues, as PROJECT#NUMBER. All is Markdown of a page in docs/."""

    area: str
    names: tuple[str, ...] | str
    of: str
    wrong: str
    source: str = ""
