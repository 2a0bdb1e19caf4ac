"""grouped_weight_names: the rollout gets grouped experts under Hugging Face's names, each once and bit for bit.

Real: verl's per_tensor_generator and weight converters on MindSpeed's grouped experts, which were loaded from what the
conversion script wrote: Hugging Face -> Megatron -> Hugging Face.
"""

from __future__ import annotations

from typing import Any

import pytest
from grouped_runs import Runs, shared_runs
from harness import Upstream


@pytest.fixture(scope="module")
def runs(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(upstream, tmp_path_factory.mktemp("grouped"))


def assert_complete(result: dict[str, Any], names: int) -> None:
    """Every tensor of the Hugging Face checkpoint came, once, unchanged and contiguous (which IPC needs)."""
    assert "rollout_error" not in result, result
    assert (result["missing"], result["different"], result["twice"]) == ([], [], [])
    assert result["names"] == names
    assert result["contiguous"]


# Embedding, head and last norm; for each layer attention, norms and router; for each expert gate, up and down.
NAMES = {"qwen3_moe": 3 + 2 * (9 + 3 * 4), "qwen2_moe": 3 + 2 * (14 + 3 * 4), "deepseek_v3": 3 + 12 + 2 * (14 + 3 * 4)}


@pytest.mark.on
@pytest.mark.parametrize("model", list(NAMES))
def test_weights_come_back_as_they_were(runs: Runs, model: str) -> None:
    assert_complete(runs.loaded_grouped()[model], NAMES[model])


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", ["ep qwen3_moe", "ep deepseek_v3", "pp qwen3_moe", "tp qwen3_moe"])
def test_every_rank_sends_every_expert(runs: Runs, case: str) -> None:
    for result in runs.loaded_by_two_ranks()[case]:
        assert_complete(result, NAMES[case.split()[1]])


@pytest.mark.on
def test_a_parameter_with_an_expert_too_few_is_refused(runs: Runs) -> None:
    assert "4 experts of this model need (32, 192)" in runs.loaded_grouped()["qwen3_moe"]["miscounted"]


@pytest.mark.off
@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe"])
def test_other_layouts_have_the_names_they_had(runs: Runs, model: str) -> None:
    result = runs.loaded_sequential()[model]

    assert (result["missing"], result["different"], result["twice"]) == ([], [], [])


@pytest.mark.on
@pytest.mark.slow
def test_other_layouts_of_latent_attention_have_their_names(runs: Runs) -> None:
    result = runs.loaded_sequential_latent()

    assert (result["missing"], result["different"], result["twice"]) == ([], [], [])


@pytest.mark.off
def test_without_the_field_grouped_experts_have_no_names(runs: Runs) -> None:
    error = runs.loaded_sequential()["overlap, own weights"]["rollout_error"]

    assert error == "Unsupported parameter name: decoder.layers.0.mlp.experts.weight1"


@pytest.mark.misuse
def test_expert_tensor_parallelism_is_refused(runs: Runs) -> None:
    assert "expert_tensor_parallel_size=1" in runs.loaded_grouped()["expert tensor parallel"]["error"]
