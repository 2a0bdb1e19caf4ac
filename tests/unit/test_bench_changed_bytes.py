"""benchmarks/bench_changed_bytes.py, without a torch: kinds of tensors, and the bytes of an update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from programs import loaded

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_changed_bytes.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with loaded(SCRIPT) as module:
        yield module


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "embedding"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("model.layers.0.post_attention_layernorm.weight", "norms"),
        ("model.layers.0.mlp.gate_proj.weight", "MLP"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.experts.gate_up_proj", "experts"),
        ("model.layers.0.mlp.experts.3.gate_proj.weight", "experts"),
    ],
)
def test_kinds_of_tensors(bench: ModuleType, name: str, kind: str) -> None:
    assert bench.kind_of(name) == kind


def test_bytes_of_an_update(bench: ModuleType) -> None:
    """Of 16 values of two bytes, four changed: four positions and values are 24 bytes, a mask and four values 10, all values 32."""
    assert bench.sparse(4 / 16, 2) == 24 / 32
    assert bench.masked(4 / 16, 2) == 10 / 32
    assert bench.sparse(1 / 3, 2) == pytest.approx(1) and bench.masked(15 / 16, 2) == 1


def test_totals_weigh_kinds_by_their_elements(bench: ModuleType) -> None:
    assert bench.total({"norms": [0, 0, 10], "MLP": [30, 33, 90]}) == (0.3, 0.33)
