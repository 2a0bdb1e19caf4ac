"""The copy of docs/ that the site is built from: links that leave docs/ lead to a page of the site, or become a path."""

from __future__ import annotations

import re
import sys

import pytest
from pins import REPO

from patchctl.manifest.distribution import Distribution
from patchctl.stack.patches import load_patch
from patchctl.training.report.recipes import recipe_rows

sys.path.insert(0, str(REPO / "scripts"))

from feature_pages import rules_of_features
from site_pages import DOCS, commands, features, rewrite, with_anchors_of

PAGE = DOCS / "ci.md"


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[a](rebase.md#pin)", "[a](rebase.md#pin)"),
        ("[a](../README.md#start)", "[a](index.md#start)"),
        ("[a](../README.zh-CN.md)", "[a](zh-CN/index.md)"),
        ("[a](../examples/ci/github.yml)", "a (`examples/ci/github.yml`)"),
        ("[`examples/ci`](../examples/ci)", "`examples/ci`"),
        ("[a](https://example.com/x)", "[a](https://example.com/x)"),
    ],
)
def test_a_link_as_the_site_has_it(link: str, shown: str) -> None:
    assert rewrite(f"{link}\n", PAGE, PAGE) == f"{shown}\n"


def test_a_page_of_the_root_links_from_its_new_place() -> None:
    text = "[a](docs/ci.md) ![b](docs/demo-reward.png)\n"
    assert rewrite(text, REPO / "README.md", DOCS / "index.md") == "[a](ci.md) ![b](demo-reward.png)\n"


def test_code_is_left_alone() -> None:
    text = "```\n[a](../Makefile)\n```\n"
    assert rewrite(text, PAGE, PAGE) == text


def test_a_translation_has_the_anchors_of_the_english_page() -> None:
    english = "# A\n\n```\n# no heading\n```\n\n## `B`, c\n"
    assert with_anchors_of(english, "# 甲\n\n## 乙\n") == '<a id="a"></a>\n\n# 甲\n\n<a id="b-c"></a>\n\n## 乙\n'
    with pytest.raises(ValueError, match="1 headings, and 2 in English"):
        with_anchors_of(english, "# 甲\n")


def test_the_help_of_every_verb_is_a_page() -> None:
    page = commands()
    assert page.count("\n```text\n") == page.count("\n## ") + 1 > 40
    assert "## patchctl recipe show\n\n```text\nUsage: patchctl recipe show " in page


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return features()


def test_a_feature_has_one_page_with_its_stack_on_every_release_that_has_it(pages: dict[str, str]) -> None:
    dist = Distribution.load(REPO)
    there: dict[str, set[str]] = {}
    for stack in dist.stacks.values():
        if any(one.stacks.get(stack.upstream) == stack.name for one in dist.releases.values()):
            for file in dist.patch_files(stack):
                name = load_patch(file, REPO).feature
                there.setdefault(name, set()).add(f"(../patches/{stack.upstream}/{stack.name}/{name}.md)")
    assert {*pages} == {"features/README.md", *(f"features/{name}.md" for name in there)}
    for name, links in there.items():
        page = pages[f"features/{name}.md"]
        assert {f"({link})" for link in re.findall(r"\((\.\./patches/[^)]+)\)", page)} == links
        assert page.count("**Proof**") == len({link.split("/")[2] for link in links})


def test_a_page_of_a_feature_has_recipes_rules_and_why_a_release_lacks_it(pages: dict[str, str]) -> None:
    dist = Distribution.load(REPO)
    needed = {need.partition("@")[0] for row in recipe_rows(dist) for need in row.needs}
    assert {name for name in needed if "## Recipes that need it" in pages[f"features/{name}.md"]} == needed
    dropped = {name for stack in dist.stacks.values() for name in stack.dropped}
    assert dropped and all("dropped: " in pages[f"features/{name.partition('@')[0]}.md"] for name in dropped)
    rules = rules_of_features(dist)
    refused = {name for name, found in rules.items() if found}
    assert refused and refused == {
        name for name in rules if "## What a recipe is refused for" in pages[f"features/{name}.md"]
    }
