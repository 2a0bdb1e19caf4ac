"""dynamic_cp_groups: verl's own dynamic_context_parallel, with MindSpeed's ring, computes what one rank does with whole sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "tests/behaviour/verl/probe_dynamic_cp.py"
WHERE: dict[str, Any] = {
    "need": ["verl", "megatron-lm", "mindspeed"],
    "standins": [
        "torch_npu", "megatron_cpu", "npu_attention", "npu_training", "npu_training_0_9", "patchctl_standins", "torchvision",
    ],
    "env": {"PATCHCTL_STANDINS": "0"},
    "timeout": 500,
}  # fmt: skip
LENGTHS = [60, 5, 33, 12, 3, 9, 20, 16, 7, 27]
CAP = 16
DYNAMIC = {"context_parallel_size": 2, "dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": CAP}
FLOAT32 = {"dtype": "float32"}
# What the recipes of 2026.11 tell MindSpeed and Megatron-LM of attention and recomputation.
RECIPES = {
    "use_flash_attn": True,
    "use_fused_rotary_pos_emb": True,
    "position_embedding_type": "rope",
    "use_fused_swiglu": True,
    "use_fused_ring_attention_update": True,
    "context_parallel_algo": "megatron_cp_algo",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def run(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four ranks, held against one that has all sequences whole; `common` is what both are told."""
    folder = tmp_path_factory.mktemp("whole")

    def ranks(kind: str, common: dict[str, Any], settings: dict[str, Any], procs: int = 4) -> list[Any]:
        model = getattr(tiny_models, kind)
        file = folder / f"{kind} {hash(json.dumps(common))}"
        if not file.exists():
            upstream.run(PROBE, model, json.dumps(common), json.dumps(LENGTHS), file, **WHERE)
        return list(
            upstream.run(PROBE, model, json.dumps(common | settings), json.dumps(LENGTHS), file, procs=procs, **WHERE)
        )

    return ranks


def assert_shared(made: list[Any], sizes: set[int], cap: int = CAP) -> None:
    """Sequences were on these numbers of ranks, no rank had more tokens than allowed, and one that is too long is refused."""
    for rank in made:
        assert rank["error"] is None
        assert rank["engine"] == "MindspeedEngineWithLMHead"
        assert rank["shared"]
        assert max(rows for _, rows, _ in rank["shared"]) <= cap
        assert rank["too long"].startswith(f"ValueError: A sequence with {cap * max(sizes) + 1} tokens needs at least ")
    assert {size for rank in made for size, _, _ in rank["shared"]} == sizes
    seen = {length for rank in made for _, _, lengths in rank["shared"] for length in lengths}
    assert seen == set(LENGTHS)


def assert_close(made: list[Any], close: float) -> None:
    """Log-probabilities and entropies in the batch's order, loss and norm on the ranks that verl gives them; the rest on each."""
    for name in ("log_probs", "entropy", "loss", "norm"):
        found = [rank[name] for rank in made if rank[name] is not None]
        assert found
        assert max(found) < close, (name, found)
    for rank in made:
        assert max(rank["gradients"], rank["parameters"]) < close, rank
        assert rank["compared"] > 5


@pytest.mark.on
def test_a_step_equals_one_of_whole_sequences(run: Run) -> None:
    made = run("qwen3", FLOAT32, DYNAMIC)
    assert_shared(made, {1, 2, 4})
    assert_close(made, 1e-4)


@pytest.mark.on
def test_a_step_with_a_recipes_settings_in_bf16(run: Run) -> None:
    made = run("qwen3", {"override_transformer_config": RECIPES}, DYNAMIC)
    assert_shared(made, {1, 2, 4})
    with_results = next(rank for rank in made if rank["log_probs"] is not None)
    assert max(with_results["log_probs"], with_results["entropy"]) < 0.1
    assert max(with_results["loss"], with_results["norm"]) < 0.05


@pytest.mark.on
def test_experts_over_two_ranks(run: Run) -> None:
    """Ranks with unequal numbers of tokens send them to each other's experts; the loss is a mean over sequences."""
    made = run(
        "qwen3_moe", FLOAT32 | {"loss_agg_mode": "seq-mean-token-mean"}, DYNAMIC | {"expert_model_parallel_size": 2}
    )
    assert_shared(made, {1, 2, 4})
    assert_close(made, 1e-4)


@pytest.mark.on
@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
def test_two_stages_or_tensor_parallel_ranks(run: Run, kind: str) -> None:
    made = run("qwen3", FLOAT32, DYNAMIC | {f"{kind}_model_parallel_size": 2, "max_seqlen_per_dp_cp_rank": 2 * CAP})
    assert_shared(made, {1, 2}, 2 * CAP)
    assert_close(made, 1e-4)


@pytest.mark.off
def test_without_the_setting_all_ranks_share_every_sequence(run: Run) -> None:
    """Upstream's context parallelism, with one data parallel rank."""
    made = run("qwen3", FLOAT32, {"context_parallel_size": 4})
    assert {size for rank in made for size, _, _ in rank["shared"]} == {None}
    assert_close(made, 1e-4)
