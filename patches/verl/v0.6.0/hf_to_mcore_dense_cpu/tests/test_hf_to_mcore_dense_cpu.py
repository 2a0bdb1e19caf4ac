"""hf_to_mcore_dense_cpu: verl's conversion script takes dense models with --use_cpu_initialization, past the device.

Real: the script, run as a program, and verl's loader of distributed checkpoints, with MindSpeed's layers in Transformer
Engine's place; see standins/megatron_cpu/mindspeed_on_cpu.py for what is stood for.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

DENSE = ["qwen3", "qwen2", "llama"]
Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Found:
    script = upstream.tree("verl") / "scripts/converter_hf_to_mcore.py"
    return upstream.run(
        "probe_dense_convert.py",
        script,
        tmp_path_factory.mktemp("dense"),
        need=["verl", "megatron-lm", "mindspeed"],
        standins=["torch_npu", "megatron_cpu"],
        timeout=300,
    )


@pytest.mark.on
@pytest.mark.parametrize("model", DENSE)
def test_the_checkpoint_is_that_of_the_device(found: Found, model: str) -> None:
    device, cpu = found["converted"][model]["device"], found["converted"][model]["cpu"]

    assert cpu["error"] is None
    assert cpu["keys"] == device["keys"]
    assert cpu["differing"] == []


@pytest.mark.on
@pytest.mark.parametrize("model", DENSE)
def test_a_rollout_gets_hugging_faces_weights_after_verl_has_loaded_it(found: Found, model: str) -> None:
    result = found["converted"][model]["cpu"]

    assert result["error"] is None
    assert (result["missing"], result["different"], result["twice"]) == ([], [], [])


@pytest.mark.on
@pytest.mark.parametrize("model", DENSE)
def test_no_parameter_gets_to_the_device(found: Found, model: str) -> None:
    device, cpu = found["converted"][model]["device"], found["converted"][model]["cpu"]

    assert cpu["error"] is None
    # Fewer elements in all than the smallest parameter has.
    assert cpu["on_device"] < min(cpu["parameters"])
    # On upstream's way the same count finds the whole model, and more than once.
    assert device["on_device"] > sum(device["parameters"])


@pytest.mark.off
@pytest.mark.parametrize("model", DENSE)
def test_without_the_option_the_device_holds_the_model(found: Found, model: str) -> None:
    result = found["converted"][model]["device"]

    assert result["error"] is None
    assert (result["missing"], result["different"]) == ([], [])
    assert result["on_device"] > sum(result["parameters"])


@pytest.mark.off
def test_a_mixture_of_experts_is_converted_with_the_option_as_before(found: Found) -> None:
    result = found["converted"]["qwen3_moe"]["cpu"]

    assert result["error"] is None
    assert (result["differing"], result["missing"], result["different"]) == ([], [], [])


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("mixtral", ["--use_cpu_initialization", "MixtralForCausalLM", "Qwen3ForCausalLM"]),
        ("llama with biases", ["has no place for", "model.layers.0.self_attn.o_proj.bias"]),
        ("missing", ["lacks model.layers.1.self_attn.q_norm.weight"]),
        ("shape", ["decoder.final_layernorm.weight", "(32,)", "(1,)"]),
        ("dtype", ["decoder.final_layernorm.weight", "torch.bfloat16", "torch.float32"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(found: Found, case: str, parts: list[str]) -> None:
    error = found["refused"][case]

    assert "ValueError" in error
    assert all(part in error for part in parts), error
