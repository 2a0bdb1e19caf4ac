"""The README stays short, its figures are those of the benchmarks, and both languages show the same."""

from __future__ import annotations

import re

import pytest
from distribution import REPO
from documented import in_blocks, in_spans
from markdown_pages import section

READMES = ("README.md", "README.zh-CN.md")
CHINESE = REPO / "docs/zh-CN"
# The tutorial in Chinese is a text of its own: its commands are those of test_tutorial.py.
PAGES = sorted(p.relative_to(CHINESE).as_posix() for p in CHINESE.rglob("*.md") if p != CHINESE / "tutorial.md")
FIGURE = re.compile(r"\[([^\]]*)\]\(docs/benchmarks\.md#([^)]+)\)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def text(page: str) -> str:
    return (REPO / page).read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    return sorted(command for command, _ in (*in_blocks(REPO / page), *in_spans(REPO / page)))


def figures(page: str) -> list[tuple[str, str]]:
    """(number, heading of the benchmark that it links to)."""
    return [(number, anchor) for shown, anchor in FIGURE.findall(text(page)) for number in NUMBER.findall(shown)]


def test_the_readme_is_short() -> None:
    assert len(text("README.md").split()) < 800


def test_each_figure_is_in_its_benchmark() -> None:
    shown = figures("README.md")
    assert len({anchor for _, anchor in shown}) == 8
    assert [one for one in shown if one[0] not in NUMBER.findall(section(text("docs/benchmarks.md"), one[1]))] == []


def test_both_readmes_show_the_same_figures() -> None:
    assert figures(READMES[1]) == figures(READMES[0])


@pytest.mark.parametrize("pages", [READMES, *((f"docs/{name}", f"docs/zh-CN/{name}") for name in PAGES)], ids="=".join)
def test_both_languages_show_the_same_commands(pages: tuple[str, str]) -> None:
    english, chinese = map(commands, pages)
    assert chinese == english
