"""Every source of this repository's recipes, rules and switches stands where it says.

The documents are not in the repository; facts.yaml has the names and numbers of each section.
"""

from __future__ import annotations

import pytest
from pins import distribution, recipes
from practice_documents import Documents, read_documents
from practice_sources import has_file, of_recipe, of_rule, of_switches

from patchctl.manifest.types import Named, Practice
from patchctl.training.recipes.types import Condition, Recipe, RecipeRule, Setting

DIST = distribution()
RECIPES = recipes()
DOCUMENTS = read_documents()
BOOK = Documents.of(
    {
        "documents": {
            "007": {
                "sections": {
                    "1": {"words": "1 2k response_length=224"},
                    "2": {"words": "GREETING QUEUE=2 greeter.rate=1e-06 greeter.sizes=[8,16]"},
                    "3": {"words": "3 GREETER_LOUD QUEUE"},
                    "4, tail": {"words": "tokens"},
                }
            }
        }
    }
)


@pytest.mark.parametrize("key", RECIPES.files, ids="/".join)
def test_every_value_of_a_recipe_stands_in_its_source(key: tuple[str, str]) -> None:
    assert list(of_recipe(RECIPES.files[key].value, DOCUMENTS)) == []


def test_every_rule_stands_in_its_source() -> None:
    assert RECIPES.rules is not None
    faults = {name: list(of_rule(rule, DOCUMENTS)) for name, rule in RECIPES.rules.value.rules.items()}
    assert {name: found for name, found in faults.items() if found} == {}


def test_every_switch_stands_in_its_documents() -> None:
    assert DIST.practice is not None
    assert list(of_switches(DIST.practice, DOCUMENTS)) == []


def recipe(name: str, setting: Setting, source: str | None = None) -> list[str]:
    kind = "overrides" if "." in name else "sizes" if name.islower() else "environment"
    return list(of_recipe(Recipe(1, "quiet", "Softly.", source=source, **{kind: {name: setting}}), BOOK))


@pytest.mark.parametrize(
    ("name", "value", "source", "fault"),
    [
        ("QUEUE", "2", "007, 2", None),
        ("QUEUE", "3", "007, 2", "QUEUE=3: 007, 2 does not give it"),
        ("QUEUE", "3", "007, 2 (QUEUE)", None),
        ("QUEUE", "3", "007 (QUEUE)", None),
        ("QUEUE", "3", "a book of ours", None),
        ("QUEUE", "2", "007, 1 and 2", "QUEUE=2: 007, 1 does not give it"),
        ("QUEUE", "2", "007, 2 (QUEUE=2, 99)", "007, 2 does not have 99;"),
        ("QUEUE", "2", "007, 9", "007 has no section '9'; facts.yaml has 1, 2, 3, 4, tail"),
        ("QUEUE", "2", "008, 2", "there is no document 008 in facts.yaml"),
        ("+greeter.sizes", "[8,16]", "007, 2", None),
        ("greeter.rate", "1e-6", "007, 2", None),
        ("greeter.rate", "2e-6", "007, 2", "greeter.rate=2e-6: 007, 2 does not give it"),
        ("trainer.rate", "1e-6", "007, 2", None),
        ("response", "2048", "007, 1", None),
        ("response", "4096", "007, 1", "response=4096: 007, 1 does not give it"),
        ("greeter.tokens", "= prompt + response", "007, 4", None),
        ("greeter.tokens", "= prompt + response", "007, 3", "007, 3 does not give it"),
    ],
)
def test_a_value_that_its_source_does_not_give(name: str, value: str, source: str, fault: str | None) -> None:
    for found in (recipe(name, Setting(value, source=source)), recipe(name, Setting(value), source)):
        assert found == [] if fault is None else fault in found[0]


def test_a_value_of_nobody() -> None:
    assert recipe("nodes", Setting("8")) == ["nodes=8 names no document, and does not say `ours:`"]
    assert recipe("nodes", Setting("8", ours="a reason"), source="007, 9") == []


def test_a_rule_and_a_switch_that_their_document_does_not_have() -> None:
    queue = Condition(equals={"env.QUEUE": ["1"]})
    for section, count in (("3", 0), ("1", 1)):
        rule = RecipeRule("who is loud waits", "others wait", f"007, {section}", queue, "QUEUE=1", [], [])
        assert len(list(of_rule(rule, BOOK))) == count
    practice = Practice(1, {"MANNERS=1": Named(["007"]), "QUEUE=9": Named(["007"])})
    assert [fault.partition(";")[0] for fault in of_switches(practice, BOOK)] == ["MANNERS=1: 007 does not give it"]


def test_a_file_that_no_pinned_source_has() -> None:
    assert has_file("verl v0.6.0, megatron_actor.py") and has_file("verl v0.6.0, workers/actor/megatron_actor.py")
    assert not has_file("verl v0.6.0, no_such_actor.py")
    assert has_file("verl v0.6.0, a class") and has_file("verl v9, no_such_actor.py")
