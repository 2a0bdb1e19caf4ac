"""hybrid_data_parallel's micro-batches: a fixed number of full rows, and more than plain context parallelism has.

The runs are described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Upstream
from hdp_runs import Apart, Batches, apart, check, check_all, is_close, jobs_of, one_process, run, sizes

pytestmark = [pytest.mark.on, pytest.mark.slow]

# Rows of 50 tokens, which is no multiple of 4 and of 8: padding does not fit into three of them.
FULL = {
    "full": {"lengths": [50] * 6, "rows": 3, "sizes": {2}},
    "nearly full": {"lengths": [50, 50, 49, 47, 50, 12, 9, 14, 8, 50], "rows": 5, "sizes": {1, 2}},
}


@pytest.mark.parametrize("tp", [1, 2])
def test_micro_batches_of_full_rows_give_the_same(upstream: Upstream, tmp_path: Path, tp: int) -> None:
    ranks = run(upstream, tmp_path, jobs_of(FULL, cp=2, tp=tp), procs=2 * tp)
    run(upstream, tmp_path, one_process(FULL, 2), procs=1)
    check_all(
        upstream, tmp_path, [(f"{name} hybrid", f"{name} {other}") for name in FULL for other in ("plain", "one")]
    )
    for name, batch in FULL.items():
        assert sizes(ranks, f"{name} hybrid") == batch["sizes"], name


# Two micro-batches of three sequences hold 63 tokens each, of 64. Padded to fours they are more, and one rank has room
# for one sequence only: three of two sequences are made.
MORE = {"lengths": [25, 21, 21, 21, 20, 18], "tokens": 32}
# As many of plain context parallelism, because less fits into one.
AS_MANY = MORE | {"tokens": 21}
MEANS = {"token-mean": False, "seq-mean-token-sum": True}


@pytest.fixture(scope="module")
def differences(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Apart]:
    folder = tmp_path_factory.mktemp("more")
    jobs: Batches = {}
    for mean in MEANS:
        jobs |= jobs_of({mean: MORE}, cp=2, mean=mean)
        jobs[f"{mean} as many"] = AS_MANY | {"cp": 2, "mean": mean}
    ranks = run(upstream, folder, jobs, procs=2)
    for mean in MEANS:
        # Three in compute_log_prob and in the update.
        assert [len(layout) for layout in ranks[0][f"{mean} hybrid"]["layouts"]] == [2] * 6
    return apart(
        upstream, folder, [(f"{mean} hybrid", f"{mean} {other}") for mean in MEANS for other in ("plain", "as many")]
    )


@pytest.mark.parametrize("mean", MEANS)
def test_more_micro_batches_give_what_plain_ones_of_that_number_give(differences: dict[str, Apart], mean: str) -> None:
    check(differences[f"{mean} hybrid / {mean} as many"])


@pytest.mark.parametrize("mean", MEANS)
def test_more_micro_batches_change_what_is_averaged_over_one_and_nothing_else(
    differences: dict[str, Apart], mean: str
) -> None:
    """A mean over the tokens of each is another then; one over sequences is the same for equal numbers of them."""
    found = differences[f"{mean} hybrid / {mean} plain"]
    assert found["losses"][0] is None, "plain context parallelism makes as many"
    assert is_close(found, "log_probs") and is_close(found, "entropies"), found
    assert [is_close(found, kind, 1e-4) for kind in ("gradients", "loss")] == [MEANS[mean]] * 2, found
