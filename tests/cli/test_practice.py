"""manifests/practice.yaml: what documents of the practice call our switches; in `lock --pages`, `verify` and `show`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, Made, make_distribution, write_files

PRACTICE = """\
schema: 1
switches:
  MANNERS=1:
    seeds: ["007"]
    features: [polite]
    note: Once | for all.
  greeter.actor.noise=True:
    seeds: ["007", "008"]
    features: [loud, step@clock]
  SHOUT=1:
    seeds: ["008"]
    note: Nothing reads it.
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("original"), (GREETER, CLOCK))
    write_files(made.root, {"manifests/practice.yaml": PRACTICE})
    return made


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    return replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))


def test_the_page_joins_the_names_with_our_switches(made: Made) -> None:
    made.good("lock", "--pages")
    rows = (made.root / "docs/practice/switches.md").read_text().splitlines()
    polite = "[polite](../../docs/patches/greeter/v1/polite.md)"
    assert f"| `MANNERS=1` | 007 | {polite} | `env GREETER_POLITE=1` | Once \\| for all. |" in rows
    noise = next(row for row in rows if row.startswith("| `greeter.actor.noise=True` | 007, 008 |"))
    assert "loud.md" in noise and "clock/v2/step.md" in noise
    assert noise.endswith("| `env GREETER_LOUD=3`, `config clock.step=2` |  |")
    assert "| `SHOUT=1` | 008 |  |  | Nothing reads it. |" in rows


def test_a_page_that_is_behind_is_found(made: Made) -> None:
    made.good("lock", "--pages")
    made.edit("manifests/practice.yaml", "Nothing reads it.", "Nobody reads it.")
    (finding,) = json.loads(made.patchctl("lock", "--pages", "--check", "--json").stdout)["findings"]
    assert (finding["rule"], finding["file"]) == ("page-stale", "docs/practice/switches.md")


def test_without_the_manifest_there_is_no_page(made: Made) -> None:
    (made.root / "manifests/practice.yaml").unlink()
    made.good("lock", "--pages")
    assert not (made.root / "docs/practice").exists()


def test_a_feature_that_no_stack_has_is_found_with_its_line(made: Made) -> None:
    made.edit("manifests/practice.yaml", "features: [polite]", "features: [polit]")
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    (found,) = [f for f in report["findings"] if f["rule"] == "practice-feature"]
    assert (found["file"], found["line"]) == ("manifests/practice.yaml", 3)
    assert found["message"] == "MANNERS=1: no stack has a feature polit; did you mean 'polite'?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MANNERS", "a switch from the practice documents (007); here it is `patchctl show polite`"),
        ("noise", "documents (007, 008); here it is `patchctl show loud`, `patchctl show step@clock`"),
        ("SHOUT", "documents (008); nothing replaces it here: Nothing reads it."),
    ],
)
def test_show_leads_from_a_name_of_the_documents_to_ours(made: Made, name: str, hint: str) -> None:
    run = made.patchctl("show", name)
    assert run.returncode == 2
    assert hint in run.stderr


def test_an_unknown_key_is_refused_with_its_line(made: Made) -> None:
    made.edit("manifests/practice.yaml", "    note: Nothing reads it.", "    remark: Nothing reads it.")
    run = made.patchctl("list")
    assert run.returncode == 2
    assert "manifests/practice.yaml:12" in run.stderr and "remark" in run.stderr
