"""docs/practice/coverage.md and parameters.md: what documents name and where it is here, and what points at nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, Made, make_distribution, write_files
from recipes import with_recipes

from patchctl.training.practice.coverage import coverage_page
from patchctl.training.practice.types import Coverage, Document, Item

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
COVERAGE_FILE = "manifests/coverage.yaml"
COVERAGE = """\
schema: 1
documents:
  "007":
    title: A book of greetings
    sections:
      voices:
        - {what: loud and quiet, recipes: [full/loud, full/quiet], rules: loud-queue}
        - {what: manners, features: polite, verbs: apply, pages: "docs/guide.md#who-says-it"}
      "2":
        - {what: a | script, files: scripts/say.sh}
        - {what: a whisper, nothing: nobody hears it}
"""
GUIDE = """\
# Guide

```
## Not a heading
```

## Who *says* [it](it.md)?

## Twice

## Twice
"""
PARAMETERS = """\
schema: 1
upstream: greeter
stack: v1
groups:
  Voice:
    greeter.text: {means: What is said., default: hello}
    greeter.rate: {means: How fast., default: 1e-3, dapo: 2e-3}
    greeter.mode: {means: How., default: "???", only: dapo_trainer, note: "There | only."}
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
    assert "| [007](#007) | 0 | 6 | 2 | 1 |" in lines
    assert "| [008](#008) | 0 | 0 | 0 | 1 |" in lines


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


@pytest.fixture
def items(made: Made) -> Made:
    write_files(
        made.root,
        {COVERAGE_FILE: COVERAGE, "docs/guide.md": GUIDE, "scripts/say.sh": "echo\n"},
    )
    return made


def findings(made: Made) -> list[tuple[int, str]]:
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    found = [f for f in report["findings"] if f["rule"] == "coverage-item"]
    assert {f["file"] for f in found} <= {COVERAGE_FILE}
    return [(f["line"], f["message"]) for f in found]


def test_items_stand_section_by_section_before_the_values(items: Made) -> None:
    lines = page(items)
    begin = lines.index("### Sections of 007")
    assert lines[lines.index("## 007") + 2] == "A book of greetings"
    recipes = "../../manifests/recipes/full"
    assert lines[begin + 4 : begin + 8] == [
        f"| voices | loud and quiet | recipe [full/loud]({recipes}/loud.yaml); recipe [full/quiet]({recipes}/quiet.yaml); "
        "rule [loud-queue](../../manifests/rules.yaml) |",
        "|  | manners | patch [polite](../../docs/patches/greeter/v1/polite.md); `patchctl apply`; "
        "page [guide, who-says-it](../../docs/guide.md#who-says-it) |",
        "| 2 | a \\| script | [scripts/say.sh](../../scripts/say.sh) |",
        "|  | a whisper | nothing: nobody hears it |",
    ]
    assert begin < lines.index("### Values, rules and switches of 007")
    assert "| [007](#007) | 4 | 6 | 2 | 1 |" in lines


def test_items_whose_targets_are_there_have_no_findings(items: Made) -> None:
    assert findings(items) == []
    assert "4 items of the practice" in items.patchctl("verify", "--static").stdout


def test_what_points_at_nothing_is_found_with_its_line(items: Made) -> None:
    for old, new in (
        ("full/loud,", "full/lout,"),
        ("rules: loud-queue", "rules: loud-cue"),
        ("features: polite", "features: polit"),
        ("verbs: apply", "verbs: reply"),
        ("docs/guide.md#", "docs/guides.md#"),
        ("scripts/say.sh", "scripts/says.sh"),
        (", nothing: nobody hears it", ""),
    ):
        items.edit(COVERAGE_FILE, old, new)
    write_files(items.root, {COVERAGE_FILE: (items.root / COVERAGE_FILE).read_text() + "      '3': []\n"})
    assert findings(items) == [
        (7, "007, voices: there is no recipe 'full/lout'; did you mean 'full/loud'?"),
        (7, "007, voices: there is no rule 'loud-cue'; did you mean 'loud-queue'?"),
        (8, "007, voices: there is no feature 'polit'; did you mean 'polite'?"),
        (8, "007, voices: there is no page 'docs/guides.md'"),
        (8, "007, voices: there is no verb 'reply'"),
        (10, "007, 2: there is no 'scripts/says.sh'"),
        (11, "007, 2: 'a whisper' leads nowhere; name what has it here, or say nothing: BECAUSE"),
        (12, "007, 3: has no item; say what it names, or why nothing is here"),
    ]


def test_a_heading_that_is_not_there_is_found(items: Made) -> None:
    items.edit(COVERAGE_FILE, "#who-says-it", "#not-a-heading")
    ((line, message),) = findings(items)
    assert line == 8
    assert message.startswith("007, voices: docs/guide.md has no heading #not-a-heading; known: guide, twice, twice-1,")


@pytest.mark.parametrize("file", ["coverage.yaml", "parameters.yaml"])
def test_a_fault_of_the_file_is_a_finding_and_stops_no_other_verb(items: Made, file: str) -> None:
    write_files(items.root, {f"manifests/{file}": "schema: 1\nnames: {}\n"})
    report = json.loads(items.patchctl("verify", "--static", "--json").stdout)
    found = {(f["rule"], f["file"]) for f in report["findings"]}
    assert ("manifest", f"manifests/{file}") in found
    items.good("list")


def test_the_page_of_parameters(made: Made) -> None:
    write_files(made.root, {"manifests/parameters.yaml": PARAMETERS})
    made.good("docs")
    lines = (made.root / "docs/practice/parameters.md").read_text().splitlines()
    quiet = "[full/quiet](../../manifests/recipes/full/quiet.yaml)"
    assert "3 keys of the configuration of greeter (v1)" in " ".join(lines)
    assert lines[lines.index("## Voice") + 4 :] == [
        f"| `greeter.text` | `hello` | What is said. | {quiet} |",
        f"| `greeter.rate` | `1e-3`; `2e-3` in `dapo_trainer` | How fast. | {quiet} |",
        "| `greeter.mode` | none: give one (`dapo_trainer` alone has it) | How. There \\| only. |  |",
    ]


def test_a_feature_of_several_upstreams_links_the_page_of_each() -> None:
    """As switches.md does; FEATURE@UPSTREAM means one of them."""
    pages = {"polite": "docs/c.md", "polite@greeter": "docs/g.md", "polite@clock": "docs/c.md", "step": "docs/s.md",
             "step@clock": "docs/s.md", "polite_bow@clock": "docs/b.md"}  # fmt: skip
    items = [Item("all", features=["polite"]), Item("one", features=["polite@greeter", "step"])]
    text = coverage_page({}, None, None, Coverage(1, {"007": Document("A book.", {"manners": items})}), pages)
    assert "| all | patch [polite@greeter](../../docs/g.md); patch [polite@clock](../../docs/c.md) |" in text
    assert "| one | patch [polite@greeter](../../docs/g.md); patch [step](../../docs/s.md) |" in text
