"""hybrid_data_parallel_by_time: what micro-batches of very different numbers of sequences add up to is the whole batch's.

A mean over sequences does not depend on the division, if each micro-batch counts as many as it has; so the reference is
plain context parallelism with the whole batch as one micro-batch. The runs are described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Upstream
from hdp_runs import apart, is_close, run

SHORT = [12, 9, 14, 8, 10, 7, 11, 6]
# In the second, one data parallel rank needs fewer micro-batches than the other.
BATCHES = {
    "one rank": {"lengths": [60, 58, *SHORT]},
    "two ranks": {"lengths": [[12, 9, 14, 8, 30, 10, 7, 9, 8, 6], [60, 58, 57, 10, 9, 8, 11, 30, 62, 50]]},
}


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_the_gradient_is_that_of_the_whole_batch(upstream: Upstream, tmp_path: Path, name: str) -> None:
    common = BATCHES[name] | {"cp": 2, "mean": "seq-mean-token-sum"}
    jobs = {"whole": common | {"rows": 10}, "by time": common | {"tokens": 32, "hdp": True, "by_time": True}}
    ranks = run(upstream, tmp_path, jobs, procs=4 if name == "two ranks" else 2)
    (found,) = apart(upstream, tmp_path, [("by time", "whole")]).values()
    assert found["gradients"][1] > 20
    assert all(is_close(found, kind) for kind in ("log_probs", "entropies", "gradients")), found
    layouts = ranks[0]["by time"]["layouts"]
    if name == "one rank":
        assert len({len(layout) for layout in layouts}) > 1, "micro-batches with as many sequences need no weight"
    assert {len(rank["by time"]["layouts"]) for rank in ranks} == {len(layouts)}
