"""mla_attention_sizes: verl's Megatron actor of a tiny DeepSeek-V3 with MindSpeed's layers, beside Hugging Face's.

Real: verl's worker and conversion, Megatron's model, MindSpeed's adaptor and layers, collectives (gloo). Stood for are the device
and the operators of an NPU (standins/megatron_cpu, standins/npu_attention).
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from deepseek_actor import Actors
from harness import Upstream

# bf16 against float32. With the scale of kv_channels it is a tenth of the values' range, ten times as much.
CLOSE = 0.02
# Experts are not cut by tensor parallelism, in the recipe either.
SPLITS = {"heads and experts": {"tp": 2, "ep": 2}, "layers": {"pp": 2}, "experts": {"ep": 2}}
WHOLE = {"missing": [], "different": [], "twice": []}


@pytest.fixture(scope="module")
def actors(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Actors:
    return Actors(upstream, tmp_path_factory.mktemp("deepseek"))


@pytest.mark.on
def test_log_probabilities_are_those_of_hugging_face(actors: Actors) -> None:
    out = actors.run({"alone": {}})["alone"]
    difference, values = out["log_probs"]
    assert difference < CLOSE * values
    assert values > 5


@pytest.mark.on
def test_attention_has_the_widths_and_the_scale_of_latent_attention(actors: Actors) -> None:
    """Keys of 16 and values of 12 numbers, four heads; yarn by 4."""
    name, keys, outputs, scale = actors.run({"alone": {}})["alone"]["attention"]
    assert (name, keys, outputs) == ("MindSpeedTEDotProductAttention", 16, 4 * 12)
    assert scale == pytest.approx((0.1 * math.log(4) + 1) ** 2 / math.sqrt(16))


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_in_two_parts(actors: Actors, split: str) -> None:
    out = actors.by_two({name: {"parallel": sizes} for name, sizes in SPLITS.items()})
    for rank in out[split]:
        difference, values = rank["log_probs"]
        assert difference < CLOSE * values
        assert rank["exported"] | WHOLE == rank["exported"]


@pytest.mark.off
def test_other_attention_is_computed_as_before(upstream: Upstream, tmp_path: Path) -> None:
    """Without a scale of its own, with query-key layer scaling, and with what is set in the configuration of neither."""
    out = upstream.run(
        "probe_other_attention.py",
        tmp_path,
        need=["megatron-lm", "mindspeed"],
        standins=["torch_npu", "megatron_cpu", "npu_attention"],
    )
    assert out == {"plain": pytest.approx(1 / math.sqrt(8)), "layer scaling": pytest.approx(1 / math.sqrt(8) / 3)}
