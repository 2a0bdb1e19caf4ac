"""ep_alltoallv_reshard: each expert's weights reach the ranks whose engine keeps it, and no others, bit by bit.

verl's generator, its weight converters and Megatron's parallel state are real, on gloo; the models' layers have
Transformer Engine's parameters and no forward pass (probe_reshard_models.py).
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness import Upstream
from hypothesis import given, settings
from hypothesis import strategies as st
from models import TinyModels
from probe_reshard_layouts import kept_experts

NPU = {
    "need": ["verl", "vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
MEGATRON = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
# FAMILY:EXPERTS:TP:PP:VPP:EP_TRAIN:EP_ROLLOUT:ROUND_BYTES, see probe_reshard.py; one expert a round unless said.
CASES_4 = [
    "qwen3_moe:8:1:1:1:2:4:1",
    "qwen3_moe:8:1:1:1:4:4:1",
    "qwen3_moe:8:1:1:1:4:2:1",
    "qwen3_moe:8:1:1:1:1:4:1",
    "qwen3_moe:8:1:2:1:1:4:1",
    "qwen3_moe:8:1:1:1:4:2:0",  # several experts a round
    "deepseek_v3:8:1:1:1:4:2:1",
    "deepseek_v3:8:1:2:1:2:4:1",
    "qwen3_moe_grouped:8:1:1:1:4:2:1",  # Megatron's GroupedMLP
]
MORE_4 = [
    "qwen3_moe:8:1:2:1:2:4:1",
    "qwen3_moe:8:1:2:2:2:2:1",  # two virtual stages
    "qwen3_moe:8:2:1:1:4:4:1",  # tensor parallel attention
    "qwen3_moe:6:1:1:1:2:4:1",  # the engine's ranks keep 2, 2, 1 and 1
    "qwen3_moe:8:1:1:1:4:1:1",  # every rank's engine keeps all experts
    "deepseek_v3:8:1:1:1:2:4:1",
    "deepseek_v3:8:1:1:1:4:4:1",
    "deepseek_v3:8:1:1:1:1:4:1",
    "deepseek_v3:8:1:2:1:1:4:1",
    "deepseek_v3_grouped:8:1:2:1:2:4:1",
]
CASES_8 = [
    f"{family}:8:1:{pp}:1:{train}:{rollout}:1"
    for family in ("qwen3_moe", "deepseek_v3")
    for pp in (1, 2)
    for train, rollout in ((2, 4), (4, 4), (4, 2), (1, 4))
] + ["qwen3_moe:8:1:2:1:4:8:1", "qwen3_moe:8:1:2:2:4:8:0", "deepseek_v3:8:2:2:1:4:8:1", "qwen3_moe:8:1:1:1:8:4:1"]


@pytest.fixture(scope="module")
def on_4(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.run("probe_reshard.py", *CASES_4, procs=4, timeout=300, **MEGATRON))


@pytest.fixture(scope="module")
def more_on_4(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.run("probe_reshard.py", *MORE_4, procs=4, timeout=400, **MEGATRON))


@pytest.fixture(scope="module")
def on_8(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.run("probe_reshard.py", *CASES_8, procs=8, timeout=900, **MEGATRON))


def check_equal_to_gathering(ranks: list[dict[str, Any]], case: str) -> None:
    """Every rank gets its engine's experts and all other weights, as upstream's path gives them, and nothing else."""
    for rank in ranks:
        result = rank[case]
        assert result["missing"] == result["unasked"] == result["differ"] == result["wrong"] == []
        assert result["twice"] == 0
        assert result["expert_weights"] > 0
        assert result["dtypes"] == ["torch.bfloat16"]
        experts = int(case.split(":")[1])
        assert result["expert_weights"] * experts == result["all_expert_weights"] * len(result["holds"])


def check_received_as_planned(ranks: list[dict[str, Any]], case: str) -> None:
    """What collectives bring a rank, counted: experts it does not train, instead of those that others keep as well."""
    for rank in ranks:
        result, planned = rank[case], rank[case]["planned"]
        gather, sent = result["all_gather"]["received"], result["all_to_all"]["received"]
        others = {name: sent[name] for name in ("all_gather", "broadcast")}
        assert sent["all_to_all_single"] == planned["all_to_all"]
        assert sum(gather.values()) - sum(others.values()) == planned["all_gather"]
        assert planned["all_to_all"] <= planned["all_gather"]


@pytest.mark.on
@pytest.mark.parametrize("case", CASES_4)
def test_weights_equal_those_gathered(on_4: list[dict[str, Any]], case: str) -> None:
    check_equal_to_gathering(on_4, case)


@pytest.mark.on
@pytest.mark.parametrize("case", CASES_4)
def test_bytes_received_are_those_planned(on_4: list[dict[str, Any]], case: str) -> None:
    check_received_as_planned(on_4, case)


@pytest.mark.on
def test_same_layout_sends_nothing(on_4: list[dict[str, Any]]) -> None:
    for rank in on_4:
        result = rank["qwen3_moe:8:1:1:1:4:4:1"]
        assert result["all_to_all"]["rounds"] == 0
        assert result["planned"]["all_gather"] > 0


@pytest.mark.on
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_extra_memory_is_two_experts_at_most(on_4: list[dict[str, Any]], family: str) -> None:
    """With one expert a round: the one that comes, and the one before it, which vllm's loop still refers to."""
    for rank in on_4:
        result = rank[f"{family}:8:1:1:1:4:2:1"]
        expert = result["planned"]["expert_bytes"]
        assert expert <= result["all_to_all"]["peak"] <= 2 * expert
        # Upstream: a local expert of each of the four ranks, those gathered before, and copies into gate and up.
        assert result["all_gather"]["peak"] >= 8 * expert


@pytest.mark.on
def test_fewer_collectives_when_several_experts_go_in_a_round(on_4: list[dict[str, Any]]) -> None:
    for rank in on_4:
        one, several = (rank[f"qwen3_moe:8:1:1:1:4:2:{size}"]["all_to_all"] for size in (1, 0))
        weights = 4 * 2  # four layers, fc1 and fc2
        assert several["rounds"] == weights
        assert one["rounds"] == 4 * weights
        assert one["received"] == several["received"]


@pytest.mark.on
def test_ranks_that_exchange_nothing_share_no_group(on_4: list[dict[str, Any]]) -> None:
    assert [rank["qwen3_moe:8:1:1:1:4:4:1"]["group"] for rank in on_4] == [[0], [1], [2], [3]]
    assert [rank["qwen3_moe:8:1:1:1:1:4:1"]["group"] for rank in on_4] == [[0], [1], [2], [3]]
    assert on_4[0]["qwen3_moe:8:1:2:1:1:4:1"]["group"] == [0, 1, 2, 3]


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_4)
def test_more_layouts_on_4_ranks(more_on_4: list[dict[str, Any]], case: str) -> None:
    check_equal_to_gathering(more_on_4, case)
    check_received_as_planned(more_on_4, case)


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES_8)
def test_on_8_ranks(on_8: list[dict[str, Any]], case: str) -> None:
    check_equal_to_gathering(on_8, case)
    check_received_as_planned(on_8, case)


@pytest.mark.off
@pytest.mark.slow
def test_left_alone_every_rank_gets_all_experts(upstream: Upstream) -> None:
    cases = ["qwen3_moe:8:1:1:1:2:0:0", "deepseek_v3:8:1:2:1:1:0:0"]
    for rank in upstream.run("probe_reshard.py", *cases, procs=2, timeout=200, **MEGATRON):
        for case, moe_layers in zip(cases, (4, 3), strict=True):
            assert rank[case]["experts"] == list(range(8))
            assert rank[case]["weights"][1] == moe_layers * 8 * 3
            assert rank[case]["wrong"] == []


@pytest.fixture(scope="module")
def settings_probe(upstream: Upstream) -> Any:
    return upstream.run("probe_reshard_config.py", **MEGATRON)


@pytest.mark.on
def test_switch_reaches_the_worker_from_the_command_line(settings_probe: Any) -> None:
    assert settings_probe["declared"] == {"default": False, "set": True}
    assert settings_probe["wrongly refused"] == []


@pytest.mark.on
def test_dense_model_takes_upstreams_path(settings_probe: Any) -> None:
    assert settings_probe["dense"] is None


@pytest.mark.on
def test_worker_gives_its_rollout_what_is_exchanged(settings_probe: Any) -> None:
    given = settings_probe["rollout mode"]
    assert given["same"]
    assert given["first"] == ["model.embed_tokens.weight", "model.layers.0.mlp.experts.0.gate_proj.weight"]


@pytest.mark.off
def test_worker_starts_as_before(upstream: Upstream) -> None:
    out = upstream.run("probe_reshard_config.py", "off", **MEGATRON)
    assert out == {"worker": "started"}


REFUSED = {
    "mbridge": "actor.megatron.use_mbridge=False",
    "expert tensor parallel": "actor.megatron.expert_tensor_parallel_size=1",
    "expert tensor parallel left open": "actor.megatron.expert_tensor_parallel_size=1",
    "sglang": "rollout.name=vllm",
    "async": "rollout.mode=sync",
    "actor alone": "actor and rollout in one worker",
    "reference": "actor_rollout_ref.actor.megatron.ep_alltoallv_reshard",
    "vllm's EPLB": "no expert load balancing",
    "vllm-ascend's EPLB": "no expert load balancing",
    "vllm-ascend's map": "no expert load balancing",
    "vllm-ascend's EPLB as text": "no expert load balancing",
    "redundant experts": "no expert load balancing",
}


@pytest.mark.misuse
@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_it_cannot_serve_are_refused_at_start(settings_probe: Any, case: str) -> None:
    message = settings_probe["refused"][case]
    assert message.startswith("ValueError: "), message
    assert "ep_alltoallv_reshard" in message
    assert REFUSED[case] in message


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("part", "section"),
    [("critic", "critic.megatron"), ("reward model", "reward_model.megatron"), ("engine worker", "actor.engine")],
)
def test_workers_that_send_nothing_to_a_rollout_refuse_it(settings_probe: Any, part: str, section: str) -> None:
    message = settings_probe["elsewhere"][part]
    assert message.startswith(f"{section}.ep_alltoallv_reshard has no meaning"), message
    assert "set it to False, and actor_rollout_ref.actor.megatron.ep_alltoallv_reshard if you mean that" in message


@pytest.mark.misuse
def test_experts_that_it_cannot_send_are_refused(settings_probe: Any) -> None:
    said = settings_probe["experts"]
    assert "moe_grouped_gemm=True" in said["unknown name"]
    assert said["grouped"].startswith("actor_rollout_ref.actor.megatron.ep_alltoallv_reshard=True, rank 0: ")
    assert "set actor_rollout_ref.actor.megatron.grouped_experts=True" in said["grouped"]
    assert "has the shape (64, 384), gated ones have (64, 400)" in said["padded"]
    assert "4 experts on this rank, the configuration says 8" in said["number"]


# ---- the engine: what it keeps, and that it does without the rest


@pytest.fixture(scope="module")
def engines(upstream: Upstream, tiny_models: TinyModels) -> list[dict[str, Any]]:
    return list(upstream.run("probe_reshard_engine.py", tiny_models.qwen3_moe, procs=2, timeout=400, **NPU))


@pytest.mark.on
@pytest.mark.slow
def test_engine_says_which_experts_it_keeps(engines: list[dict[str, Any]]) -> None:
    assert [rank["held"] for rank in engines] == [[0, 1], [2, 3]]
    for rank in engines:
        assert rank["ranks"] == [0, 1]
        assert rank["layer"] == "AscendFusedMoE"
        assert rank["local"] == 2


@pytest.mark.on
@pytest.mark.slow
def test_engine_loads_its_own_experts_without_the_others(engines: list[dict[str, Any]]) -> None:
    for rank in engines:
        loading = rank["loading"]
        assert loading["differ"] == loading["nan"] == []
        assert loading["sent"][0] == loading["sent"][1] - 2 * 2 * 3  # two layers, two experts, three projections


@pytest.mark.on
@pytest.mark.slow
def test_layouts_under_test_are_those_of_vllm(engines: list[dict[str, Any]]) -> None:
    for case, placed in engines[0]["placement"].items():
        experts, size = map(int, case.split(" on "))
        assert [list(kept_experts(experts, size, rank)) for rank in range(size)] == placed


@pytest.mark.misuse
@pytest.mark.slow
def test_engine_whose_experts_move_is_refused(engines: list[dict[str, Any]]) -> None:
    for rank in engines:
        assert "balances experts (EPLB)" in rank["refused"]["dynamic_eplb"]
        assert "differently in different layers" in rank["refused"]["_expert_map"]


@pytest.mark.misuse
@pytest.mark.slow
def test_no_rank_waits_for_one_that_failed(engines: list[dict[str, Any]]) -> None:
    for rank in engines:
        assert "rank 1: KeyError: 'experts'" in rank["one rank failed"]


# ---- the plan alone: pure, so it is loaded without torch and without the rest of verl


def plan_module(upstream: Upstream) -> ModuleType:
    return _load(upstream.tree("verl") / "verl/utils/ep_reshard.py")


@cache
def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ep_reshard_under_test", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SIZES = st.fixed_dictionaries(
    {
        "ep_train": st.sampled_from([1, 2, 3, 4, 8]),
        "pp": st.sampled_from([1, 2, 3]),
        "replicas": st.sampled_from([1, 2, 3]),
        "local": st.integers(1, 4),
        "ranks_per_node": st.sampled_from([2, 4, 100]),
        "data": st.data(),
    }
)


def layouts(plan: ModuleType, sizes: dict[str, Any]) -> tuple[list[Any], int]:
    """Layouts as Megatron and vllm make them: stage by stage, replica by replica; engines of any size that divides."""
    stage_ranks = sizes["ep_train"] * sizes["replicas"]
    ranks = stage_ranks * sizes["pp"]
    experts = sizes["local"] * sizes["ep_train"]
    engine = sizes["data"].draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    made = []
    for rank in range(ranks):
        first = rank % sizes["ep_train"] * sizes["local"]
        place = rank % engine
        made.append(
            plan.RankLayout(
                stage=rank // stage_ranks,
                owns=tuple(range(first, first + sizes["local"])),
                holds=kept_experts(experts, engine, place),
                engine=tuple(range(rank - place, rank - place + engine)),
                node=str(rank // sizes["ranks_per_node"]),
            )
        )
    return made, experts


@pytest.mark.on
@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes=SIZES, width=st.integers(1, 5))
def test_plan_brings_each_expert_once_from_an_owner(upstream: Upstream, sizes: dict[str, Any], width: int) -> None:
    plan = plan_module(upstream)
    made, experts = layouts(plan, sizes)
    plan.check_layouts(made, experts)
    all_transfers = []
    for stage in range(sizes["pp"]):
        transfers = plan.route(made, stage)
        all_transfers += transfers
        for transfer in transfers:
            assert made[transfer.source].stage == transfer.stage == stage
            assert transfer.expert in made[transfer.source].owns
        for rank, layout in enumerate(made):
            own = set(layout.owns) if layout.stage == stage else set()
            come = [transfer.expert for transfer in transfers if transfer.target == rank]
            assert sorted(come) == sorted(set(layout.holds) - own)
    check_rounds(plan, all_transfers, len(made), width)


def check_rounds(plan: ModuleType, transfers: list[Any], ranks: int, width: int) -> None:
    """Within a group, in as few rounds as the busiest rank needs, with splits that fit on both sides."""
    groups = plan.exchange_groups(ranks, transfers)
    assert sorted(rank for group in groups for rank in group) == list(range(ranks))
    of = {rank: group for group in groups for rank in group}
    assert all(of[transfer.source] == of[transfer.target] for transfer in transfers)
    for group in groups:
        mine = [transfer for transfer in transfers if transfer.target in group]
        busiest = max(
            [*Counter(one.source for one in mine).values(), *Counter(one.target for one in mine).values()], default=0
        )
        rounds = plan.merge_rounds(plan.single_rounds(mine), width)
        assert len(rounds) == -(-busiest // width)
        assert sorted(one for a_round in rounds for one in a_round) == sorted(mine)
        for a_round in rounds:
            assert a_round == sorted(a_round)
            splits = {rank: plan.splits(a_round, rank, group) for rank in group}
            for rank in group:
                assert sum(splits[rank][0]) <= width and sum(splits[rank][1]) <= width
                sent_to_rank = [splits[other][0][group.index(rank)] for other in group]
                assert sent_to_rank == splits[rank][1]


@pytest.mark.on
@settings(max_examples=60, deadline=None, derandomize=True)
@given(sizes=SIZES)
def test_replicas_share_the_sending(upstream: Upstream, sizes: dict[str, Any]) -> None:
    """On one node, those who train the same experts send as many, but for one; on several, a local owner is taken."""
    plan = plan_module(upstream)
    made, _ = layouts(plan, sizes)
    for stage in range(sizes["pp"]):
        transfers = plan.route(made, stage)
        sent = Counter(transfer.source for transfer in transfers)
        for rank, layout in enumerate(made):
            if sizes["ranks_per_node"] == 100 and layout.stage == stage:
                replicas = [other for other, its in enumerate(made) if (its.stage, its.owns) == (stage, layout.owns)]
                assert abs(sent[rank] - sent[replicas[0]]) <= 1
        for transfer in transfers:
            owners = [rank for rank, its in enumerate(made) if its.stage == stage and transfer.expert in its.owns]
            local = [rank for rank in owners if made[rank].node == made[transfer.target].node]
            assert not local or made[transfer.source].node == made[transfer.target].node


@pytest.mark.misuse
def test_layouts_that_do_not_fit_are_refused(upstream: Upstream) -> None:
    plan = plan_module(upstream)
    good = [plan.RankLayout(0, (0, 1), (0, 1), (0, 1)), plan.RankLayout(0, (2, 3), (2, 3), (0, 1))]
    plan.check_layouts(good, 4)
    wrong = {
        "keeps experts": [good[0], plan.RankLayout(0, (2, 3), (1, 2, 3), (0, 1))],
        "others disagree": [good[0], plan.RankLayout(0, (2, 3), (0, 1, 2, 3), (1,))],
        "pipeline stage 0 trains": [good[0], plan.RankLayout(0, (2,), (2, 3), (0, 1))],
    }
    for message, made in wrong.items():
        with pytest.raises(ValueError, match=message):
            plan.check_layouts(made, 4)
