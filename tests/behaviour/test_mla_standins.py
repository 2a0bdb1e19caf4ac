"""The stand-ins' latent attention: each operator against plain PyTorch. Whole engines are held against Hugging Face by the
tests of mla_update_weights."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

# float32 sums of some ten products, in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def operators(upstream: Upstream) -> Any:
    return upstream.run("tests/behaviour/probe_mla_ops.py", standins=["torch_npu"])


@pytest.mark.parametrize("kind", ["cache", "interleaved", "decode", "prefill", "loaded", "product"])
def test_operators_equal_plain_pytorch(operators: Any, kind: str) -> None:
    assert operators[kind]
    assert {name: size for name, size in operators[kind].items() if not size <= TOLERANCE} == {}


def test_what_is_not_implemented_is_refused(operators: Any) -> None:
    assert operators["refused"] == {"cache in NZ": True, "weight in NZ": True, "layout": True}
