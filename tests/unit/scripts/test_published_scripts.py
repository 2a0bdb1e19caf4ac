"""What scripts/published_scripts.py makes of a script, and that docs/published-scripts.md leaves no difference without a reason."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from pins import REPO

sys.path.append(str(REPO / "scripts"))

import published_scripts
from published_scripts import REASONS, Judged, started, without_reason

PAGE = (REPO / "docs" / "published-scripts.md").read_text(encoding="utf-8")
SCRIPT = """\
set -euo pipefail
mkdir -p /nowhere/of/ours
export TASK_QUEUE_ENABLE=1
export OF_THE_USER=${WANTED}
python3 -m verl.trainer.main_ppo --config-name='ppo_trainer.yaml' \\
    model_engine=$([ "$DEVICE" = npu ] && echo mindspeed || echo dp) trainer.logger='["console","a b"]' "$@" | tee logs/out
"""


def test_a_script_gives_its_arguments_and_what_it_exports() -> None:
    found = started("examples/x.sh", SCRIPT)
    assert found.config == "ppo_trainer"
    assert found.overrides == ("model_engine=mindspeed", 'trainer.logger=["console","a b"]')
    assert found.environment == {"TASK_QUEUE_ENABLE": "1", "OF_THE_USER": "/somewhere"}


def test_a_script_that_starts_no_trainer_ends_the_run() -> None:
    with pytest.raises(SystemExit, match="starts no trainer"):
        started("examples/x.sh", "python3 -m verl.trainer.sft_trainer a=1\nexit 1\n")


def test_a_difference_without_a_reason_is_named() -> None:
    refused = Judged("a.sh", None, "verl: no", False, (), ())
    assert without_reason([refused]) == ["a.sh"]
    assert without_reason([Judged("b.sh", None, None, False, (), ())]) == []


def test_every_reason_is_of_a_rule_and_used() -> None:
    rules = yaml.safe_load((REPO / "manifests" / "rules.yaml").read_text())["rules"]
    reasons = yaml.safe_load(REASONS.read_text())["rules"]
    assert set(reasons) <= set(rules)
    assert all(f"- `{rule}`, " in PAGE for rule in reasons)


def test_the_pages_counts_are_those_of_its_table() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and ".sh" in line]
    there = [row[1] == "takes it" and row[2].startswith("takes it") for row in rows]
    here = [row[3] == "take it" and row[4] == "take it |" for row in rows]
    both = sum(a and b for a, b in zip(there, here, strict=True))
    neither = sum(not a and not b for a, b in zip(there, here, strict=True))
    ours = sum(a and not b for a, b in zip(there, here, strict=True))
    said = re.search(r"Both take (\d+), neither takes (\d+); ours alone refuse (\d+), verl's alone (\d+)", PAGE)
    assert said and tuple(map(int, said.groups())) == (both, neither, ours, len(rows) - both - neither - ours)


def test_the_head_names_the_target_that_writes_it() -> None:
    assert "make published-scripts" in PAGE and published_scripts.__doc__
