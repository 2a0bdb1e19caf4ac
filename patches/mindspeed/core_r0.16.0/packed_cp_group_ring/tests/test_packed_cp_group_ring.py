"""packed_cp_group_ring: attention of micro-batches that bring their context parallel ranks equals that of whole sequences."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_packed_cp_group_ring.py"
WHERE = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu", "npu_attention"]}
CLOSE = 1e-5
BOTH, ALONE, NONE = [[0, 2]], [[0, 1], [1, 1]], []
TWO: dict[str, dict[str, Any]] = {
    "sbhd both": {"blocks": BOTH, "format": "sbhd", "backwards": True},
    "sbhd alone": {"blocks": ALONE, "format": "sbhd"},
    "thd both": {"blocks": BOTH, "format": "thd"},
    "thd alone": {"blocks": ALONE, "format": "thd", "backwards": True},
    "thd alone, no group": {"blocks": ALONE, "format": "thd", "alone": True},
    "thd both, second group": {
        "blocks": BOTH,
        "format": "thd",
        "second": True,
        "settings": {"use_cp_send_recv_overlap": True},
    },
}
FOUR: dict[str, dict[str, Any]] = {
    "sbhd pairs": {"blocks": [[0, 2], [2, 2]], "format": "sbhd", "backwards": True},
    "sbhd two alone and a pair": {"blocks": [[0, 1], [1, 1], [2, 2]], "format": "sbhd"},
    "sbhd all": {"blocks": [[0, 4]], "format": "sbhd"},
    "sbhd pairs that keep keys": {
        "blocks": [[0, 2], [2, 2]],
        "format": "sbhd",
        "settings": {"context_parallel_kv_cache_policy": "full"},
    },
    "thd pairs": {"blocks": [[0, 2], [2, 2]], "format": "thd", "backwards": True},
    "thd pairs, no padded bounds": {"blocks": [[0, 2], [2, 2]], "format": "thd", "no_padded": True},
    "thd two alone and a pair": {"blocks": [[0, 2], [2, 1], [3, 1]], "format": "thd", "backwards": True},
    "thd all": {"blocks": [[0, 4]], "format": "thd"},
}
OFF: dict[str, dict[str, Any]] = {
    "sbhd": {"blocks": NONE, "format": "sbhd", "backwards": True},
    "thd": {"blocks": NONE, "format": "thd", "backwards": True},
    "sbhd alone without context parallelism": {
        "blocks": ALONE,
        "format": "sbhd",
        "settings": {"context_parallel_size": 1},
    },
}
# What is set, and what the message has to name.
MISUSE: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm": ({"config": {"context_parallel_algo": "hybrid_cp_algo"}}, "context_parallel_algo=hybrid_cp_algo"),
    "mask": ({"config": {"attention_mask_type": "general"}}, "attention_mask_type=general"),
    "no mask": ({"mask": "no_mask"}, "attn_mask_type=no_mask"),
    "window": ({"config": {"cp_window_size": 2}}, "cp_window_size=2"),
    "end of document": ({"config": {"reset_attention_mask": True}}, "reset_attention_mask=True"),
    "two dimensions": ({"config": {"tp_2d": True}}, "tp_2d=True"),
    "latent attention": ({"config": {"multi_latent_attention": True}}, "multi_latent_attention=True"),
    "fused rotary operator": ({"format": "thd", "config": {"apply_rope_fusion": True}}, "apply_rope_fusion=True"),
    "no second group": ({"settings": {"use_cp_send_recv_overlap": True}}, "use_cp_send_recv_overlap=True"),
    "another size": ({"packed": {"local_cp_size": 4}}, "local_cp_size=4"),
    "no group": ({"packed": {"cp_group": None}}, "local_cp_size=2 without cp_group"),
    "gathered keys": (
        {"settings": {"context_parallel_algo": "kvallgather_cp_algo"}, "blocks": ALONE},
        "=megatron_cp_algo",
    ),
    "size 1": ({"settings": {"context_parallel_size": 1}}, "context_parallel_size > 1"),
    "size 1, local": (
        {"format": "thd", "settings": {"context_parallel_size": 1}, "local": True},
        "context_parallel_size > 1",
    ),
}


def run(upstream: Upstream, cases: dict[str, Any], procs: int) -> list[dict[str, Any]]:
    return list(upstream.run(PROBE, json.dumps(cases), procs=procs, timeout=400, **WHERE))


def assert_close(ranks: list[dict[str, Any]], case: str) -> None:
    """Output and gradients of every rank are those of whole sequences."""
    for rank in ranks:
        assert sorted(rank[case]) == ["key", "output", "query", "value"]
        assert max(rank[case].values()) < CLOSE, rank[case]


@pytest.fixture(scope="module")
def two(upstream: Upstream) -> list[dict[str, Any]]:
    refused = {name: {"blocks": BOTH, "format": "sbhd", "refused": True} | case for name, (case, _) in MISUSE.items()}
    return run(upstream, TWO | refused, procs=2)


@pytest.mark.on
@pytest.mark.parametrize("case", TWO)
def test_two_ranks(two: list[dict[str, Any]], case: str) -> None:
    assert_close(two, case)


@pytest.mark.misuse
@pytest.mark.parametrize("case", MISUSE)
def test_what_does_not_go_with_it_is_named(two: list[dict[str, Any]], case: str) -> None:
    for rank in two:
        assert isinstance(rank[case], str), rank[case]
        assert rank[case].startswith(("NotImplementedError: ", "ValueError: ")), rank[case]
        assert MISUSE[case][1] in rank[case]


@pytest.fixture(scope="module")
def four(upstream: Upstream) -> list[dict[str, Any]]:
    return run(upstream, FOUR, procs=4)


@pytest.mark.on
@pytest.mark.parametrize("case", FOUR)
def test_parts_of_four_ranks(four: list[dict[str, Any]], case: str) -> None:
    assert_close(four, case)


@pytest.fixture(scope="module")
def off(upstream: Upstream) -> list[dict[str, Any]]:
    return run(upstream, OFF, procs=2)


@pytest.mark.off
@pytest.mark.parametrize("case", OFF)
def test_micro_batches_without_ranks(off: list[dict[str, Any]], case: str) -> None:
    assert_close(off, case)
