"""npu_expandable_segments: the allocator of torch_npu is told what upstream tells only CUDA's."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_expandable_segments.py"
TOLD = {"told": [f"expandable_segments:{enable}" for enable in (False, True, False, True)], "warnings": []}
UNTOLD: dict[str, list[str]] = {"told": [], "warnings": []}
CASES = ("plain", "page size", "split size", "threshold", "older torch_npu")


@pytest.fixture(scope="module")
def npu(upstream: Upstream) -> Any:
    return upstream.run(PROBE, "npu", need=["verl"], standins=["torch_npu"])


@pytest.mark.on
def test_npu_allocator_is_told(npu: Any) -> None:
    assert npu["device"] == "npu"
    assert npu["plain"] == TOLD


@pytest.mark.on
def test_other_allocator_settings_do_not_stop_it(npu: Any) -> None:
    assert npu["page size"] == TOLD


@pytest.mark.on
@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("older torch_npu", "_set_allocator_settings"),
        ("split size", "max_split_size_mb:2048"),
        ("threshold", "garbage_collection_threshold:0.8"),
    ],
)
def test_what_cannot_be_is_one_warning(npu: Any, case: str, named: str) -> None:
    assert npu[case]["told"] == []
    [warning] = npu[case]["warnings"]
    assert named in warning


@pytest.mark.off
def test_cuda_is_as_upstream(upstream: Upstream) -> None:
    out = upstream.run(PROBE, "cuda", need=["verl"])
    assert out == {"device": "cuda"} | dict.fromkeys(CASES, TOLD)


@pytest.mark.off
def test_cpu_is_as_upstream(upstream: Upstream) -> None:
    out = upstream.run(PROBE, "cpu", need=["verl"])
    assert out == {"device": "cpu"} | dict.fromkeys(CASES, UNTOLD)
