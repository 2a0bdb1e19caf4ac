"""The stand-in's graphs: a replay gives what plain PyTorch gives, and what an NPU refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

TOLERANCE = 1e-5  # float32


@pytest.fixture(scope="module")
def found(upstream: Upstream) -> Any:
    return upstream.run("tests/behaviour/probe_npu_graphs.py", standins=["torch_npu"])


def test_a_replay_computes_anew_with_updated_arguments(found: Any) -> None:
    assert found["replay"]["waits"]
    assert found["replay"]["difference"] <= TOLERANCE


def test_lengths_that_cann_refuses_are_refused(found: Any) -> None:
    refused = found["refused"]
    assert "561002" in refused["padded query"]
    assert "queryT(4) must be equal to the last element of actualSequenceLengthQ(3)" in refused["padded query"]
    assert "2 query lengths and 1 key lengths" in refused["fewer key lengths"]
    assert "block table's first dimension(3) should be equal to batch size(2)" in refused["more rows"]
    assert "decreases" in refused["going back"]


def test_a_graph_cannot_read_values_back(found: Any) -> None:
    assert "reads a value back" in found["refused"]["reading back"]
    assert found["after"] == "eager"
