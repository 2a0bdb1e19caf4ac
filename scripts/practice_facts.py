#!/usr/bin/env python3
"""Writes manifests/facts.yaml anew from the documents of the practice: which names and numbers stand in which section.

    python scripts/practice_facts.py 000=long.txt 003=dapo.txt "linked from 002=notes.txt"
    python scripts/practice_facts.py --check 003=dapo.txt        exit 1 when the file is not as it would be written

`patchctl verify` holds every `source:` of recipes and rules against that file. Documents that are not named stay as they
are. A variable of a shell script is replaced by its value, so that `n=${n_resp}` is known as n=16.
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

# Works from a checkout that nobody has installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from patchctl.errors import DONE, FINDINGS, PatchctlError, WrongUse
from patchctl.terminal.failure import render_error
from patchctl.training.practice.credits import FACTS, read_facts
from patchctl.training.practice.types import Facts, Read
from patchctl.training.practice.words import spelled, words
from patchctl.training.recipes.arithmetic import BadExpression, evaluate

REPO = Path(__file__).resolve().parents[1]
_ASSIGNED = re.compile(r"^(?:export )?([A-Za-z_]\w*)=(\S+)", re.MULTILINE | re.ASCII)
_SUM = re.compile(r"\$\(\((.*)\)\)")
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", metavar="NUMBER=FILE", help="a document, and where its text is")
    parser.add_argument("--root", type=Path, default=REPO, help="the distribution; by default this checkout")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something would change")
    args = parser.parse_args(arguments)
    try:
        return _run(args.root / FACTS, dict(_given(args.documents)), check=args.check)
    except PatchctlError as error:
        render_error(error, as_json=False, program="practice_facts.py")
        return error.code


def _given(pairs: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        number, _, file = pair.partition("=")
        try:
            yield number, Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"{pair}: cannot be read: {error}", hint="NUMBER=FILE, as in 003=dapo.txt") from error


def _run(file: Path, texts: Mapping[str, str], *, check: bool) -> int:
    loaded = read_facts(file.parents[1])
    if loaded is None:
        raise WrongUse("there is no such file", where=str(file), hint="a checkout of the distribution")
    unknown = sorted(set(texts) - set(loaded.value.documents))
    if unknown:
        raise WrongUse(
            f"{file} has no document {', '.join(unknown)}", hint=f"known: {', '.join(loaded.value.documents)}"
        )
    old = file.read_text(encoding="utf-8")
    new = _written(loaded.value, texts, old[: old.index("schema: ")])
    if check:
        print(f"{file.name} is {'as written' if old == new else 'not as it would be written'}")
        return DONE if old == new else FINDINGS
    file.write_text(new, encoding="utf-8")
    return DONE


def _written(facts: Facts, texts: Mapping[str, str], head: str) -> str:
    lines = [f"schema: {facts.schema}", "", "documents:"]
    for number, document in facts.documents.items():
        text = texts.get(number)
        digest = hashlib.sha256(text.encode()).hexdigest() if text is not None else document.sha256
        lines += [f"  {json.dumps(number)}:", f"    sha256: {json.dumps(digest)}"]
        lines += [f"    note: {document.note}"] if document.note else []
        lines += ["    sections:"]
        parts = _parts(number, document, text) if text is not None else None
        for name, section in document.sections.items():
            found = " ".join(_shortest(parts[name])) if parts else section.words
            lines += [f"      {json.dumps(name)}:"]
            lines += [f"        begins: {json.dumps(section.begins, ensure_ascii=False)}", "        words: >-"]
            lines += textwrap.wrap(
                found, 118, initial_indent=" " * 10, subsequent_indent=" " * 10, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
    return head + "\n".join(lines) + "\n"


def _parts(number: str, document: Read, text: str) -> dict[str, str]:
    """The text of each section, with the values of shell variables put in."""
    resolved = _resolved(text)
    places: list[tuple[str, int]] = []
    place = 0
    for name, section in document.sections.items():
        place = resolved.find(section.begins, place)
        if place < 0:
            raise WrongUse(
                f"{number}, {name}: {section.begins!r} is not in it, or not in this order",
                hint=f"`begins` in {FACTS}",
            )
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
