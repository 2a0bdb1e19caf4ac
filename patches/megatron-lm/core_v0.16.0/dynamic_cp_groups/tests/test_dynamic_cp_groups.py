"""dynamic_cp_groups: process groups for every power of two of ranks, and micro-batches whose sequences have as many ranks as they need."""

from __future__ import annotations

import json
import random
from itertools import groupby
from typing import Any

import pytest
from harness import Upstream

WHERE: dict[str, Any] = {"need": ["megatron-lm"], "standins": ["megatron_cpu"]}
MIXED = [60, 5, 33, 12, 3, 9, 20, 16, 7, 27]


def drawn(seed: int, ranks: int, tensor: int, tokens: int) -> list[Any]:
    """A case: short sequences, and a few that need more ranks than one."""
    draw = random.Random(seed)
    longest = [tokens * ranks if draw.random() < 0.2 else tokens for _ in range(draw.randint(1, 60))]
    return [ranks, tensor, tokens, [draw.randint(1, each) for each in longest]]


SHAPES = [(1, 1, 16), (2, 1, 7), (4, 1, 16), (4, 2, 24), (8, 1, 50), (8, 4, 32), (32, 2, 40)]
CASES: dict[str, Any] = {
    f"{ranks} ranks of {tokens}, tensor parallel {tensor}, {seed}": drawn(seed, ranks, tensor, tokens)
    for ranks, tensor, tokens in SHAPES
    for seed in range(20)
}
SPELT: dict[str, Any] = {
    "mixed": [4, 1, 16, MIXED],
    "one": [4, 1, 16, [3]],
    "two": [4, 1, 16, [3, 9]],
    "three": [8, 1, 16, [30, 3, 9]],
    "too long": [4, 1, 16, [3, 65]],
}


@pytest.fixture(scope="module")
def packed(upstream: Upstream) -> Any:
    return upstream.run("probe_dynamic_cp_packing.py", json.dumps(CASES | SPELT), **WHERE)


def blocks_of(ranks: list[list[int]]) -> list[tuple[int, int, list[int]]]:
    """First rank, number of ranks and samples of each run of ranks with the same samples."""
    found, first = [], 0
    for samples, same in groupby(ranks):
        size = len(list(same))
        found.append((first, size, samples))
        first += size
    return found


@pytest.mark.on
@pytest.mark.parametrize("name", CASES)
def test_micro_batches_fit_groups_and_the_cap(packed: Any, name: str) -> None:
    """Every sequence is once in a micro-batch, on ranks that have a process group, and no rank has more tokens than allowed, padding too."""
    ranks, tensor, tokens, lengths = CASES[name]
    seen: list[int] = []
    for micro_batch in packed[name]:
        assert len(micro_batch) == ranks
        for first, size, samples in blocks_of(micro_batch):
            assert samples
            assert size & (size - 1) == 0
            assert first % size == 0
            align = tensor * (2 * size if size > 1 else 1)
            rows = sum(-(-lengths[sample] // align) * align // size for sample in samples)
            # Where the cap is no multiple of two chunks, padding alone may exceed it.
            assert rows <= tokens or (size == ranks and len(samples) == 1)
            seen += samples
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.on
def test_short_sequences_have_a_rank_for_themselves_and_long_ones_several(packed: Any) -> None:
    """60 and 33 tokens want all four ranks of 16, 27 two, 16 and less one; 20 found room beside the 33 before."""
    assert packed["mixed"] == [
        [[0], [0], [0], [0]],
        [[2, 6], [2, 6], [2, 6], [2, 6]],
        [[9], [9], [7], [3, 4]],
        [[5], [5], [8], [1]],
    ]


@pytest.mark.on
def test_no_rank_is_idle(packed: Any) -> None:
    """Fewer sequences than ranks are spread over more of them: the shortest groups first, of these the fullest."""
    assert packed["one"] == [[[0]] * 4]
    assert packed["two"] == [[[1], [1], [0], [0]]]
    assert packed["three"] == [[[0], [0], [0], [0], [2], [2], [1], [1]]]


@pytest.mark.on
@pytest.mark.parametrize("tokens", [4096, 16384])
def test_micro_batches_are_hardly_more_than_tokens_need(upstream: Upstream, tokens: int) -> None:
    draw = random.Random(0)
    lengths = [min(8 * tokens, 1 + int(draw.lognormvariate(8, 1))) for _ in range(512)]
    made = upstream.run("probe_dynamic_cp_packing.py", json.dumps({"many": [8, 1, tokens, lengths]}), **WHERE)["many"]
    assert len(made) <= 1.1 * sum(lengths) / (8 * tokens) + 1


@pytest.fixture(scope="module")
def groups(upstream: Upstream) -> Any:
    return upstream.run("probe_dynamic_cp_groups.py", procs=4, **WHERE)


@pytest.mark.on
def test_each_rank_is_in_a_group_of_every_size(groups: Any) -> None:
    for rank, made in enumerate(groups):
        pair = [rank - rank % 2, rank - rank % 2 + 1]
        assert made["1"] == {"1": [[rank], rank], "2": [pair, sum(pair)], "4": [[0, 1, 2, 3], 6]}
        # Of two tensor parallel ranks each has its own two of the others, which are all that share sequences.
        other = [rank % 2, rank % 2 + 2]
        assert made["2"] == {"1": [[rank], rank], "2": [other, sum(other)], "4": None}


@pytest.mark.on
def test_without_the_setting_there_are_none_of_an_earlier_one(groups: Any) -> None:
    """So that verl refuses an engine beside one that was made without it. The whole group is Megatron-LM's own."""
    for made in groups:
        assert made["without"] == {"1": None, "2": None, "4": [[0, 1, 2, 3], 6]}


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "too long",
            "ValueError: a sequence of 65 tokens needs more than 4 ranks of 16 tokens (max_seqlen_per_dp_cp_rank)",
        ),
        ("stages", "NotImplementedError: virtual pipeline stages want a multiple of micro-batches"),
        ("configuration", "hybrid_context_parallel there, and verl's dynamic_context_parallel in verl"),
    ],
)
def test_what_cannot_be_packed_is_refused(packed: Any, case: str, message: str) -> None:
    assert message in packed[case]


@pytest.mark.misuse
def test_another_number_of_ranks_is_refused_before_a_group_is_made(packed: Any) -> None:
    """Later Megatron-LM takes six, and gives a sequence four of them, for which it has no process group."""
    message = "ValueError: dynamic_context_parallel needs a power of 2 of DPxCP ranks, 2 or more, and there are 6"
    assert packed["six ranks"] == [message, False]
