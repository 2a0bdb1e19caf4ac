"""What a `source:` names: documents of the practice with a section each, and other places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# "003, 4.5", "002, weights (USE_ALLTOALL_OVERLAP=1)" or "linked from 002 (32B)"; semicolons separate several.
_DOCUMENT = re.compile(r"(?P<name>(?:linked from )?[0-9]{3})(?:,? *(?P<section>.*))?", re.DOTALL)
_REMARK = re.compile(r"(?P<section>[^(]*?) *(?:\((?P<remark>.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Credit:
    """One place that a source names. `document` is "003" or "linked from 002", and None for other places.

    `text` is what follows the document: `section` and, in brackets, `remark`, or all of it for another place.
    """

    document: str | None
    text: str
    section: str
    remark: str


def credits_of(source: str) -> Iterator[Credit]:
    """The places in the order in which a source names them."""
    for part in " ".join(source.split()).split("; "):
        found = _DOCUMENT.fullmatch(part)
        text = (found["section"] or "") if found else part
        split = _REMARK.fullmatch(text)
        section, remark = (split["section"], split["remark"] or "") if split else (text, "")
        yield Credit(found["name"] if found else None, text, section, remark)
