"""mla_update_weights: latent attention of vllm-ascend after an update, in vLLMRollout on a real engine with a tiny DeepSeek-V3.

Attention, experts and their routing are vllm-ascend's own; the NPU's operators are reference implementations
(test_mla_standins.py). Sleep loses what an NPU's memory pool loses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]
NPU: dict[str, Any] = {"need": ["verl", "vllm-ascend", "vllm"], "standins": STANDINS, "timeout": 400}
ON = ["float32,free,eager,whole", "bfloat16,keep,eager,whole", "float32,keep,graph,whole"]
OFF = "float32,keep,eager,without"
EXACT = [case for case in ON if case.startswith("float32")]
UPDATES = ["first", "second"]


@pytest.fixture(scope="module")
def model(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "deepseek_v3"
    assert upstream.run("probe_mla_model.py", tiny_models.qwen3, folder) > 0
    return folder


@pytest.fixture(scope="module")
def updated(upstream: Upstream, model: Path) -> Any:
    return upstream.run("probe_mla_update.py", model, *ON, OFF, env={"VLLM_ASCEND_ENABLE_NZ": "0"}, **NPU)


@pytest.fixture(scope="module")
def misuse(upstream: Upstream, model: Path) -> Any:
    return upstream.run("probe_mla_misuse.py", model, env={"VLLM_ASCEND_ENABLE_NZ": "0"}, **NPU)


def check_tokens(out: Any) -> None:
    assert len({json.dumps(out[step]) for step in ("before", *UPDATES)}) == 3
    assert {step: out[step] for step in ("before", *UPDATES)} == out["hf"]


@pytest.mark.on
@pytest.mark.parametrize("case", EXACT)
def test_tokens_equal_hf_after_each_update(updated: Any, case: str) -> None:
    """Prefill goes through kv_b_proj, decoding through its copies; in a graph those of the capture."""
    check_tokens(updated[case])


@pytest.mark.on
@pytest.mark.parametrize("case", ON)
def test_what_is_derived_is_that_of_the_new_weights_in_its_old_memory(updated: Any, case: str) -> None:
    out = updated[case]
    assert out["stale"] == 0
    assert (out["same memory"], out["same order"]) == (True, True)


@pytest.mark.on
def test_no_memory_is_taken(updated: Any) -> None:
    out = updated[ON[0]]["bytes"]
    # Three layers, four heads: 40 * 12 and 16 * 40 numbers a head, of four bytes.
    assert out == {"renewed": 0, "derived": 3 * 4 * (40 * 12 + 16 * 40) * 4}


@pytest.mark.on
def test_only_without_it_decoding_goes_on_with_the_old_projections(updated: Any) -> None:
    out = updated[OFF]
    assert out["before"] == out["hf"]["before"]
    assert out["stale"] > 0
    assert [out[step] == out["hf"][step] for step in UPDATES] == [False, False]
    # The first token comes from prefill, which reads kv_b_proj itself.
    assert [[row[0] for row in out[step]] for step in UPDATES] == [
        [row[0] for row in out["hf"][step]] for step in UPDATES
    ]


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "heads"), [(1, 4), (2, 2)])
def test_engines_that_share_heads_and_experts(upstream: Upstream, model: Path, tensor: int, heads: int) -> None:
    environment = {"VLLM_ASCEND_ENABLE_NZ": "0", "TENSOR_PARALLEL": str(tensor)}
    ranks = upstream.run("probe_mla_update.py", model, ON[0], procs=2, env=environment, **NPU)
    for out in (rank[ON[0]] for rank in ranks):
        check_tokens(out)
        assert (out["stale"], out["same memory"], out["heads"]) == (0, True, [heads] * 3)


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("sparse", "AscendSFAImpl is not vllm-ascend's AscendMLAImpl, take a model with plain latent attention"),
        ("quantised", "its fused_qkv_a_proj is quantised"),
        ("layer_sharding", "leave layer_sharding out of additional_config"),
        ("no scaling", "its rotary embedding has no scaling"),
    ],
)
def test_what_cannot_be_renewed_is_refused(misuse: Any, case: str, said: str) -> None:
    assert misuse[case].startswith("rollout.moe_update_weights=True: model.layers.0.self_attn.attn of DeepseekV3")
    assert said in misuse[case]


@pytest.mark.misuse
@pytest.mark.parametrize("case", ["plain", "no scaling, no sleep"])
def test_what_can_be_renewed_is_accepted(misuse: Any, case: str) -> None:
    assert misuse[case] is None


@pytest.mark.misuse
def test_sparse_attention_is_refused_before_anything_is_loaded(upstream: Upstream, tmp_path: Path) -> None:
    for name, settings in {"v3": {}, "v32": {"index_topk": 2048}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"architectures": ["DeepseekV3ForCausalLM"]} | settings)
        )
    out = upstream.run("probe_mla_settings.py", tmp_path, need=["verl"])
    assert out.pop("v32, on").startswith("actor_rollout_ref.rollout.moe_update_weights=True: ")
    assert "SFA" in out.pop("v32 by hf_config_path, on")
    assert out == {"v3, on": None, "v32, off": None, "elsewhere, on": None, "loaded": []}


@pytest.mark.off
def test_off_by_default(upstream: Upstream) -> None:
    """Nothing is imported, and the update passes on what it is given."""
    out = upstream.run("probe_mla_off.py", need=["verl"])
    assert out == {"updated": [1, 2], "imported": []}
