#!/usr/bin/env python3
"""Writes facts.yaml beside it anew from the documents of the practice: which names and numbers stand in which section.

    python tests/unit/practice/write_facts.py 000=long.txt 003=dapo.txt "linked from 002=notes.txt"
    python tests/unit/practice/write_facts.py --check 003=dapo.txt        exit 1 when the file is not as it would be written

The tests here hold every `source:` of recipes and rules against that file. Documents that are not named stay as they are. A
variable of a shell script is replaced by its value, so that `n=${n_resp}` is known as n=16.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

# Works from a checkout that nobody has installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import yaml
from practice_documents import FACTS
from practice_words import spelled, words

from patchctl.training.recipes.conditions import BadExpression, evaluate

_ASSIGNED = re.compile(r"^(?:export )?([A-Za-z_]\w*)=(\S+)", re.MULTILINE | re.ASCII)
_SUM = re.compile(r"\$\(\((.*)\)\)")
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)


class Unfit(Exception):
    """A document that is not there, not known, or does not have its sections."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", metavar="NUMBER=FILE", help="a document, and where its text is")
    parser.add_argument("--facts", type=Path, default=FACTS, help="the file to write; by default the one beside this")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something would change")
    args = parser.parse_args(arguments)
    old = args.facts.read_text(encoding="utf-8")
    try:
        new = _written(yaml.safe_load(old), dict(_given(args.documents)), old[: old.index("\ndocuments:") + 1])
    except Unfit as error:
        parser.error(str(error))
    if args.check:
        print(f"{args.facts.name} is {'as written' if old == new else 'not as it would be written'}")
        return int(old != new)
    args.facts.write_text(new, encoding="utf-8")
    return 0


def _given(pairs: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        number, _, file = pair.partition("=")
        try:
            yield number, Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Unfit(f"{pair}: cannot be read: {error}; expected NUMBER=FILE, as in 003=dapo.txt") from error


def _written(facts: Mapping[str, Any], texts: Mapping[str, str], head: str) -> str:
    unknown = sorted(set(texts) - set(facts["documents"]))
    if unknown:
        raise Unfit(f"there is no document {', '.join(unknown)}; known: {', '.join(facts['documents'])}")
    lines = ["documents:"]
    for number, document in facts["documents"].items():
        text = texts.get(number)
        digest = hashlib.sha256(text.encode()).hexdigest() if text is not None else document["sha256"]
        lines += [f"  {json.dumps(number)}:", f"    sha256: {json.dumps(digest)}"]
        lines += [f"    note: {document['note']}"] if "note" in document else []
        lines += ["    sections:"]
        parts = _parts(number, document["sections"], text) if text is not None else None
        for name, section in document["sections"].items():
            found = " ".join(_shortest(parts[name])) if parts else section["words"]
            lines += [f"      {json.dumps(name)}:"]
            lines += [f"        begins: {json.dumps(section['begins'], ensure_ascii=False)}", "        words: >-"]
            lines += textwrap.wrap(
                found,
                118,
                initial_indent=" " * 10,
                subsequent_indent=" " * 10,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return head + "\n".join(lines) + "\n"


def _parts(number: str, sections: Mapping[str, Any], text: str) -> dict[str, str]:
    """The text of each section, with the values of shell variables put in."""
    resolved = _resolved(text)
    places: list[tuple[str, int]] = []
    place = 0
    for name, section in sections.items():
        place = resolved.find(section["begins"], place)
        if place < 0:
            raise Unfit(f"{number}, {name}: {section['begins']!r} is not in it, or not in this order")
        places.append((name, place))
    ends = [start for _, start in places[1:]] + [len(resolved)]
    return {name: resolved[start:end] for (name, start), end in zip(places, ends, strict=True)}


def _shortest(text: str) -> list[str]:
    """What a text spells, without the words that are parts of others, and without what is no name but a letter or two."""
    once = {word.lower(): word for word in spelled(text) if len(word) > 2 or not (word.isalpha() and word.islower())}
    implied = {part for word in once for part in words(word) if part != word}
    return sorted((word for low, word in once.items() if low not in implied), key=str.lower) or ["-"]


def _resolved(text: str) -> str:
    values: dict[str, str] = {}

    def value(written: str) -> str:
        total = _SUM.fullmatch(written)
        if total is None:
            return written
        try:
            return str(evaluate(total[1].replace("$", ""), lambda name: Fraction(values[name])))
        except (BadExpression, KeyError, ValueError):
            return written

    def line(written: str) -> str:
        # A line at a time: a script may give a variable another value further down.
        used = _USED.sub(lambda m: values.get(m[1], m[0]), written)
        used = re.sub(r"\$\(\((?:[^()]|\([^()]*\))*\)\)", lambda m: value(m[0]), used)
        assigned = _ASSIGNED.match(used)
        if assigned:
            values[assigned[1]] = assigned[2].strip("\"'")
        return used

    return "".join(map(line, text.splitlines(keepends=True)))


if __name__ == "__main__":
    sys.exit(main())
