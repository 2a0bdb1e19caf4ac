"""Every relative link of every page leads to a file, and its fragment to a heading."""

from __future__ import annotations

from pathlib import Path

import pytest
from distribution import REPO, write_files
from markdown_pages import anchors, links, pages_of

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
