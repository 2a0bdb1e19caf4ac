"""hybrid_data_parallel in a pipeline: stages and virtual stages, and why no global may say which ranks are current.

The runs are described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from hdp_runs import apart, check_all, is_close, jobs_of, one_process, run, sizes

pytestmark = [pytest.mark.on, pytest.mark.slow]

# Micro-batches in turn with a long sequence, which both ranks share, and with two that take a rank each.
LENGTHS = [600, 20, 120, 90, 620, 30, 80, 110, 590, 25, 100, 130]
FIXED = {"mixed": {"lengths": LENGTHS, "rows": 2}}
# Two micro-batches are one sequence, which both ranks share, and two hold ten that take a rank each.
SHORT = [12, 9, 14, 8, 13, 10, 15, 11, 12, 10]
DYNAMIC = {"dynamic": {"lengths": [118, *SHORT, 112, *SHORT], "tokens": 64}}
# Three are enough, and a multiple of the stages is made.
ROUNDED = {"rounded": {"lengths": [118, *SHORT, *SHORT], "tokens": 64}}
VIRTUAL = {"cp": 2, "pp": 2, "vpp": 2, "recompute": True}


def test_stages_with_recomputation_give_the_same(upstream: Upstream, tmp_path: Path) -> None:
    piped = jobs_of(FIXED, cp=2, pp=2, recompute=True)
    ranks = run(upstream, tmp_path, piped, procs=4)
    without = {"unpiped": piped["mixed hybrid"] | {"pp": 1, "recompute": False}}
    run(upstream, tmp_path, without, procs=2)
    run(upstream, tmp_path, one_process(FIXED, 2), procs=1)
    check_all(upstream, tmp_path, [("mixed hybrid", other) for other in ("mixed plain", "unpiped", "mixed one")])
    # compute_log_prob and the update have six micro-batches each, and neighbours differ.
    assert len(ranks[0]["mixed hybrid"]["layouts"]) == 12 and sizes(ranks, "mixed hybrid") == {1, 2}


@pytest.fixture(scope="module")
def virtual(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Results with two virtual stages on each of two, and of one process."""
    folder = tmp_path_factory.mktemp("virtual")
    batches = FIXED | DYNAMIC | ROUNDED
    ranks = run(upstream, folder, jobs_of(batches, **VIRTUAL), procs=4)
    run(upstream, folder, one_process(batches, 2), procs=1)
    return folder, ranks


@pytest.mark.parametrize("other", ["plain", "one"])
@pytest.mark.parametrize("name", [*FIXED, *DYNAMIC])
def test_virtual_stages_give_the_same(
    upstream: Upstream, virtual: tuple[Path, list[Any]], name: str, other: str
) -> None:
    folder, ranks = virtual
    check_all(upstream, folder, [(f"{name} hybrid", f"{name} {other}")])
    assert sizes(ranks, f"{name} hybrid") == {1, 2}
    # Each chunk of the model lays every micro-batch out, in compute_log_prob and in the update.
    assert len(ranks[0][f"{name} hybrid"]["layouts"]) == 2 * 2 * {"mixed": 6, "dynamic": 4}[name]


def test_virtual_stages_get_a_multiple_of_micro_batches(upstream: Upstream, virtual: tuple[Path, list[Any]]) -> None:
    folder, ranks = virtual
    check_all(upstream, folder, [("rounded hybrid", "rounded plain")])
    assert len(ranks[0]["rounded hybrid"]["layouts"]) == 2 * 2 * 4
    # One process makes three, so that only what is no average over a micro-batch is the same.
    (found,) = apart(upstream, folder, [("rounded hybrid", "rounded one")]).values()
    assert is_close(found, "log_probs") and is_close(found, "entropies") and found["losses"][0] is None, found


def test_groups_kept_in_a_global_are_wrong_in_a_pipeline(upstream: Upstream, tmp_path: Path) -> None:
    """The regression case: what the published version did, put into ours."""
    job = jobs_of(FIXED, cp=2, pp=2, recompute=True)["mixed hybrid"] | {"global": "groups"}
    without = job | {"pp": 1, "recompute": False}
    assert run(upstream, tmp_path, {"fine": without}, procs=2)
    with pytest.raises(AssertionError, match="split_with_sizes expects split_sizes to sum exactly"):
        run(upstream, tmp_path, {"wrong": job}, procs=4, timeout=120)


# Every rank has 300 tokens of each micro-batch: three times its part of both sequences, then a sequence of its own.
AS_MANY = {"as many": {"lengths": [580, 20] * 3 + [300, 300], "rows": 2}}


@pytest.mark.parametrize("stages", [{"pp": 2}, {"pp": 2, "vpp": 2}], ids=["stages", "virtual stages"])
def test_micro_batches_kept_in_a_global_give_wrong_gradients_in_silence(
    upstream: Upstream, tmp_path: Path, stages: dict[str, int]
) -> None:
    """With their lengths in the global too nothing fails where ranks have as many tokens: a gradient is just wrong.

    The forward pass follows the packing at once, so that what it gives is right.
    """
    jobs = jobs_of(AS_MANY, cp=2, recompute=True, **stages)
    jobs["global"] = jobs["as many hybrid"] | {"global": "all"}
    ranks = run(upstream, tmp_path, jobs, procs=4)
    assert sizes(ranks, "as many hybrid") == {1, 2}
    check_all(upstream, tmp_path, [("as many hybrid", "as many plain")])
    (found,) = apart(upstream, tmp_path, [("global", "as many plain")]).values()
    assert all(is_close(found, kind) for kind in ("entropies", "log_probs", "losses")), found
    assert found["gradients"][0] is not None and found["gradients"][0] > 0.01, found
