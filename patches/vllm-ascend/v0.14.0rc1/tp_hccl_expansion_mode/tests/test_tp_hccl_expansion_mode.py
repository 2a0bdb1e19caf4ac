"""tp_hccl_expansion_mode: HCCL options of the groups that vllm-ascend makes, from real engine configurations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_hccl_options.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "torchvision"],
    "timeout": 240,
}
KEY = "tp_hccl_op_expansion_mode"
HOST, AI_CPU, AIV = 1, 2, 3
DEFAULT = {"hccl_buffer_size": 200}
# What upstream gives: a small buffer to data parallelism, and no options to mc2, whose operators divide HCCL's own.
UPSTREAM = {"world": DEFAULT, "tp": DEFAULT, "pp": DEFAULT, "dp": {"hccl_buffer_size": 50}, "ep": DEFAULT, "mc2": None}
WRONG = [4, -1, "3", "AIV", True, 3.0, None]


def with_tp(mode: int) -> dict[str, Any]:
    return UPSTREAM | {"tp": DEFAULT | {"hccl_op_expansion_mode": mode}}


def groups_made(upstream: Upstream, models: TinyModels, additional_config: dict[str, Any]) -> Any:
    """The options of each group of a worker, on two ranks (tensor and expert parallel)."""
    return upstream.run(PROBE, "groups", models.qwen3_moe, json.dumps(additional_config), procs=2, **NPU)


def engines_in_turn(upstream: Upstream, models: TinyModels, *additional_configs: dict[str, Any]) -> Any:
    return upstream.run(PROBE, "configs", models.qwen3, *map(json.dumps, additional_configs), **NPU)


@pytest.mark.on
def test_only_the_tensor_parallel_group_changes(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert groups_made(upstream, tiny_models, {KEY: AIV}) == [with_tp(AIV)] * 2


@pytest.mark.on
def test_each_engine_in_a_process_has_its_own_mode(upstream: Upstream, tiny_models: TinyModels) -> None:
    seen = engines_in_turn(upstream, tiny_models, {KEY: AI_CPU}, {}, {KEY: AIV}, {KEY: 0}, {KEY: HOST})
    assert seen == [with_tp(AI_CPU), UPSTREAM, with_tp(AIV), UPSTREAM, with_tp(HOST)]


@pytest.mark.off
@pytest.mark.slow
def test_off_all_groups_are_upstreams(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert groups_made(upstream, tiny_models, {}) == [UPSTREAM] * 2


@pytest.mark.misuse
@pytest.mark.slow
def test_a_wrong_value_is_refused_at_start(upstream: Upstream, tiny_models: TinyModels) -> None:
    answers = engines_in_turn(upstream, tiny_models, *({KEY: value} for value in WRONG))
    for value, answer in zip(WRONG, answers, strict=True):
        assert answer.get("refused") == "configuration", value
        assert f"{KEY} must be 0 (as HCCL_OP_EXPANSION_MODE says)" in answer["error"]
        assert f"not {value!r}" in answer["error"]


@pytest.mark.misuse
def test_a_wrong_value_is_refused_for_a_later_engine(upstream: Upstream, tiny_models: TinyModels) -> None:
    # vllm-ascend reads additional_config once a process; the group is refused then.
    first, later = engines_in_turn(upstream, tiny_models, {KEY: AIV}, {KEY: 7})
    assert first == with_tp(AIV)
    assert later["refused"] == "group"
    assert f"{KEY} must be" in later["error"]
