"""benchmarks/bench_delta_weight_update.py, without a torch: a row's ratios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from programs import loaded

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_delta_weight_update.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with loaded(SCRIPT) as module:
        yield module


def test_ratios_are_of_the_medians(bench: ModuleType) -> None:
    """Of a thousand weights of two bytes a rank holds half to compare with; an odd step out of three does not count."""
    changes = [{"share": 0.01, "bytes": one, "seconds": 1.0} for one in (60, 60, 600)]
    everything = [{"share": 1.0, "bytes": 2000, "seconds": one} for one in (4.0, 4.0, 40.0)]
    found = {"changes": changes, "all": everything, "held": [1000, 900]}
    assert bench.row("FSDP2", 2, 1e-6, found, 1000) == "| FSDP2 | 2 | 1e-06 | 1 % | 0.03 | 0.25 | 4 s | 0.5 |"
    assert bench.table(1000, [("FSDP2", 2, 1e-6, found)]).splitlines()[-1] == bench.row("FSDP2", 2, 1e-6, found, 1000)
