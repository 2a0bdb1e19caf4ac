"""Parameters by config.json: the published models exactly, and configurations that nobody can count."""

from __future__ import annotations

from typing import Any

import pytest
from pins import distribution

from patchctl.training.models import Model, UnknownModel, read_model, read_models, tensors
from patchctl.training.recipes.read import read_recipes

MODELS = read_models(distribution()).models
PUBLISHED = {
    # total_size of each model.safetensors.index.json over two bytes
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-235B-A22B-Thinking-2507": 235_093_634_560,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-8B": 8_190_735_360,
    "Qwen2.5-1.5B-Instruct": 1_543_714_304,
    # 671,026,419,200 on the hub, with the 256 numbers by which each of 58 layers corrects its scores: no parameters
    "DeepSeek-R1": 671_026_419_200 - 58 * 256,
}


def model(name: str) -> Model:
    return read_model(MODELS[name].config)


def test_every_profile_with_recipes_has_its_model() -> None:
    assert MODELS.keys() == PUBLISHED.keys()
    of_a_profile = [p for m in MODELS.values() for p in m.profiles if not m.recipes]  # others are of some recipes
    trained = {profile for profile, _ in read_recipes(distribution()).runnable()}
    assert {*of_a_profile, "demo"} == trained  # the demo's model is made, and published nowhere
    assert len(of_a_profile) == len(set(of_a_profile))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_count(name: str) -> None:
    assert model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "DeepSeek-R1"])
def test_the_download_is_the_parameters_in_bf16(name: str) -> None:
    assert int(MODELS[name].bytes) == 2 * PUBLISHED[name]


def test_the_download_of_deepseek_is_fp8_with_a_layer_more() -> None:
    assert PUBLISHED["DeepSeek-R1"] < int(MODELS["DeepSeek-R1"].bytes) < 1.03 * PUBLISHED["DeepSeek-R1"]


def test_parts_of_deepseek() -> None:
    """3 dense layers, 58 with 256 experts of 7168 x 2048 and a shared one."""
    parts: dict[str, int] = {}
    for tensor in tensors(model("DeepSeek-R1")):
        parts[tensor.part] = parts.get(tensor.part, 0) + tensor.parameters
    assert parts["mlp"] == 3 * 3 * 7168 * 18432
    assert parts["experts"] == 58 * 256 * 3 * 7168 * 2048
    assert parts["shared experts"] == 58 * 3 * 7168 * 2048
    assert parts["gate"] == 58 * 256 * 7168


def test_a_tied_head_is_counted_once() -> None:
    config: dict[str, Any] = dict(MODELS["Qwen2.5-1.5B-Instruct"].config)
    untied = read_model({**config, "tie_word_embeddings": False})
    assert untied.parameters - model("Qwen2.5-1.5B-Instruct").parameters == 151936 * 1536


def test_layers_without_experts_have_an_ordinary_mlp() -> None:
    config: dict[str, Any] = dict(MODELS["Qwen3-235B-A22B"].config)
    found = read_model({**config, "mlp_only_layers": [0, 1], "decoder_sparse_step": 2})
    assert found.experts is not None
    assert (found.experts.layers, found.dense_layers) == (46, 48)  # every second of 94, less layer 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is llama"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": "4k"}, "hidden_size is '4k'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
    ],
)
def test_what_cannot_be_counted_is_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownModel, match=message.replace("(", r"\(")):
        read_model({**MODELS["Qwen3-8B"].config, **change})
