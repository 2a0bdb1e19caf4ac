"""docs/practice/coverage.md, which `patchctl docs` generates from the sources that recipes and rules name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, Made, make_distribution, write_files
from recipes import with_recipes

PAGE = "docs/practice/coverage.md"
PRACTICE = """\
schema: 1
switches:
  MANNERS=1:
    seeds: ["008"]
    features: [polite]
  SHOUT:
    seeds: ["007"]
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return with_recipes(make_distribution(tmp_path_factory.mktemp("original"), (GREETER, CLOCK)))


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    made = replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))
    write_files(made.root, {"manifests/practice.yaml": PRACTICE})
    return made


def page(made: Made) -> list[str]:
    made.good("docs")
    return (made.root / PAGE).read_text().splitlines()


def test_values_rules_and_switches_stand_under_their_document(made: Made) -> None:
    made.edit(
        "manifests/recipes/full/quiet.yaml", "source: 007, 2", 'source: "007, 10; linked from 008 (aside); a book"'
    )
    lines = page(made)
    quiet = "[full/quiet](../../manifests/recipes/full/quiet.yaml)"
    assert f"| 10 | `greeter.rate=1e-6` | {quiet} |" in lines
    assert f"| (aside) | `greeter.rate=1e-6` | {quiet} |" in lines
    assert f"| a book | `greeter.rate=1e-6` | {quiet} |" in lines
    rule = "rule `loud-queue`: who is loud has QUEUE=1"
    assert f"| 3 | {rule} | [rules](../../manifests/rules.yaml) |" in lines
    assert "|  | switch `MANNERS=1`: `polite` | [switches](switches.md) |" in lines
    assert "|  | switch `SHOUT`: see there | [switches](switches.md) |" in lines
    heads = [line for line in lines if line.startswith("## ")]
    assert heads == ["## 007", "## 008", "## Linked from 008", "## Other sources", "## Ours"]
    assert lines.index(f"| 3 | {rule} | [rules](../../manifests/rules.yaml) |") < lines.index(
        f"| 10 | `greeter.rate=1e-6` | {quiet} |"
    )


def test_the_counts_are_those_of_the_lines(made: Made) -> None:
    lines = page(made)
    # quiet: QUEUE, GREETING, text, rate and sizes; base: response; two rules; one switch
    assert "| [007](#007) | 6 | 2 | 1 |" in lines
    assert "| [008](#008) | 0 | 0 | 1 |" in lines


def test_our_own_values_come_last_with_their_reason(made: Made) -> None:
    lines = page(made)
    base = "[shared/base](../../manifests/recipes/shared/base.yaml)"
    assert lines[-1] == f"| `trainer.nodes = nodes` | the size of the recipe | {base} |"
    assert any("Values that no document gives, with our reasons: 1" in line for line in lines)


def test_a_page_that_is_behind_is_found(made: Made) -> None:
    made.good("docs")
    made.edit("manifests/recipes/full/quiet.yaml", "greeter.rate: 1e-6", "greeter.rate: 2e-6")
    (finding,) = json.loads(made.patchctl("docs", "--check", "--json").stdout)["findings"]
    assert (finding["rule"], finding["file"]) == ("page-stale", PAGE)


def test_without_recipes_there_is_no_page(made: Made) -> None:
    shutil.rmtree(made.root / "manifests/recipes")
    made.good("docs")
    assert not (made.root / PAGE).exists()
