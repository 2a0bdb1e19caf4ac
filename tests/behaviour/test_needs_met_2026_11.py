"""Needs of features of release set 2026.02 that upstream meets in 2026.11, where no patch is: `make test-2026.11` runs them.

The trees may be patched or not: nothing of these features is in either.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from pins import distribution


def trees_of_the_set(upstream: Upstream, name: str) -> None:
    wanted = distribution().release_set("2026.11").stacks[name]
    if (stack := upstream.stack(name).name) != wanted:
        pytest.skip(f"the trees have {name} {stack}; `make test-2026.11` has {wanted} and its environment")


def test_npu_expandable_segments(upstream: Upstream) -> None:
    """verl tells torch_npu's allocator what it tells CUDA's."""
    trees_of_the_set(upstream, "verl")
    probe = "patches/verl/v0.6.0/npu_expandable_segments/tests/probe_expandable_segments.py"
    made: Any = upstream.run(probe, "npu", need=["verl"], standins=["torch_npu"])
    assert made["device"] == "npu"
    told = [f"expandable_segments:{enable}" for enable in (False, True, False, True)]
    assert made["plain"] == {"told": told, "warnings": []}
    # An older torch_npu is not told, and nothing ends with an error.
    assert made["older torch_npu"]["told"] == []


def test_expert_bias_float32(upstream: Upstream) -> None:
    """Megatron-LM loads and gives away a router's bias in float32, also before the model goes forward."""
    trees_of_the_set(upstream, "megatron-lm")
    made: Any = upstream.run("probe_expert_bias.py", need=["megatron-lm"], standins=["megatron_cpu"])
    assert made["given away"] == ["torch.float32"]
    assert made["loaded"] == [["torch.float32", made["saved"]]] * 2
