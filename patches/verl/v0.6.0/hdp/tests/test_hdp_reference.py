"""hybrid_data_parallel of the reference policy, which follows the actor, in a loss with its log-probabilities.

The runs are described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Upstream
from hdp_runs import BATCHES, KINDS, check_all, jobs_of, one_process, run, sizes

# Dynamic and fixed micro-batches, of which there are two.
CASES = {
    "both": BATCHES["both"],
    "fixed": {"lengths": [200, 12, 70, 60], "rows": 2},
}


@pytest.mark.on
@pytest.mark.slow
def test_a_loss_with_the_reference_is_the_same(upstream: Upstream, tmp_path: Path) -> None:
    ranks = run(upstream, tmp_path, jobs_of(CASES, cp=2, kl=True), procs=2)
    run(upstream, tmp_path, one_process(CASES, 2, kl=True), procs=1)
    pairs = [(f"{name} hybrid", f"{name} {other}") for name in CASES for other in ("plain", "one")]
    check_all(upstream, tmp_path, pairs, [*KINDS, "kl_losses", "ref_log_probs"])
    for name in CASES:
        assert sizes(ranks, f"{name} hybrid") == {1, 2}
        # Those of the reference, of compute_log_prob and of the update.
        assert len(ranks[0][f"{name} hybrid"]["layouts"]) == 3 * 2
