"""patchctl's count of parameters against the real models of transformers: every kind of tensor, of every family.

The published shapes are built on the meta device, with fewer layers where a model has many experts: a module of Python for each
expert of each layer takes minutes. What a layer more adds is the same for all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream

from patchctl.manifest.distribution import Distribution
from patchctl.training.models import read_model, read_models, tensors

PROBE = "tests/behaviour/probe_memory_model.py"
MODELS = read_models(Distribution.load(REPO)).models
NUMBER = {"true": True, "false": False}
SMALL: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3 tied": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "qwen3 with biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "qwen3_moe in some layers": {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "num_hidden_layers": 8,
    },
    "deepseek_v3 without ranks of queries": {
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
}
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
    "tie_word_embeddings": False,
}
LAYERS = {"Qwen3-235B-A22B": 2, "DeepSeek-R1": 4}


def published(name: str) -> dict[str, Any]:
    """A model's own shape, with as many layers as are built here."""
    config: dict[str, Any] = {
        key: int(value) if value.isdigit() else NUMBER.get(value, value) for key, value in MODELS[name].config.items()
    }
    return {**config, "num_hidden_layers": LAYERS.get(name, config["num_hidden_layers"])}


JOBS = {**{name: published(name) for name in MODELS}, **{name: {**SHAPE, **config} for name, config in SMALL.items()}}


@pytest.fixture(scope="module")
def built(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What transformers' models hold, by job and kind of tensor. One process builds all of them."""
    file = tmp_path_factory.mktemp("models") / "jobs.json"
    file.write_text(json.dumps(list(JOBS.values())))
    return dict(zip(JOBS, upstream.run(PROBE, file, timeout=300), strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_every_kind_of_tensor(built: dict[str, dict[str, int]], name: str) -> None:
    ours: dict[str, int] = {}
    for tensor in tensors(read_model(JOBS[name])):
        ours[tensor.part] = ours.get(tensor.part, 0) + tensor.parameters
    assert ours == built[name]


def test_the_tiny_models_on_disk(tiny_models: Any) -> None:
    """config.json as transformers writes it, and the sizes in the files themselves."""
    for folder in (tiny_models.qwen3, tiny_models.qwen3_moe):
        held = sum(_parameters(file) for file in Path(folder).glob("*.safetensors"))
        assert read_model(json.loads((Path(folder) / "config.json").read_text())).parameters == held


def _parameters(file: Path) -> int:
    """The numbers in a safetensors file, by its header."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total
