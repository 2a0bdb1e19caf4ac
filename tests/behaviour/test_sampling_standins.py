"""The stand-in for vllm-ascend's operator of top-k and top-p sampling, against a loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream


@pytest.fixture(scope="module")
def cases(upstream: Upstream) -> Any:
    return upstream.run("tests/behaviour/probe_sampling_ops.py", standins=["torch_npu"])


@pytest.mark.parametrize("name", ["k", "p", "both", "bf16", "equal logits"])
def test_the_likeliest_tokens_are_kept_as_they_are(cases: Any, name: str) -> None:
    found = cases[name]
    assert found["kept"] == found["loop"]
    assert found["values"]
    assert found["dtype"] == ("torch.bfloat16" if name == "bf16" else "torch.float32")


def test_some_are_dropped_and_one_always_stays(cases: Any) -> None:
    sizes = {name: [len(row) for row in found["kept"]] for name, found in cases.items()}
    assert sizes["k"] == [1, 3, 9, 5]
    assert (sizes["p"][0], sizes["p"][3]) == (1, 9)
    assert sizes["equal logits"] == [2]
