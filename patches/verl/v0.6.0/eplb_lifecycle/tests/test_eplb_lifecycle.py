"""eplb_lifecycle: the engine balances its experts during each rollout, and not at all during training.

Three rollouts of the real vLLMRollout on two data-parallel ranks with uneven loads, new weights before each: real
engine, real planner processes, experts really exchanged. Tokens are those of Hugging Face with the same weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from old_vllm import V0_10_0

NPU: dict[str, Any] = {
    "need": ["verl", "vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},  # without it vllm-ascend's worker refuses to wake up
    "timeout": 300,
}
CONFIG: dict[str, Any] = NPU | {"need": [*NPU["need"], "megatron-lm"]}
RANKS = 2
ROLLOUTS = 3
KEY = "actor_rollout_ref.rollout.eplb_lifecycle=True"
STARTED = ["eplb_start", ["buffer_bytes", "planner_pid"], False]
STOPPED_AFTER_MOVES = ["eplb_stop", ["moved_experts"], True]
ROLLOUT = ["wake_up", "wake_up", STARTED, "generate", STOPPED_AFTER_MOVES, "sleep"]


@pytest.fixture(scope="module")
def on(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_eplb_lifecycle.py", tiny_models.qwen3_moe, "on", procs=RANKS, **NPU)


@pytest.fixture(scope="module")
def configured(upstream: Upstream, tiny_models: TinyModels) -> Any:
    probe = "probe_eplb_config.py"
    return upstream.run(probe, tiny_models.qwen3, tiny_models.qwen3_moe, **CONFIG)


@pytest.mark.on
def test_balancing_starts_and_stops_with_each_rollout(on: Any) -> None:
    for rank in on:
        assert rank["calls"] == ["sleep", *ROLLOUT * ROLLOUTS]


@pytest.mark.on
def test_tokens_are_those_of_the_new_weights(on: Any) -> None:
    for rank in on:
        tokens = [one["tokens"] for one in rank["rollouts"]]
        assert tokens == [one["hf"] for one in rank["rollouts"]]
        assert tokens[0] != tokens[1] != tokens[2]


@pytest.mark.on
def test_nothing_stays_for_training(on: Any) -> None:
    for rank in on:
        first, second, third = [one["resources"] for one in rank["rollouts"]]
        assert (first["children"], first["shared_memory"]) == (rank["children_before"], [])
        assert second == third
        assert [one["balancing"] for one in rank["rollouts"]] == [False] * ROLLOUTS


@pytest.mark.on
def test_nothing_stays_when_a_generation_fails(on: Any) -> None:
    for rank in on:
        assert rank["failing"] == {
            "raised": f"RuntimeError: generation fails with {rank['children_before'] + 2} processes",
            "children": rank["children_before"],
            "balancing": False,
        }


@pytest.mark.on
def test_the_engine_gets_the_users_additional_config_too(on: Any) -> None:
    for rank in on:
        given = rank["given"]
        wanted = given | {"eplb_config": given["eplb_config"] | {"dynamic_eplb": True, "on_demand": True}}
        assert rank["additional_config"] == rank["additional_config"] | wanted  # vllm-ascend adds keys of its own


@pytest.mark.on
def test_additional_config_is_merged(configured: Any) -> None:
    switched_on = {"dynamic_eplb": True, "on_demand": True}
    merged = configured["merged"]
    own = {"enable_cpu_binding": False, "eplb_config": {"eplb_policy_type": 2} | switched_on}
    wanted = {"none": {"eplb_config": switched_on}, "same": {"eplb_config": switched_on}}
    wanted |= dict.fromkeys(("plain", "omega", "text"), own)
    for case, additional_config in wanted.items():
        assert merged[case]["after"] == {"additional_config": additional_config, "seed": 7}, case
    assert not any(merged[case]["given_changed"] for case in ("none", "plain", "omega"))


@pytest.mark.misuse
def test_a_contradiction_is_refused(configured: Any) -> None:
    merged = configured["merged"]
    for case, setting in {"opposite": "dynamic_eplb=False", "from_the_start": "on_demand=False"}.items():
        assert merged[case].startswith(KEY), case
        assert f"additional_config.eplb_config.{setting}: leave one of them out" in merged[case]
    assert "additional_config must be a mapping" in merged["no_mapping"]
    assert "additional_config is no JSON object" in merged["no_json"]


@pytest.mark.misuse
@pytest.mark.parametrize("worker", ["fsdp", "megatron"])
def test_workers_refuse_other_rollouts_at_start(configured: Any, worker: str) -> None:
    answers = configured[worker]
    assert "not sglang with sync: set it to False" in answers["sglang"]
    assert "not vllm with async: set it to False" in answers["async"]
    assert "set rollout.expert_parallel_size to" in answers["one"]
    assert answers["off"] is None


@pytest.mark.misuse
def test_standalone_rollouts_refuse_it_themselves(configured: Any) -> None:
    answers = configured["standalone"]
    assert "not vllm with async: set it to False" in answers["async"]
    assert "not sglang with async: set it to False" in answers["sglang"]
    assert (answers["off"], answers["off_sglang"]) == (None, None)


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "instead"),
    [
        ("dense", "the model has no experts: set it to False"),
        ("lora", "or actor_rollout_ref.model.lora_rank=0"),
        ("groups", "set rollout.data_parallel_size accordingly"),
    ],
)
def test_what_cannot_be_balanced_is_refused(configured: Any, case: str, instead: str) -> None:
    assert configured["checked"]["good"] is None
    assert configured["checked"][case].startswith(KEY)
    assert instead in configured["checked"][case]


@pytest.mark.misuse
def test_weights_not_processed_after_updates_are_refused(configured: Any) -> None:
    if configured["unprocessed"] == "not declared":
        pytest.skip("the patch moe_update_weights is not there; the engine refuses such weights itself")
    assert "set rollout.moe_update_weights=True" in configured["unprocessed"]


@pytest.mark.misuse
@pytest.mark.slow
def test_an_engine_without_the_other_half_is_refused(upstream: Upstream, tiny_models: TinyModels) -> None:
    without = CONFIG | {"need": ["verl", "vllm", "megatron-lm"], "standins": ["vllm-cpu-dist-info"]}
    probe = "probe_eplb_config.py"
    answers = upstream.run(probe, tiny_models.qwen3, tiny_models.qwen3_moe, **without)
    assert "needs vllm-ascend with the patch eplb_reset" in answers["merged"]["plain"]


@pytest.mark.off
def test_off_as_upstream(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    metadata, sources = V0_10_0.python_path(tmp_path)
    path = os.pathsep.join(map(str, [metadata, upstream.tree("verl"), sources]))
    out = upstream.run("probe_eplb_off.py", tiny_models.qwen3, env={"PYTHONPATH": path})
    assert out == {
        "calls": ["wake_up", "generate", "reset_prefix_cache", "sleep"],
        "additional_config_kept": True,
        "imported": [],
    }


@pytest.mark.on  # off on the unpatched tree cannot run with this vllm: without vllm_import_compat no rollout is imported
@pytest.mark.slow
def test_off_the_engine_is_left_alone(upstream: Upstream, tiny_models: TinyModels) -> None:
    ranks = upstream.run("probe_eplb_lifecycle.py", tiny_models.qwen3_moe, "off", procs=RANKS, **NPU)
    for rank in ranks:
        assert rank["calls"] == ["sleep", *["wake_up", "wake_up", "generate", "sleep"] * ROLLOUTS]
        assert rank["additional_config"] == rank["additional_config"] | rank["given"]
        assert [one["tokens"] for one in rank["rollouts"]] == [one["hf"] for one in rank["rollouts"]]
        assert rank["module"] is False
        assert rank["failing"]["children"] == rank["children_before"]
