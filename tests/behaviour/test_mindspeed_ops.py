"""What stands for MindSpeed's compiled operators computes what PyTorch does."""

from __future__ import annotations

from harness import Upstream

PROBE = "tests/behaviour/probe_mindspeed_ops.py"


def test_mindspeeds_operators_are_those_of_plain_pytorch(upstream: Upstream) -> None:
    found = upstream.run(PROBE, need=["megatron-lm", "mindspeed"], standins=["torch_npu", "megatron_cpu"])
    assert {name: value for name, value in found.items() if not value < 1e-5} == {}
    assert len(found) == 7
