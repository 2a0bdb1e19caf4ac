"""dynamic_cp_groups: process groups for every power of two of ranks, and micro-batches whose sequences have as many ranks as they need."""

from __future__ import annotations

import json
import math
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
KINDS = {"many short": (8, 2048, 700, 1.0, 16_000), "mostly long": (4, 5120, 5000, 0.4, 8192)}
# Where a step towards a better packing is left out, one of these is exceeded.
MOST = {
    ("many short", 8): 1.43, ("many short", 16): 1.185, ("many short", 48): 1.095, ("many short", 1000): 1.04,
    ("mostly long", 8): 1.105, ("mostly long", 16): 1.06, ("mostly long", 48): 1.026, ("mostly long", 1000): 1.01,
}  # fmt: skip
BATCHES: dict[tuple[str, int], list[str]] = {}
for kind, count in MOST:
    ranks, tokens, median, sigma, longest = KINDS[kind]
    for seed in range(20 if count < 100 else 1):
        draw = random.Random(seed)
        drawn_lengths = [median * math.exp(sigma * draw.gauss(0, 1)) for _ in range(count)]
        name = f"{kind}, {count} sequences, {seed}"
        CASES[name] = [ranks, 1, tokens, [max(1, min(longest, round(length))) for length in drawn_lengths]]
        BATCHES.setdefault((kind, count), []).append(name)
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
    """60 and 33 tokens want all four ranks of 16, 27 and 20 two, the others one; 7 is beside the 20, which leaves it room."""
    assert packed["mixed"] == [
        [[0], [0], [0], [0]],
        [[2], [2], [2], [2]],
        [[9], [9], [6, 8], [6, 8]],
        [[7], [3], [5], [1, 4]],
    ]


@pytest.mark.on
def test_no_rank_is_idle(packed: Any) -> None:
    """Fewer sequences than ranks are spread over more of them."""
    assert packed["one"] == [[[0]] * 4]
    assert packed["two"] == [[[1], [1], [0], [0]]]
    assert packed["three"] == [[[1], [1], [1], [1], [2], [2], [0], [0]]]


@pytest.mark.on
@pytest.mark.parametrize(("kind", "count"), BATCHES)
def test_time_is_hardly_more_than_the_least(packed: Any, kind: str, count: int) -> None:
    """The mean over batches of their time by the cost model, in that of ranks that never wait; few sequences leave some."""
    over = []
    for name in BATCHES[kind, count]:
        ranks, _, tokens, lengths = CASES[name]
        over.append(time_of(packed[name], lengths) / least_time(lengths, ranks, tokens))
    assert sum(over) / len(over) < MOST[kind, count]


DEFAULT, OWN = (28_000, 0.3, 50), (3000, 2, 0)


def cost(length: int, ranks: int, model: tuple[float, float, float] = DEFAULT) -> float:
    """docs/hdp.md's, of a sequence on each of its ranks: a token's own share, the ring's steps, attention."""
    padded = -(-length // (2 * ranks)) * 2 * ranks if ranks > 1 else length
    return padded * (1 + (ranks - 1) * model[1] + padded / model[0]) / ranks


def time_of(micro_batches: list[Any], lengths: list[int], model: tuple[float, float, float] = DEFAULT) -> float:
    return sum(
        max(
            (size - 1) * model[2] + sum(cost(lengths[one], size, model) for one in samples)
            for _, size, samples in blocks_of(ranks)
        )
        for ranks in micro_batches
    )


def least_time(lengths: list[int], ranks: int, tokens: int) -> float:
    """Each sequence on the ranks that cost least in all, without the ring's fixed cost and without waiting."""
    total = 0.0
    for length in lengths:
        sizes = [size for size in (1, 2, 4, 8) if size <= ranks and -(-length // (2 * size)) * 2 <= tokens]
        total += min(size * cost(length, size) for size in sizes or [ranks])
    return total / ranks


@pytest.mark.on
@pytest.mark.parametrize(("kind", "count"), [(kind, count) for kind, count in BATCHES if count == 16])
def test_costs_of_the_environment_are_those_that_it_packs_by(packed: Any, kind: str, count: int) -> None:
    """By them its packings take less time than those by the default, and by the default more."""
    own, default = packed["costs"], packed
    for model, better, worse in ((OWN, own, default), (DEFAULT, default, own)):
        times = [
            sum(time_of(packing[name], CASES[name][3], model) for name in BATCHES[kind, count])
            for packing in (better, worse)
        ]
        assert times[0] < 0.99 * times[1]


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


@pytest.mark.misuse
def test_costs_that_are_none_are_refused(packed: Any) -> None:
    said = packed["wrong costs"]
    assert len(said) == 6 and all(
        "ring_step with a number, above 0 for quadratic_length" in text for text in said.values()
    )
    assert "MEGATRON_DYNAMIC_CP_COSTS: 'ring=1' is not one of" in said["ring=1"]


@pytest.mark.misuse
def test_costs_that_are_none_are_refused_before_a_group_is_made(packed: Any) -> None:
    message, made = packed["wrong costs at start"]
    assert "MEGATRON_DYNAMIC_CP_COSTS: 'ring=1'" in message and not made
