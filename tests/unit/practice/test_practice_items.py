"""docs/practice/coverage.md: what it says that a document names stands there, and where the item points.

That links and their headings are there is asked of every page (tests/cli/test_links.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from distribution import write_files
from pins import distribution, recipes
from practice_documents import Documents, read_documents
from practice_items import PAGE, Item, Places, Pointer, items, untold
from practice_sources import REPO

from patchctl.training.recipes.read import RULES

DIST = distribution()
RECIPES = recipes()
DOCUMENTS = read_documents()
PLACES = Places(REPO, RECIPES, DIST.practice)
ITEMS = list(items((REPO / PAGE).read_text(encoding="utf-8")))
BOOK = Documents.of({"documents": {"007": {"sections": {"2": {"words": "sizes=[8,16] QUEUE=2"}}}}})
GUIDE = "# Guide\n\n## Queue\n\nQUEUE, which is 2.\n\n### More\n\nand more\n\n## Other\n\nNothing.\n"


@pytest.mark.parametrize("document", DOCUMENTS.sections)
def test_every_item_stands_in_its_document_and_where_it_points(document: str) -> None:
    faults = [fault for item in ITEMS if item.document == document for fault in untold(item, PLACES, DOCUMENTS)]
    assert faults == []


def test_every_document_has_items() -> None:
    assert {item.document for item in ITEMS} == set(DOCUMENTS.sections)


def test_every_item_leads_somewhere_or_says_why_not() -> None:
    assert [item for item in ITEMS if not item.pointers and not item.nothing] == []


def test_every_rule_and_verb_that_an_item_names_is_there() -> None:
    assert RECIPES.rules is not None
    pointers = {pointer for item in ITEMS for pointer in item.pointers}
    named = {pointer.text for pointer in pointers if pointer.target == RULES.as_posix()}
    assert named - set(RECIPES.rules.value.rules) == set()
    for verb in {pointer.text for pointer in pointers if pointer.target is None}:
        command = [sys.executable, "-m", "patchctl", verb, "--help"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 0, verb


def test_a_row_is_read() -> None:
    page = (
        "## Linked from 007\n\n| section | it names | here |\n|---|---|---|\n"
        "| voices | loud \\| quiet | recipe [a/b](../../manifests/recipes/a/b.yaml); `patchctl apply` |\n"
        "|  | a whisper | page [guide](../guide.md#who); nothing: nobody; hears [it](it.md) |\n"
    )
    recipe, page_of = Pointer("a/b", "manifests/recipes/a/b.yaml"), Pointer("guide", "docs/guide.md#who")
    assert list(items(page)) == [
        Item("linked from 007", "voices", "loud | quiet", (recipe, Pointer("apply", None)), False),
        Item("linked from 007", "voices", "a whisper", (page_of,), True),
    ]


@pytest.mark.parametrize(
    ("what", "target", "nothing", "fault"),
    [
        ("QUEUE=2 and `sizes` of 8 and 16", "docs/all.md", False, None),
        ("half a book", "docs/guide.md", False, None),
        ("QUEUE=2", "docs/guide.md#queue", False, None),
        ("QUEUE=2 and SHOUT", "docs/guide.md", True, "007, 2 does not have shout"),
        ("QUEUE=2 and 16", "docs/guide.md", False, "'QUEUE=2 and 16' does not stand where it points: there is no 16"),
        ("QUEUE=2 and 16", "docs/guide.md", True, None),
        ("QUEUE=2", "docs/guide.md#other", True, "docs/guide.md#other has nothing of 'QUEUE=2'"),
        ("QUEUE=2", "docs/guide.md#more", True, "docs/guide.md#more has nothing of 'QUEUE=2'"),
    ],
)
def test_what_an_item_names_and_nobody_tells(
    tmp_path: Path, what: str, target: str, nothing: bool, fault: str | None
) -> None:
    write_files(tmp_path, {"docs/guide.md": GUIDE, "docs/all.md": "QUEUE is 2, sizes 8 and 16.\n"})
    item = Item("007", "2", what, (Pointer("a page", target),), nothing)
    assert list(untold(item, Places(tmp_path, RECIPES, None), BOOK)) == ([fault] if fault else [])
