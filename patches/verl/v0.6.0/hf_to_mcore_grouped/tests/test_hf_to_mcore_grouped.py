"""hf_to_mcore_grouped: verl's conversion script writes the grouped layout of experts, and says so in the checkpoint.

Real: the script, run as a program, with MindSpeed's layers in Transformer Engine's place; see
standins/megatron_cpu/mindspeed_on_cpu.py for what is stood for.
"""

from __future__ import annotations

from typing import Any

import pytest
from grouped_runs import Runs, shared_runs
from harness import Upstream

RECORD = "grouped, version 1"
EXPERTS, HIDDEN, FFN = 4, 32, 24
# Two layers under one key; DeepSeek's layers differ, so that each has its own.
KEYS = {
    "qwen3_moe": {"decoder.layers.mlp.experts.": [2, EXPERTS]},
    "qwen2_moe": {"decoder.layers.mlp.experts.": [2, EXPERTS]},
    "deepseek_v3": {"decoder.layers.1.mlp.experts.": [EXPERTS], "decoder.layers.2.mlp.experts.": [EXPERTS]},
}


@pytest.fixture(scope="module")
def runs(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(upstream, tmp_path_factory.mktemp("grouped"))


@pytest.mark.on
@pytest.mark.parametrize("model", list(KEYS))
def test_the_checkpoint_has_the_grouped_layout_and_a_record_of_it(runs: Runs, model: str) -> None:
    result = runs.grouped()[model]
    expected = {}
    for prefix, axes in KEYS[model].items():
        expected |= {f"{prefix}weight1": [*axes, HIDDEN, 2 * FFN], f"{prefix}weight2": [*axes, FFN, HIDDEN]}

    assert result["error"] is None
    assert result["record"] == RECORD
    assert {key: shape for key, shape in result["keys"].items() if ".mlp.experts." in key} == expected


@pytest.mark.on
@pytest.mark.parametrize("model", ["qwen3_moe", "qwen2_moe", "deepseek_v3"])
def test_what_was_converted_is_loaded(runs: Runs, model: str) -> None:
    assert runs.loaded_grouped()[model]["wrong_experts"] == []


@pytest.mark.on
def test_pipeline_stages_write_one_checkpoint(runs: Runs) -> None:
    alone, together = runs.grouped()["deepseek_v3"], runs.grouped_in_two_stages()["deepseek_v3"]

    # The stage that writes the record has no experts of its own.
    assert together == alone


@pytest.mark.on
def test_a_model_without_experts_is_converted_as_usual(runs: Runs) -> None:
    grouped, result = runs.grouped()["qwen3"], runs.loaded_grouped()["qwen3"]

    assert grouped == runs.sequential()["qwen3"]
    assert (result["error"], result["missing"], result["different"]) == (None, [], [])


@pytest.mark.off
def test_without_the_option_the_layout_is_upstreams(runs: Runs) -> None:
    assert_sequential(runs.sequential()["qwen3_moe"])


@pytest.mark.on
def test_without_the_option_latent_attention_has_upstreams_layout_too(runs: Runs) -> None:
    assert_sequential(runs.sequential_latent())


def assert_sequential(result: dict[str, Any]) -> None:
    assert (result["error"], result["record"]) == (None, None)
    assert not any(key.endswith(("experts.weight1", "experts.weight2")) for key in result["keys"])
    assert any(key.endswith("mlp.experts.experts.linear_fc1.weight") for key in result["keys"])


@pytest.mark.misuse
def test_a_folder_with_the_other_layout_fails_the_scripts_own_test(runs: Runs) -> None:
    error = runs.grouped()["tested against the other layout"]["error"]

    assert "does not hold what was converted" in error
    assert "decoder.layers.mlp.experts.weight1" in error
