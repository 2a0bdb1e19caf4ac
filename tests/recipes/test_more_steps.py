"""A run with more steps than a recipe's record has: it makes no record, and measures what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from more_steps import page_of
from records import settings_of
from releases import OLDEST
from run import arguments
from shrunk import recipes, shrunk

KNOWN, KEY = recipes(), ("deepseek-r1", "grpo")
ASKED = ["--trees", "trees", "--release", OLDEST.name, "--only", "deepseek-r1/grpo", "--steps", "3"]
TORCH = os.environ.get("PATCHCTL_TORCH_PYTHON")
MEASURED = """
import json, torch
from held import Taken
kept = torch.zeros(100)
with Taken() as taken:
    first = torch.ones(1000)
    view = first[:10].view(2, 5)
    kept.copy_(first[:100])
    first.mul_(2)
    both, of = taken.most, taken.now
    del first
    held = taken.now
    del view
    gone = taken.now
    with taken.aside():
        aside = torch.ones(10_000)
    one = torch.cat([torch.ones(500), torch.ones(500)])
print(json.dumps([both, of, held, gone, taken.made, taken.most]))
"""


def test_only_the_number_of_steps_is_another() -> None:
    one, more = shrunk(KNOWN, KEY, {}), shrunk(KNOWN, KEY, {}, more={"trainer.total_training_steps": "3"})
    assert settings_of(one, KNOWN) != settings_of(more, KNOWN)
    own, other = one.run(KNOWN).overrides, more.run(KNOWN).overrides
    assert [key for key in own | other if own.get(key) != other.get(key)] == ["trainer.total_training_steps"]


@pytest.mark.parametrize(
    "other", [["--records", "x"], ["--table", "x"], ["--compare", "off"], ["--size", "tp=4"]], ids=" ".join
)
def test_it_makes_no_record(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments([*ASKED, *other])
    assert "goes with none of --records" in capsys.readouterr().err
    assert arguments(ASKED).steps == 3


@pytest.mark.skipif(not TORCH, reason="PATCHCTL_TORCH_PYTHON names no interpreter with torch")
def test_memory_is_that_which_operators_make_and_hold() -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(TORCH), "-c", MEASURED], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    # A view keeps the memory that it is of; three tensors of 2,000, 2,000 and 4,000 bytes are there at once.
    assert json.loads(done.stdout) == [4000, 4000, 4000, 0, 12_000, 8000]


def test_the_page_says_what_was_found() -> None:
    group = {"given": 2, "numbers": 1024, "held": 4, "differs": 0.0, "changed": 0.5}
    rank = {"given": 4000, "largest": 1000, "made": 8000, "most": 2000, "held": 4096}
    update = {"groups": {"kv_b_proj": group}, "ranks": [rank], "engine": [[[1, 2, 3]]], "tokens": [[1, 2, 4]]}
    update |= {"behind": 0.3, "rounded": 0.1, "turned": [0.007]}
    step = {"actor/pg_loss": 0.125, "actor/grad_norm": 1.5}
    found = {"ranks": 1, "seconds": 9, "peak": 2**30, "steps": {"1": step}, "updates": {"1": update}}
    page = page_of("deepseek-r1/grpo", "page.md", found)
    assert "| 1 | kv_b_proj | 2 | 1,024 | 4 | 0 | 0.5 |" in page
    assert "| 1 | 2 of 3 | 0.3 (0.1 with experts turned that are 0.007 apart) | 0.125 | 1.5 |" in page
    assert "| 1 | 0 | 4,000 | 1,000 | 8,000 | 2,000 | 50% | 4,096 |" in page
