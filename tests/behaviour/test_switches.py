"""Every switch of every patch that is no setting of verl, written in ways that mean off: refused, or off. None turns it on.

Those of verl's own configuration are walked in verl/test_settings_checks.py, recipe by recipe.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import REPO, Upstream
from models import TinyModels

from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.rules import Switch

DIST = Distribution.load(REPO)
NPU = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
}
# As Hydra hands on off, Off, 0, none and "false"; a variable is text in any case.
SPELLINGS: tuple[Any, ...] = ("off", "Off", 0, "none", "false")
pytestmark = pytest.mark.stack("vllm-ascend", "<0.23")

EPLB = "additional_config.eplb_config.on_demand"
SAM = "speculative_config.method"
# Switches with a number, of which 0 is the default and off.
NUMBERS = {
    "additional_config.tp_hccl_op_expansion_mode",
    "additional_config.moe_chunk_tokens",
    "VLLM_PAUSE_GC_IN_STEPS",
}


def switches(*kinds: str) -> list[Switch]:
    found = {switch.name: switch for profile in DIST.profiles for switch in features_and_switches(DIST, profile)[1]}
    return [switch for switch in found.values() if switch.kind in kinds and not switch.name.startswith("actor_")]


def case(switch: Switch, value: Any) -> dict[str, Any]:
    """The arguments of an engine in which the switch has the value, and all else is as the switch needs it."""
    if switch.kind == "env":
        return {"env": {switch.name: str(value)}}
    section, *keys = switch.name.split(".")
    for key in reversed(keys):
        value = {key: value}
    if switch.name == EPLB:
        value["eplb_config"]["dynamic_eplb"] = True
    if switch.name == SAM:
        value["num_speculative_tokens"] = 2
    return {section: value}


def test_off_in_any_spelling_turns_nothing_on(upstream: Upstream, tiny_models: TinyModels) -> None:
    walked = [(switch, value) for switch in switches("env", "config") for value in SPELLINGS]
    assert {switch.name for switch, _ in walked} >= NUMBERS | {EPLB, SAM, "additional_config.spec_batch_threshold"}
    cases = json.dumps([case(*one) for one in walked])
    script = "tests/behaviour/probe_engine_switches.py"
    answers = upstream.run(script, tiny_models.qwen3_moe, cases, timeout=300, **NPU)
    for (switch, value), answer in zip(walked, answers, strict=True):
        if switch.name in NUMBERS and value == 0:
            assert not isinstance(answer, str), f"{switch.name}={value!r}: {answer}"
        else:
            last = switch.name.rpartition(".")[2]
            assert isinstance(answer, str) and last in answer, f"{switch.name}={value!r} is taken: {answer}"


def test_zero_of_the_variable_is_off(upstream: Upstream, tiny_models: TinyModels) -> None:
    cases = json.dumps([{"env": {"VLLM_PAUSE_GC_IN_STEPS": value}} for value in ("0", "64")])
    script = "tests/behaviour/probe_engine_switches.py"
    off, on = upstream.run(script, tiny_models.qwen3_moe, cases, **NPU)
    assert (off, on) == ({"interval": 0}, {"interval": 64})


def test_balancing_on_demand_takes_no_text_for_dynamic_eplb(upstream: Upstream, tiny_models: TinyModels) -> None:
    additional = {"additional_config": {"eplb_config": {"dynamic_eplb": "off", "on_demand": True}}}
    script = "tests/behaviour/probe_engine_switches.py"
    (answer,) = upstream.run(script, tiny_models.qwen3_moe, json.dumps([additional]), **NPU)
    assert "eplb_config: on_demand needs dynamic_eplb=True" in answer
