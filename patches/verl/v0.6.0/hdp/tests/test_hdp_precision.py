"""hybrid_data_parallel in bfloat16, beyond the one batch of test_hdp.py, and MindSpeed's double rings on four ranks.

The runs are described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from hdp_runs import BATCHES, Batches, apart, check_all, check_bfloat16, jobs_of, one_process, run, sizes

pytestmark = [pytest.mark.on, pytest.mark.slow]

TWO = {name: BATCHES[name] for name in ("packs", "splits", "fixed")}
PAIRS = [("plain", "one"), ("hybrid", "plain"), ("hybrid", "one")]
FOUR = {"longer": {"lengths": [170, 80, 14, 9, 14, 12, 30, 17, 10], "tokens": 56, "sizes": {1, 2, 4}}}


@pytest.mark.parametrize(("batches", "cp"), [(TWO, 2), (FOUR, 4)], ids=["two ranks", "four ranks"])
def test_bfloat16_is_as_near_as_plain_context_parallelism(
    upstream: Upstream, tmp_path: Path, batches: Batches, cp: int
) -> None:
    # A ratio that rounding takes over the edge of the clipping would lose its gradient.
    settings = {"bf16": True, "unclipped": True}
    ranks = run(upstream, tmp_path, jobs_of(batches, cp=cp, **settings), procs=cp)
    run(upstream, tmp_path, one_process(batches, cp, **settings), procs=1)
    for name, batch in batches.items():
        assert sizes(ranks, f"{name} hybrid") == batch["sizes"], name
        pairs = [(f"{name} {one}", f"{name} {other}") for one, other in PAIRS]
        rounding, *found = apart(upstream, tmp_path, pairs).values()
        for one in found:
            check_bfloat16(one, rounding)


@pytest.mark.parametrize("overlap", [False, True])
def test_windows_give_the_same(upstream: Upstream, tmp_path: Path, overlap: bool) -> None:
    settings: dict[str, Any] = {"cp": 4, "window": 2, "overlap": overlap}
    ranks = run(upstream, tmp_path, jobs_of(FOUR, **settings), procs=4)
    run(upstream, tmp_path, one_process(FOUR, 4), procs=1)
    check_all(upstream, tmp_path, [("longer hybrid", "longer plain"), ("longer hybrid", "longer one")])
    assert sizes(ranks, "longer hybrid") == FOUR["longer"]["sizes"]
    ways = [rank["longer hybrid"]["ways"] for rank in ranks]
    # The whole group is two windows; a block of two ranks is one window and has a single ring.
    assert all(one["double ring"] > 0 for one in ways)
    assert any(one.get("part of the ring", 0) for one in ways) and any(one.get("alone", 0) for one in ways)
