"""chunked_moe: the experts take their tokens in chunks, and nothing else changes.

A tiny Qwen3-MoE on two data-parallel ranks of unequal load, with experts spread over them, by all-to-all and by
all-gather; then the layer alone, with every argument that it has.
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": [
        "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "torchvision", "vllm-cpu-dist-info", "vllm-ascend-dist-info",
    ],
    "timeout": 240,
}  # fmt: skip
ENGINE_CHUNK = 8
TOKENS, CHUNK = 11, 3  # as in chunked_moe_cases.py
GIVEN = [3, 3, 3, 2]
# The first layer of the first step: 33 tokens on rank 0 and 3 on rank 1, which has none for its last two exchanges. For all-gather both
# are padded to the longer.
FIRST = {"ALLTOALL": [[7, 7, 7, 6, 6], [1, 1, 1, 0, 0]], "ALLGATHER": [[8, 8, 8, 7, 7, 7, 7, 7, 7]] * 2}
KINDS = ("ALLTOALL", "ALLGATHER")
# Products of float32 in another order of rows; bfloat16 has eight bits.
TOLERANCE = {"bfloat16": 2**-7}
FLOAT32 = 1e-6


@pytest.fixture(scope="module")
def ranks(upstream: Upstream, tiny_models: TinyModels) -> Any:
    config = json.dumps({"moe_chunk_tokens": ENGINE_CHUNK})
    return upstream.run(
        "probe_chunked_moe.py",
        tiny_models.qwen3_moe,
        config,
        procs=2,
        **NPU,
        env={"VLLM_ASCEND_ENABLE_NZ": "0"},
    )


@pytest.mark.on
@pytest.mark.parametrize("kind", KINDS)
def test_engine_gives_the_same_tokens_in_chunks(ranks: Any, kind: str) -> None:
    for rank, first in zip(ranks, FIRST[kind], strict=True):
        assert rank["engine"][kind]["tokens"] == rank["hf"]
        assert rank["engine"][kind]["given"][: len(first)] == first
        assert max(rank["engine"][kind]["given"]) <= ENGINE_CHUNK


@pytest.mark.on
def test_uneven_ranks_take_the_same_number_of_chunks(ranks: Any) -> None:
    by_all_to_all = [rank["uneven"]["ALLTOALL"] for rank in ranks]
    # 13 tokens in chunks of at most 4; the other rank has 2 and still takes part in all exchanges.
    assert [one["given"] for one in by_all_to_all] == [[4, 3, 3, 3], [1, 1, 0, 0]]
    # The gathered tokens of both, padded to the longer, without an exchange between them.
    assert [rank["uneven"]["ALLGATHER"]["given"] for rank in ranks] == [[4, 4, 4, 4, 4, 3, 3]] * 2
    assert all(one["difference"] <= FLOAT32 for rank in ranks for one in rank["uneven"].values())


@pytest.mark.on
def test_the_longer_share_of_tensor_parallel_ranks_is_cut_too(upstream: Upstream, tiny_models: TinyModels) -> None:
    ranks = upstream.run(
        "probe_chunked_shares.py", tiny_models.qwen3_moe, 2 * ENGINE_CHUNK + 1, ENGINE_CHUNK, procs=2, **NPU
    )
    # Nine tokens and eight: as many exchanges on both, none of more than eight.
    assert [rank["given"] for rank in ranks] == [[5, 4], [4, 4]]
    assert all(rank["difference"] <= FLOAT32 for rank in ranks)


@pytest.mark.on
@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_gives_what_the_whole_gives(ranks: Any, kind: str) -> None:
    for rank in ranks:
        assert len(rank["cases"][kind]) >= 10
        for name, case in rank["cases"][kind].items():
            assert len(case["calls"]) == ceil(TOKENS / CHUNK), name
            assert case["difference"] <= TOLERANCE.get(name, FLOAT32), name
            assert case["alike"], name


@pytest.mark.on
@pytest.mark.parametrize("kind", KINDS)
def test_every_per_token_argument_is_cut(ranks: Any, kind: str) -> None:
    for case in ranks[0]["cases"][kind].values():
        assert {name: [call[name] for call in case["calls"]] for name in case["calls"][0]} == dict.fromkeys(
            case["calls"][0], GIVEN
        )
    assert "mc2_mask" in ranks[0]["cases"][kind]["mc2_mask"]["calls"][0]
    assert "pertoken_scale" in ranks[0]["cases"]["ALLGATHER"]["w8a8, tokens quantized"]["calls"][0]


@pytest.mark.on
@pytest.mark.parametrize("kind", KINDS)
def test_expert_counts_are_those_of_all_tokens(ranks: Any, kind: str) -> None:
    for rank in ranks:
        for name, case in rank["cases"][kind].items():
            chunked, whole = case["counts"]
            assert chunked == whole, name
            assert case["types"] == [1, 1], name
    sent = sum(sum(rank["cases"]["ALLTOALL"]["plain"]["counts"][0]) for rank in ranks)
    assert sent == 2 * TOKENS * 2  # ranks, tokens, experts a token


@pytest.mark.on
@pytest.mark.parametrize("kind", KINDS)
def test_shared_experts_are_left_whole(ranks: Any, kind: str) -> None:
    for rank in ranks:
        found = rank["shared"][kind]
        assert found["shared"] == 0
        assert found["routed"] <= FLOAT32
        assert len(found["given"]) > 1


@pytest.mark.on
def test_graphs_and_mc2_are_left_alone(ranks: Any) -> None:
    for rank in ranks:
        assert rank["left alone"] == {"eager": len(GIVEN), "graph": 1, "capture": 1, "MC2": 1, "FUSED_MC2": 1}


@pytest.mark.off
@pytest.mark.slow
def test_without_the_setting_nothing_is_cut(upstream: Upstream, tiny_models: TinyModels) -> None:
    env = {"VLLM_ASCEND_ENABLE_NZ": "0"}
    ranks = upstream.run("probe_chunked_moe.py", tiny_models.qwen3_moe, "{}", procs=2, env=env, **NPU)
    for rank, tokens in zip(ranks, (33, 3), strict=True):
        assert [rank["engine"][kind]["tokens"] for kind in KINDS] == [rank["hf"]] * 2
        assert [max(rank["engine"][kind]["given"]) for kind in KINDS] == [tokens, 66]


WRONG: list[dict[str, Any]] = [{"additional": {"moe_chunk_tokens": value}} for value in (-1, 8.0, "8", True, None, [8])]
TOGETHER: list[dict[str, Any]] = [
    {"additional": {"moe_chunk_tokens": 8}, "fused": 1},
    {"additional": {"moe_chunk_tokens": 8, "enable_fused_mc2": 1}},
    {"additional": {"moe_chunk_tokens": 8}, "role": "kv_consumer", "data_parallel_size": 2},
    {"additional": {"moe_chunk_tokens": 8}, "enable_lora": True},
]
RIGHT: list[dict[str, Any]] = [
    {"additional": {}, "fused": 1},
    {"additional": {"moe_chunk_tokens": 0}, "fused": 1},
    {"additional": {"moe_chunk_tokens": 0}, "enable_lora": True},
    {"additional": {"moe_chunk_tokens": 8}},
    {"additional": {"moe_chunk_tokens": 8}, "fused": 2},
    {"additional": {"moe_chunk_tokens": 8}, "role": "kv_producer", "data_parallel_size": 2},
    {"additional": {"moe_chunk_tokens": 8}, "role": "kv_consumer"},
]


@pytest.mark.misuse
def test_wrong_settings_are_refused(upstream: Upstream, tiny_models: TinyModels) -> None:
    cases = [json.dumps(case) for case in WRONG + TOGETHER + RIGHT]
    answers = upstream.run("probe_chunked_config.py", tiny_models.qwen3_moe, *cases, **NPU)
    wrong, together, right = answers[: len(WRONG)], answers[len(WRONG) : -len(RIGHT)], answers[-len(RIGHT) :]
    assert all("moe_chunk_tokens must be a number of tokens or 0, not" in answer for answer in wrong)
    assert all("set enable_fused_mc2 to 0 or 2" in answer for answer in together[:2])
    assert "leave moe_chunk_tokens out on decode nodes" in together[2]
    assert "cannot be used with LoRA" in together[3]
    assert right == [None] * len(RIGHT)


@pytest.mark.on
@pytest.mark.slow
def test_peak_memory_grows_no_more_with_imbalance(upstream: Upstream, tiny_models: TinyModels) -> None:
    settings = {"tokens": 256, "hidden": 64, "width": 32, "experts": 8, "k": 4, "picks": [2, 4], "chunks": [0, 32]}
    rank, _ = upstream.run("probe_chunked_memory.py", tiny_models.qwen3_moe, json.dumps(settings), procs=2, **NPU)
    peak = {(one["kind"], one["picks"], one["size"]): one["peak"] for one in rank}
    # Balanced, and then with every token's experts all on this rank: twice the rows.
    grown = peak["ALLTOALL", 4, 0] - peak["ALLTOALL", 2, 0]
    assert grown > 0.5 * peak["ALLTOALL", 2, 0]
    assert peak["ALLTOALL", 4, 32] - peak["ALLTOALL", 2, 32] < grown / 6
    assert peak["ALLTOALL", 4, 32] < peak["ALLTOALL", 4, 0] / 4
    assert peak["ALLGATHER", 2, 32] < peak["ALLGATHER", 2, 0] / 4
    assert all(one["difference"] <= FLOAT32 for one in rank)
