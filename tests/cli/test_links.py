"""Every relative link of every page leads to a file, and its fragment to a heading; and docs/links.md, which lists the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from distribution import REPO, make_distribution, write_files
from markdown_headings import anchors

from patchctl.catalog.links import pages_of
from patchctl.terminal.markdown import links

PAGES = [page.relative_to(REPO) for page in pages_of(REPO)]


def faults(root: Path, page: Path) -> list[str]:
    found = []
    for link in links((root / page).read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, heading = link.partition("#")
        target = (root / page.parent / path) if path else root / page
        if not target.exists() or not target.resolve().is_relative_to(root.resolve()):
            found.append(f"{link}: no such file")
        elif heading and heading not in anchors(target.read_text(encoding="utf-8")):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert faults(REPO, page) == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    text = "# A\n\n[a](#a) [b](#b) [c](c.md) [d](d.md#d-1) `[e](e.md)` <https://example.com/x>\n\n```\n[f](f.md)\n```\n"
    write_files(tmp_path, {"a.md": text, "d.md": "## D\n\n## `D`\n"})
    assert faults(tmp_path, Path("a.md")) == ["#b: no such heading", "c.md: no such file"]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## What it *does* not do", "what-it-does-not-do"),
        ("# `patchctl env`: variables", "patchctl-env-variables"),
        ("### [Data](data.md) and weights", "data-and-weights"),
        ("## 框架与补丁", "框架与补丁"),
        ("## sam_proposer: the suffix automaton", "sam_proposer-the-suffix-automaton"),
    ],
)
def test_headings_have_the_fragments_that_github_makes(heading: str, anchor: str) -> None:
    assert anchors(heading) == {anchor}


def test_addresses_outside_are_listed_where_a_distribution_keeps_the_list(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    write_files(
        made.root,
        {
            "README.md": "[x](https://example.com/x(1)) <https://example.org>\n| https://example.net/y. |\n",
            "docs/links.md": "",
        },
    )
    made.good("docs")
    rows = (made.root / "docs/links.md").read_text().splitlines()[-3:]
    assert rows == [
        "| <https://example.com/x(1)> | [README.md](../README.md) |",
        "| <https://example.net/y> | [README.md](../README.md) |",
        "| <https://example.org> | [README.md](../README.md) |",
    ]
    made.good("docs", "--check")
    (made.root / "docs/links.md").unlink()
    made.good("docs", "--check")
