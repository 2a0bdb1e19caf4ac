"""The practice's documents by the words of their sections (facts.yaml), and what a `source:` names of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from practice_words import of_spelled

FACTS = Path(__file__).with_name("facts.yaml")
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


@dataclass(frozen=True)
class Documents:
    """The words of each section of each document."""

    sections: Mapping[str, Mapping[str, frozenset[str]]]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Documents:
        return cls(
            {
                number: {name: of_spelled(section["words"]) for name, section in document["sections"].items()}
                for number, document in facts["documents"].items()
            }
        )

    def places(self, credit: Credit) -> list[tuple[str, frozenset[str]]]:
        """The sections that a credit names, several joined by "and"; the whole document where it names none. Raises
        KeyError with what is not there."""
        if credit.document not in self.sections:
            raise KeyError(f"there is no document {credit.document} in {FACTS.name}")
        sections = self.sections[credit.document]
        if not credit.section:
            return [(credit.document, frozenset[str]().union(*sections.values()))]
        names = [credit.section] if _named(credit.section, sections) else credit.section.split(" and ")
        found = []
        for name in names:
            among = _named(name, sections)
            if not among:
                raise KeyError(f"{credit.document} has no section {name!r}; {FACTS.name} has {', '.join(sections)}")
            found.append((f"{credit.document}, {name}", frozenset[str]().union(*(sections[one] for one in among))))
        return found

    def words_of(self, number: str, section: str) -> frozenset[str]:
        """Those of one section; of the whole document where it has no section of that name."""
        sections = self.sections[number]
        return frozenset[str]().union(*(sections[name] for name in _named(section, sections) or sections))


def _named(name: str, sections: Collection[str]) -> list[str]:
    """The section, or those of which it is the beginning: "patch list" is "patch list, verl" and the others."""
    return [one for one in sections if one == name or one.startswith(f"{name}, ")]


def read_documents() -> Documents:
    return Documents.of(yaml.safe_load(FACTS.read_text(encoding="utf-8")))
