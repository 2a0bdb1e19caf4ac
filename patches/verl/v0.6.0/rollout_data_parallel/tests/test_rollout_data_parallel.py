"""rollout_data_parallel: verl's synchronous vllm rollout, with engines of several data parallel ranks.

Workers, rollout, dispatch and collect functions, vllm and vllm-ascend's experts are real; the device below vllm's worker
is a CPU and the single controller is rank 0 of the torch world. Tokens are compared with Hugging Face's own greedy ones.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from old_vllm import V0_10_0

NPU = {
    "need": ["verl", "vllm-ascend", "vllm", "megatron-lm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
EXPERTS = 4
NEVER_GIVEN = {"data_parallel_size", "enable_expert_parallel", "async_scheduling"}
TWO = {"procs": 2, "worker": "megatron", "settings": {"data_parallel_size": 2}}
FOUR = {
    "procs": 4,
    "worker": "fsdp",
    "settings": {"data_parallel_size": 2, "tensor_model_parallel_size": 2, "expert_parallel_size": 4},
}
WIDE = {"procs": 4, "worker": "megatron", "settings": {"data_parallel_size": 4, "expert_parallel_size": 4}}
TWO_GROUPS = {"procs": 4, "worker": "fsdp", "settings": {"data_parallel_size": 2, "expert_parallel_size": 2}}


def run(upstream: Upstream, model: object, *cases: dict[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    """Runs the cases; returns for each its settings and what its ranks found, which holds for every data parallel world."""
    out = upstream.run("probe_rollout_dp.py", model, json.dumps(cases), timeout=420, **NPU)
    worlds = out["worlds"]
    for ranks in worlds:
        for rank in ranks:
            rank["hf"], rank["all_prompts"] = out["hf"], out["prompts"]
    return list(zip(cases, worlds, strict=True))


@pytest.fixture(scope="module")
def worlds(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return run(upstream, tiny_models.qwen3_moe, TWO, FOUR)


def sizes(case: dict[str, Any]) -> tuple[int, int, int]:
    """Data, tensor and expert parallel size."""
    settings = case["settings"]
    return (
        settings["data_parallel_size"],
        settings.get("tensor_model_parallel_size", 1),
        settings.get("expert_parallel_size", 1),
    )


def assert_each_prompt_once(case: dict[str, Any], ranks: Any) -> None:
    """Shards are neighbouring tensor parallel groups; together they have every prompt once, in order."""
    tp = sizes(case)[1]
    for index, rank in enumerate(ranks):
        assert rank["shard"] == index // tp
        assert rank["collect"] == (index % tp == 0)
        assert rank["prompts"] == ranks[index - index % tp]["prompts"]  # of one engine, one set of prompts
        assert rank["seed"] == 1000 + rank["shard"]
    collected = [prompt for rank in ranks if rank["collect"] for prompt in rank["prompts"]]
    assert collected == ranks[0]["all_prompts"]


def assert_placed(case: dict[str, Any], ranks: Any) -> None:
    """vllm's groups and experts are as verl dispatches; of the variables only size and rank are set, and put back."""
    dp, tp, ep = sizes(case)
    size = dp * tp
    for index, rank in enumerate(ranks):
        first = index - index % size
        assert rank["size_rank"] == [dp, index % size // tp]
        assert rank["groups"] == [
            list(range(first + index % tp, first + size, tp)),
            list(range(index - index % tp, index - index % tp + tp)),
            list(range(first, first + size)),
        ]
        assert rank["expert_parallel"] == (ep > 1)
        assert rank["experts"] == (EXPERTS // ep)
        assert rank["environment"] == {"VLLM_DP_SIZE": str(dp), "VLLM_DP_RANK": str(index % size // tp)}
        # The environment, and what vllm has cached of it, is as it was before the engine was built.
        assert not rank["left"]
        assert rank["remembered"] == 1
        assert rank["groups_made_later"] == 0


def assert_tokens(ranks: Any) -> None:
    hf = ranks[0]["hf"]
    everything, padded_and_cut = ranks[0]["tokens"]
    assert everything == hf
    assert padded_and_cut == hf[: len(padded_and_cut)]
    assert len({tuple(tokens) for tokens in hf}) == len(hf)  # a mix-up of prompts would show


def assert_uneven_load(ranks: Any) -> None:
    """A data parallel rank that is done takes part in the others' steps, and nobody's tokens change."""
    for rank in ranks:
        uneven, hf = rank["uneven"], rank["hf"]
        first = rank["size_rank"][1] == 0
        wanted = [hf[index] for index in uneven["prompts"]]
        found = uneven["tokens"]
        assert [tokens[:1] for tokens in found] == [tokens[:1] for tokens in wanted] if first else found == wanted
        assert uneven["dummy_steps"] == (len(hf[0]) - 1 if first else 0)


def assert_all(case: dict[str, Any], ranks: Any) -> None:
    assert_each_prompt_once(case, ranks)
    assert_placed(case, ranks)
    assert_tokens(ranks)
    assert_uneven_load(ranks)


@pytest.mark.on
def test_every_prompt_is_generated_once(worlds: Any) -> None:
    for case, ranks in worlds:
        assert_each_prompt_once(case, ranks)


@pytest.mark.on
def test_engines_are_where_verl_dispatches(worlds: Any) -> None:
    for case, ranks in worlds:
        assert_placed(case, ranks)


@pytest.mark.on
def test_tokens_equal_one_process(worlds: Any) -> None:
    for _, ranks in worlds:
        assert_tokens(ranks)


@pytest.mark.on
def test_uneven_load_neither_hangs_nor_changes_tokens(worlds: Any) -> None:
    for _, ranks in worlds:
        assert_uneven_load(ranks)


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", [WIDE, TWO_GROUPS], ids=["dp4", "two_groups"])
def test_four_processes_otherwise(upstream: Upstream, tiny_models: TinyModels, case: dict[str, Any]) -> None:
    [(case, ranks)] = run(upstream, tiny_models.qwen3_moe, case)
    assert_all(case, ranks)


@pytest.fixture(scope="module")
def told(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_rollout_dp_misuse.py"
    return upstream.run(script, tiny_models.qwen3, tiny_models.qwen3_moe, timeout=240, **NPU)


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("dense", ["rollout.data_parallel_size=2", "Qwen3Config has none", "set both to 1"]),
        ("world", ["rollout.data_parallel_size=3", "multiple of 3 processes", "there are 2"]),
        ("none", ["rollout.data_parallel_size=0", "set it to 1"]),
        ("experts", ["expert_parallel_size must be equal to tensor_model_parallel_size * data_parallel_size"]),
        ("twice", ["rollout.engine_kwargs.vllm.enable_expert_parallel=True", "leave it out"]),
        ("twice_off", ["rollout.engine_kwargs.vllm.enable_expert_parallel=False", "leave it out"]),
        ("asynchronous", ["rollout.engine_kwargs.vllm.async_scheduling=True", "leave it out"]),
        ("size", ["VLLM_DP_SIZE=4", "rollout.data_parallel_size=2", "unset"]),
        ("size_of_one", ["process 1", "VLLM_DP_SIZE=4", "rollout.data_parallel_size=2", "unset"]),
    ],
)
def test_what_cannot_work_is_refused_on_every_rank(told: Any, case: str, words: list[str]) -> None:
    for rank in told:
        assert rank[case] is not None
        missing = [word for word in words if word not in rank[case]]
        assert not missing, rank[case]


@pytest.mark.misuse
def test_without_data_parallelism_only_contradictions_are_refused(told: Any) -> None:
    for rank in told:
        accepted = rank["accepted"]
        assert accepted["experts"] == [{"enable_expert_parallel": True}, []]
        assert accepted["agreeing"] == [{}, []]  # LLM is given the user's own
        assert accepted["dense"] == [
            {},
            ["rollout.expert_parallel_size=2 has no effect: Qwen3Config has no experts"],
        ]


@pytest.mark.misuse
def test_an_engine_that_is_elsewhere_than_verl_dispatches_is_refused(worlds: Any) -> None:
    for _, ranks in worlds:
        for rank in ranks:
            right, *wrong = rank["misplaced"]
            assert right is None
            assert len(wrong) == 3
            assert all("this vllm orders its ranks differently" in said for said in wrong), wrong


@pytest.mark.off
def test_other_rollouts_and_size_one_are_as_upstream(
    upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> None:
    metadata, sources = V0_10_0.python_path(tmp_path_factory.mktemp("old_vllm"))
    path = os.pathsep.join(map(str, [metadata, upstream.tree("verl"), sources]))
    probe = "probe_rollout_dp_off.py"
    models = [tiny_models.qwen3_moe, tiny_models.qwen3]
    first, second = upstream.run(probe, *models, env={"PYTHONPATH": path}, timeout=180)
    llm, twice = first.pop("llm"), first.pop("twice")
    without_experts, with_experts = first.pop("dense")
    assert not NEVER_GIVEN & set(llm["arguments"])
    assert len(llm["arguments"]) == 17
    assert llm["environment"] == []
    assert with_experts == without_experts
    assert twice["arguments"] == llm["arguments"] | {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    assert first == {
        "sync": [0, True, 1000],
        "sync_replicas": [0, True, 1000],
        "async": [0, True, 1000],
        "sglang": [0, True, 1000],
    }
    assert second == {
        "sync": [0, False, 1000],
        "sync_replicas": [1, True, 1001],
        "async": [0, False, 1000],
        "sglang": [0, False, 1000],
    }
