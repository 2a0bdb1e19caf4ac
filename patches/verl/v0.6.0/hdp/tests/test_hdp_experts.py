"""hybrid_data_parallel with experts that context parallel ranks share out: tokens go to them by all-to-all.

Ranks of a group have different numbers of tokens then, and the messages between experts' ranks count them. The runs are
described in probe_hdp_actor.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from hdp_runs import BATCHES, check_all, jobs_of, one_process, run, sizes

pytestmark = [pytest.mark.on, pytest.mark.slow]

CASES = {
    "both": BATCHES["both"],
    # One rank has four tokens where the other has 90 and more, in turn with sequences that both share.
    "few": {"lengths": [90, 4, 600, 20, 4, 96, 590, 30], "rows": 2, "sizes": {1, 2}},
}
EXPERTS = {"cp": 2, "ep": 2, "experts": 4}


@pytest.mark.parametrize(
    ("more", "procs"),
    [
        ({}, 2),
        ({"tp": 2}, 4),
        ({"pp": 2, "recompute": True}, 4),
    ],
    ids=["two ranks", "tensor parallel", "stages"],
)
def test_experts_of_context_parallel_ranks_give_the_same(
    upstream: Upstream, tmp_path: Path, more: dict[str, Any], procs: int
) -> None:
    ranks = run(upstream, tmp_path, jobs_of(CASES, **EXPERTS, **more), procs=procs)
    run(upstream, tmp_path, one_process(CASES, 2, experts=4), procs=1)
    check_all(
        upstream, tmp_path, [(f"{name} hybrid", f"{name} {other}") for name in CASES for other in ("plain", "one")]
    )
    for name, batch in CASES.items():
        assert sizes(ranks, f"{name} hybrid") == batch["sizes"], name
    lengths = [[own_tokens(layout, rank) for rank in (0, 1)] for layout in rows_of_few(ranks)]
    assert [4, 90] in map(sorted, lengths), lengths


def test_experts_of_data_parallel_ranks_too_give_the_same(upstream: Upstream, tmp_path: Path) -> None:
    """Two context parallel groups with other sequences and layouts, whose ranks all wait for each other's tokens."""
    lengths = [[40, 12, 9, 14, 8, 30], [60, 58, 57, 10, 9, 8]]
    jobs = jobs_of({"uneven": {"lengths": lengths, "tokens": 40}}, cp=2, ep=4, experts=4)
    ranks = run(upstream, tmp_path, jobs, procs=4)
    check_all(upstream, tmp_path, [("uneven hybrid", "uneven plain")])
    assert {len(rank["uneven hybrid"]["layouts"]) for rank in ranks} == {6}, (
        "three each in compute_log_prob and the update"
    )


def rows_of_few(ranks: list[Any]) -> list[list[tuple[int, int, int]]]:
    """(first rank, ranks, length) of the sequences of each micro-batch of the batch "few", in compute_log_prob."""
    lengths = CASES["few"]["lengths"]
    layouts = ranks[0]["few hybrid"]["layouts"][: len(lengths) // 2]
    return [
        [(first, size, length) for (first, size), length in zip(layout, lengths[2 * row : 2 * row + 2], strict=True)]
        for row, layout in enumerate(layouts)
    ]


def own_tokens(layout: list[tuple[int, int, int]], rank: int) -> int:
    return sum(length // size for first, size, length in layout if first <= rank < first + size)
