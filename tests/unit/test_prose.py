"""The English of pages, messages, help texts, docstrings and comments, by prose.yaml."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_pages import prose

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load(Path(__file__).with_name("prose.yaml").read_text(encoding="utf-8"))
PATTERNS = {re.compile(rule["what"]): rule["but"] for rule in RULES["not"]}
# Written by programs, from texts that are read where they are written; the practice's coverage quotes its documents.
GENERATED = {"json.md", "lint-rules.md", "metrics.md", "coverage.md", "switches.md", "parameters.md"}
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "standins/README.md", "examples/README.md")
    ),
    *sorted(p for f in ("docs", "docs/practice") for p in (ROOT / f).glob("*.md") if p.name not in GENERATED),
]
LIST = 5  # commas of a sentence that lists things
CODE = sorted(p for folder in ("patchctl", "scripts") for p in (ROOT / folder).rglob("*.py"))


def faults(text: str) -> Iterator[str]:
    """What the rules find in a text, with what to write instead."""
    plain = re.sub(r"`[^`]*`", "X", text)
    for pattern, instead in PATTERNS.items():
        for found in pattern.finditer(plain):
            yield f"{plain[max(found.start() - 30, 0) : found.end() + 20]!r}: {instead}"


def paragraphs(page: str) -> Iterator[str]:
    """The prose of a page, an item of a list by itself; no code, no table, no heading."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", "\n".join(line for _, line in prose(page))):
        lines = [line for line in block.splitlines() if not line.startswith(("    ", "|", "#"))]
        yield from (item for item in re.split(r"\n(?=\s*(?:- |\d+\. ))", "\n".join(lines)) if item.strip())


def sentences(paragraph: str) -> Iterator[str]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    plain = re.sub(r"`[^`]*`", "X", plain)
    yield from re.split(r"(?<=[.?!:;])\s+", " ".join(plain.split()))


def words_of(source: str) -> Iterator[str]:
    """Strings of two words and more, and comments: implicitly joined strings and comments of several lines as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield " ".join(node.value.split())
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("#! "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and block:
            yield " ".join(block)
            block = []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    read = [*paragraphs(text), *tables.splitlines()]
    assert [fault for one in read for fault in faults(" ".join(one.split()))] == []
    said = [s for one in paragraphs(text) for s in sentences(one) if s.count(",") < LIST]
    long = [s for s in said if len(s.split()) > RULES["limit"]]
    assert long == []


def test_code() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): said
        for path in CODE
        if (said := [fault for text in words_of(path.read_text(encoding="utf-8")) for fault in faults(text)])
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a workspace is of one of them", 2),
        ("the workspace is as it shall be", 1),
        ("the the word", 1),
        ("each is held against another", 1),
        ("run `it is of the` here", 0),
        ("most of the tests had had it", 0),
    ],
)
def test_the_rules_find_what_they_are_for(text: str, said: int) -> None:
    assert len([*faults(text)]) == said
