"""benchmarks/bench_drafts_from_others.py: each row drafts from what its name says, and from nothing else; its rewards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SAM = next(ROOT.glob("patches/vllm-ascend/*/sam_proposer/tests/automaton_reference.py")).parents[1]
FILES = [
    max(ROOT.glob(f"patches/vllm-ascend/*/*/files/vllm_ascend/spec_decode/{name}.py")).parents[2]
    for name in ("suffix_automaton", "context_tables", "suffix_shared")
]
# Random answers, so that nothing repeats but what is put there: `same` was answered before, `copied` in its own group.
PROBE = """
import json, random
import numpy as np
import bench_drafts_from_others as bench, group_samples

rng = np.random.default_rng(0)
def answers(prompt, count):
    return [np.concatenate([prompt, rng.integers(100, 30000, 200)]).astype(np.int32) for _ in range(count)]
same, copied = rng.integers(100, 30000, (2, 20)).astype(np.int32)
one, other = answers(same, 1)[0], answers(copied, 2)
first = [[one, *answers(same, 1)], answers(copied, 2)]
now = [[one, *answers(same, 1)], [other[0], other[1], np.concatenate([other[0][:-1], same[:2]])]]
rows = bench.of_samples(first, now)["rows"]

question, answer = group_samples.problem(random.Random(0))
wrong = answer.replace("answer is x = ", "answer is x = 9")
rewards = [group_samples.right(question, text) for text in (answer, wrong, "")]
print(json.dumps({"rows": rows, "rewards": rewards}))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    python = os.environ.get("PATCHCTL_TORCH_PYTHON")
    if not python:
        pytest.skip("PATCHCTL_TORCH_PYTHON is not set")
    path = os.pathsep.join(map(str, (BENCHMARKS, *FILES, SAM / "tests")))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [python, "-c", PROBE], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


def tokens(seen: Any, row: str) -> float:
    return seen["rows"][row]["3"][0]


def test_all_that_run(seen: Any) -> None:
    # One answer of five is known from before: with all its drafts right it takes a quarter of the steps.
    assert tokens(seen, "all run | automaton: itself") < 1.05
    assert tokens(seen, "all run | automaton: group") < 1.05  # the copy is written at the same time
    assert tokens(seen, "all run | automaton: itself and epoch before") > 1.15
    assert tokens(seen, "all run | automaton: itself and epoch before of another prompt") < 1.05
    assert tokens(seen, "all run | automaton: all prompts and epoch before") > 1.15
    for share in ("", ", of half the answers", ", of a quarter"):
        assert tokens(seen, f"all run | automaton: sam_shared_history{share}") > 1.15


def test_the_last_of_each_group(seen: Any) -> None:
    # The longest of the second group copies one that has ended.
    assert tokens(seen, "the last of each group | automaton: itself") < 1.05
    assert tokens(seen, "the last of each group | automaton: group") > 1.5
    assert tokens(seen, "the last of each group | automaton: sam_shared_history") > 1.5
    assert tokens(seen, "the last of each group | automaton: itself and epoch before of another prompt") < 1.05


def test_answers_of_the_rule_are_right(seen: Any) -> None:
    right, wrong, none = seen["rewards"]
    assert (right, none) == (1, 0)
    assert wrong == 0
