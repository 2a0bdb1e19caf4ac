"""hybrid_data_parallel: verl's Megatron actor gives what plain context parallelism and one process give.

Real: the actor with its micro-batches, Megatron's model, DDP and schedules, MindSpeed's ring attention, gloo. The runs
are described in probe_hdp_actor.py, what is stood for in probe_hdp_model.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from hdp_runs import BATCHES, Apart, apart, check, check_bfloat16, jobs_of, one_process, run, sizes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def two_ranks(bf16: bool) -> dict[str, Any]:
    batches = BATCHES if not bf16 else {"both": BATCHES["both"]}
    named = {name + (" bf16" if bf16 else ""): batch for name, batch in batches.items()}
    return {"jobs": jobs_of(named, cp=2, bf16=bf16), "one": one_process(named, 2, bf16=bf16)}


@pytest.fixture(scope="module")
def pair(upstream: Upstream, folder: Path) -> list[Any]:
    """What two ranks report of all batches, in float32 and bfloat16, and of one with other costs."""
    job = {"lengths": [16, 12, 12], "tokens": 24, "cp": 2, "hdp": True}
    costs = {"quadratic_length": 1e-3, "ring_share": 0, "ring_step": 0}
    other = {"dear ring": job, "cheap ring": job | {"costs": costs}}
    return run(upstream, folder, two_ranks(False)["jobs"] | two_ranks(True)["jobs"] | other, procs=2)


@pytest.fixture(scope="module")
def differences(upstream: Upstream, folder: Path, pair: list[Any]) -> dict[str, Apart]:
    run(upstream, folder, two_ranks(False)["one"] | two_ranks(True)["one"], procs=1)
    names = [*BATCHES, "both bf16"]
    pairs = [(f"{name} hybrid", f"{name} {other}") for name in names for other in ("plain", "one")]
    pairs.append(("both bf16 plain", "both bf16 one"))
    return apart(upstream, folder, pairs)


@pytest.mark.on
@pytest.mark.parametrize("other", ["plain", "one"])
@pytest.mark.parametrize("batch", BATCHES)
def test_two_ranks_give_the_same(differences: dict[str, Any], batch: str, other: str) -> None:
    check(differences[f"{batch} hybrid / {batch} {other}"])


@pytest.mark.on
@pytest.mark.parametrize("other", ["plain", "one"])
def test_two_ranks_in_bfloat16_are_as_near_as_plain_context_parallelism(
    differences: dict[str, Any], other: str
) -> None:
    check_bfloat16(differences[f"both bf16 hybrid / both bf16 {other}"], differences["both bf16 plain / both bf16 one"])


@pytest.mark.on
def test_sequences_are_where_they_should_be(pair: list[Any]) -> None:
    for name, batch in BATCHES.items():
        assert sizes(pair, f"{name} hybrid") == batch["sizes"], name


@pytest.mark.on
def test_attention_went_the_way_of_each_layout(pair: list[Any]) -> None:
    for rank in pair:
        assert rank["packs hybrid"]["ways"].get("alone", 0) > 0
        assert rank["both hybrid"]["ways"].get("alone", 0) > 0
        # With two ranks the only other group is the whole one, which is plain context parallelism.
        assert not {"alone", "part of the ring"} & rank["splits hybrid"]["ways"].keys()


@pytest.mark.on
def test_the_costs_that_are_set_are_those_of_the_layout(pair: list[Any]) -> None:
    # With a ring that costs nothing, and attention all there is, sequences are split that are whole otherwise.
    assert sizes(pair, "dear ring") == {1} and sizes(pair, "cheap ring") == {2}


@pytest.mark.on
def test_groups_are_made_once(pair: list[Any]) -> None:
    for rank in pair:
        made = [report["ways"].get("groups made", 0) for name, report in rank.items() if "hybrid" in name]
        assert made == [1] + [0] * (len(made) - 1) and len(made) > 3


@pytest.mark.on
@pytest.mark.parametrize("batch", ["packs", "both"])
def test_gathering_sends_each_token_to_the_other_rank_and_no_padding(pair: list[Any], batch: str) -> None:
    # Log-probability and entropy, in compute_log_prob and in the update.
    sent = sum(rank[f"{batch} hybrid"]["ways"]["values sent"] for rank in pair)
    assert sent == 4 * sum(BATCHES[batch]["lengths"])


FOUR = {
    "both": {"lengths": [60, 12, 9, 14, 8, 30, 7, 10, 28, 6, 9, 11], "tokens": 32, "sizes": {1, 2}},
    "longer": {"lengths": [120, 12, 9, 100, 8, 30], "tokens": 40, "sizes": {1, 2, 4}},
}


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_four_ranks_give_the_same(upstream: Upstream, tmp_path: Path, overlap: bool) -> None:
    ranks = run(upstream, tmp_path, jobs_of(FOUR, cp=4, overlap=overlap), procs=4)
    run(upstream, tmp_path, one_process(FOUR, 4), procs=1)
    for name in FOUR:
        for other in ("plain", "one"):
            (found,) = apart(upstream, tmp_path, [(f"{name} hybrid", f"{name} {other}")]).values()
            check(found)
    assert len(sizes(ranks, "both hybrid") | sizes(ranks, "longer hybrid")) > 1
    assert any(rank[f"{name} hybrid"]["ways"].get("part of the ring", 0) for rank in ranks for name in FOUR)


@pytest.mark.on
@pytest.mark.slow
def test_tensor_parallel_ranks_give_the_same(upstream: Upstream, tmp_path: Path) -> None:
    batches = {"both": BATCHES["both"], "fixed": BATCHES["fixed"]}
    ranks = run(upstream, tmp_path, jobs_of(batches, cp=2, tp=2), procs=4)
    run(upstream, tmp_path, one_process(batches, 2), procs=1)
    for name in batches:
        for other in ("plain", "one"):
            (found,) = apart(upstream, tmp_path, [(f"{name} hybrid", f"{name} {other}")]).values()
            check(found)
        assert sizes(ranks, f"{name} hybrid") == {1, 2}


@pytest.mark.on
@pytest.mark.slow
def test_data_parallel_ranks_make_as_many_micro_batches(upstream: Upstream, tmp_path: Path) -> None:
    """One rank needs two of 80 tokens, the other three; gradients are the mean over both."""
    lengths = [[40, 12, 9, 14, 8, 30], [60, 58, 57, 10, 9, 8]]
    jobs = jobs_of({"uneven": {"lengths": lengths, "tokens": 40}}, cp=2)
    ranks = run(upstream, tmp_path, jobs, procs=4)
    (found,) = apart(upstream, tmp_path, [("uneven hybrid", "uneven plain")]).values()
    check(found)
    layouts = [rank["uneven hybrid"]["layouts"] for rank in ranks]
    assert {len(layout) for layout in layouts} == {6}, "three each in compute_log_prob and in the update"
    assert {size for layout in layouts for one in layout for _, size in one} == {1, 2}
