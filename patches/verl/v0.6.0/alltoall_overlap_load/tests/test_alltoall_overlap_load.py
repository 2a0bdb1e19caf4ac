"""alltoall_overlap_load: grouped expert weights of a distributed checkpoint reach the parameters, or the load is refused.

Real: verl's Megatron workers, Megatron's checkpoints, and MindSpeed's layers with moe_alltoall_overlap_comm; see
standins/megatron_cpu/mindspeed_on_cpu.py for what is stood for.
"""

from __future__ import annotations

from typing import Any

import pytest
from grouped_runs import Runs, shared_runs
from harness import Upstream

OVERLAPPED = ["MindSpeedAlltoALLOverLapGmmExperts"]


@pytest.fixture(scope="module")
def runs(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(upstream, tmp_path_factory.mktemp("grouped"))


@pytest.mark.on
@pytest.mark.parametrize("model", ["qwen3_moe", "deepseek_v3", "qwen2_moe", "critic"])
def test_the_weights_of_the_checkpoint_reach_the_experts(runs: Runs, model: str) -> None:
    result = runs.loaded_grouped()[model]

    assert result["error"] is None
    assert result["experts"] == OVERLAPPED
    assert result["wrong_experts"] == []


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", ["ep qwen3_moe", "ep deepseek_v3", "pp qwen3_moe", "tp qwen3_moe"])
def test_every_rank_gets_its_own_experts(runs: Runs, case: str) -> None:
    assert [rank["wrong_experts"] for rank in runs.loaded_by_two_ranks()[case]] == [[], []]


@pytest.mark.on
def test_loading_needs_no_second_copy_of_the_experts(runs: Runs) -> None:
    # Experts of 200 MB. What is read is one expert at a time (3 MB); a second copy would make it 1.
    assert runs.loaded_grouped()["qwen3_moe_large"]["load_memory"] < 0.5


@pytest.mark.on
def test_megatron_computes_with_the_loaded_weights_what_hugging_face_does(runs: Runs) -> None:
    # bf16 has 8 bits of precision; Megatron multiplies by gate and up in one product, which is rounded elsewhere.
    assert runs.loaded_grouped()["qwen3_moe"]["forward_error"] < 0.02


@pytest.mark.on
def test_verls_own_checkpoints_are_saved_and_loaded(runs: Runs) -> None:
    assert runs.loaded_grouped()["qwen3_moe"]["saved_and_loaded"] is True


@pytest.mark.on
@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("sequential checkpoint", ["ValueError", "one tensor an expert", "--grouped_experts"]),
        ("grouped checkpoint", ["ValueError", "'grouped, version 1'", "grouped_experts=True"]),
        ("fewer layers", ["ValueError", "the model has no", "decoder.layers.2.mlp.experts.weight1"]),
        ("more layers", ["ValueError", "the checkpoint lacks", "decoder.layers.3.mlp.experts.weight1"]),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_an_error_that_says_so(runs: Runs, case: str, parts: list[str]) -> None:
    error = runs.loaded_grouped()[case]["error"]

    assert all(part in error for part in parts), error


@pytest.mark.on
def test_the_reference_policy_follows_the_actor(runs: Runs) -> None:
    assert runs.loaded_grouped()["qwen3_moe"]["reference"] is True


@pytest.mark.on
@pytest.mark.slow
def test_grouped_experts_without_the_field_are_warned_of(runs: Runs) -> None:
    assert runs.loaded_sequential()["overlap, own weights"]["warned"] is True


def assert_loaded(result: dict[str, Any]) -> None:
    assert (result["error"], result["wrong_experts"], result["warned"]) == (None, [], False)
    assert (result["missing"], result["different"]) == ([], [])


@pytest.mark.off
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe"])
def test_other_layouts_are_loaded_as_before(runs: Runs, model: str) -> None:
    assert_loaded(runs.loaded_sequential()[model])


@pytest.mark.on
def test_other_layouts_of_latent_attention_are_loaded(runs: Runs) -> None:
    assert_loaded(runs.loaded_sequential_latent())


@pytest.mark.off
def test_without_the_field_grouped_experts_stay_as_upstream_leaves_them(runs: Runs) -> None:
    foreign, own = runs.loaded_sequential()["overlap"], runs.loaded_sequential()["overlap, own weights"]

    # MindSpeed's separate experts leave no _extra_state, which GroupedMLP asks for.
    assert "Missing key in checkpoint" in foreign["error"] and "experts.linear_fc1._extra_state" in foreign["error"]
    # A checkpoint that has it is loaded without a word, and none of the two weights of the two layers gets its values.
    assert (own["experts"], own["lost_by_upstream"]) == (OVERLAPPED, [0, 4])


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("no experts", ["actor_rollout_ref.actor.megatron.grouped_experts is True", "no experts"]),
        ("not grouped", ["TEGroupedMLP", "moe_alltoall_overlap_comm=True"]),
        ("hugging face weights", ["use_dist_checkpointing=True", "--grouped_experts"]),
        ("mbridge", ["use_mbridge=False"]),
        ("expert tensor parallel", ["expert_tensor_parallel_size=1"]),
    ],
)
def test_what_it_cannot_do_is_refused(runs: Runs, case: str, parts: list[str]) -> None:
    error = runs.loaded_grouped()[case]["error"]

    # Hydra wraps what the dataclass raises on the driver; the worker raises it as it is.
    assert "ValueError" in error
    assert all(part in error for part in parts), error
