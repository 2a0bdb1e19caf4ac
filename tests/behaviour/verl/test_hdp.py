"""hybrid_data_parallel: verl's Megatron actor gives what plain context parallelism and one process give.

Real: the actor with its micro-batches, Megatron's model, DDP and schedules, MindSpeed's ring attention, gloo. The runs
are described in probe_hdp_actor.py, what is stood for in probe_hdp_model.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PROBE = "tests/behaviour/verl/probe_hdp_actor.py"
COMPARE = "tests/behaviour/verl/probe_hdp_compare.py"
WHERE: dict[str, Any] = {
    "need": ["verl", "megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu", "npu_attention"],
}
# Lengths, tokens of a rank at most with two ranks (half of them with four), and the sizes of groups that come of it.
BATCHES: dict[str, dict[str, Any]] = {
    "packs": {"lengths": [12, 9, 14, 8, 11, 10, 13, 9], "tokens": 32, "sizes": {1}},
    "splits": {"lengths": [60, 58, 62, 57], "tokens": 32, "sizes": {2}},
    "both": {"lengths": [60, 12, 9, 14, 8, 30, 7, 10], "tokens": 48, "sizes": {1, 2}},
    "fixed": {"lengths": [600, 12, 210, 190, 30, 580, 200, 220], "rows": 2, "sizes": {1, 2}},
    "falls back": {"lengths": [50], "tokens": 64, "sizes": {2}},
}
# Largest difference in units of the largest value: rounding of float32 that has added up over four layers.
CLOSE = 2e-5
KINDS = ["entropies", "gradients", "log_probs", "losses"]


def jobs_of(batches: dict[str, dict[str, Any]], **settings: Any) -> dict[str, dict[str, Any]]:
    """Each batch without and with the switch, by "BATCH plain" and "BATCH hybrid"."""
    kept = {name: {k: v for k, v in batch.items() if k != "sizes"} for name, batch in batches.items()}
    switched = {"plain": {}, "hybrid": {"hdp": True}}
    return {
        f"{name} {kind}": batch | settings | extra for name, batch in kept.items() for kind, extra in switched.items()
    }


def one_process(batches: dict[str, dict[str, Any]], ranks: int, **settings: Any) -> dict[str, dict[str, Any]]:
    """The same batches for one process, whose micro-batches hold as many tokens as those of all ranks together."""
    found = {}
    for name, batch in batches.items():
        job = {key: value for key, value in batch.items() if key != "sizes"} | settings
        found[f"{name} one"] = job | ({"tokens": job["tokens"] * ranks} if "tokens" in job else {})
    return found


def run(upstream: Upstream, folder: Path, jobs: dict[str, Any], procs: int, timeout: float = 280) -> list[Any]:
    given = upstream.run(PROBE, folder, json.dumps(jobs), procs=procs, timeout=timeout, **WHERE)
    return [given] if procs == 1 else list(given)


def apart(upstream: Upstream, folder: Path, pairs: list[tuple[str, str]]) -> dict[str, dict[str, list[float]]]:
    """{"NAME / REFERENCE": {kind: [largest difference, tensors]}}."""
    return dict(upstream.run(COMPARE, folder, json.dumps(pairs)))


def check(found: dict[str, list[float]]) -> None:
    """Everything is there and equal but for rounding."""
    assert sorted(found) == KINDS
    assert found["gradients"][1] > 20
    assert max(difference for difference, _ in found.values()) < CLOSE, found


def sizes(ranks: list[Any], name: str) -> set[int]:
    """Sizes of the groups in a job's micro-batches; every rank has to have laid them out in the same way."""
    layouts = [rank[name]["layouts"] for rank in ranks]
    assert all(layout == layouts[0] for layout in layouts)
    return {size for layout in layouts[0] for _, size in layout}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def two_ranks(bf16: bool) -> dict[str, Any]:
    batches = BATCHES if not bf16 else {"both": BATCHES["both"]}
    named = {name + (" bf16" if bf16 else ""): batch for name, batch in batches.items()}
    return {"jobs": jobs_of(named, cp=2, bf16=bf16), "one": one_process(named, 2, bf16=bf16)}


@pytest.fixture(scope="module")
def pair(upstream: Upstream, folder: Path) -> list[Any]:
    """What two ranks report of all batches, in float32 and bfloat16."""
    return run(upstream, folder, two_ranks(False)["jobs"] | two_ranks(True)["jobs"], procs=2)


@pytest.fixture(scope="module")
def differences(upstream: Upstream, folder: Path, pair: list[Any]) -> dict[str, dict[str, list[float]]]:
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
    """bfloat16 has 8 bits, so even plain context parallelism and one process differ by per cents in a gradient."""
    rounding = differences["both bf16 plain / both bf16 one"]
    found = differences[f"both bf16 hybrid / both bf16 {other}"]
    assert sorted(found) == KINDS and found["gradients"][1] > 20
    for kind, (difference, _) in found.items():
        assert difference < 1.5 * rounding[kind][0] < 0.1, (kind, found, rounding)


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


# Micro-batches in turn with a long sequence, which both ranks share, and with two that take a rank each.
LENGTHS = [600, 20, 120, 90, 620, 30, 80, 110, 590, 25, 100, 130]
PIPELINE = {"mixed": {"lengths": LENGTHS, "rows": 2, "sizes": {1, 2}}}


@pytest.mark.on
@pytest.mark.slow
def test_pipeline_stages_with_recomputation_give_the_same(upstream: Upstream, tmp_path: Path) -> None:
    piped = jobs_of(PIPELINE, cp=2, pp=2, recompute=True)
    ranks = run(upstream, tmp_path, piped, procs=4)
    without = {"unpiped": piped["mixed hybrid"] | {"pp": 1, "recompute": False}}
    run(upstream, tmp_path, without, procs=2)
    run(upstream, tmp_path, one_process(PIPELINE, 2), procs=1)
    for other in ("mixed plain", "unpiped", "mixed one"):
        (found,) = apart(upstream, tmp_path, [("mixed hybrid", other)]).values()
        check(found)
    layouts = [layout for layout in ranks[0]["mixed hybrid"]["layouts"] if layout]
    # compute_log_prob and the update have six micro-batches each, and neighbours differ.
    assert len(layouts) == 12 and sizes(ranks, "mixed hybrid") == {1, 2}


@pytest.mark.on
@pytest.mark.slow
def test_groups_kept_in_a_global_are_wrong_in_a_pipeline(upstream: Upstream, tmp_path: Path) -> None:
    """The regression case: what the published version did, put into ours."""
    job = jobs_of(PIPELINE, cp=2, pp=2, recompute=True)["mixed hybrid"] | {"global": True}
    without = job | {"pp": 1, "recompute": False}
    assert run(upstream, tmp_path, {"fine": without}, procs=2)
    with pytest.raises(AssertionError, match="split_with_sizes expects split_sizes to sum exactly"):
        run(upstream, tmp_path, {"wrong": job}, procs=4, timeout=120)
