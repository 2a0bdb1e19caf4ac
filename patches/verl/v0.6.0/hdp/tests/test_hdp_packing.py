"""hdp, its packing: pure functions, held against all layouts that there are on small groups. Needs no torch."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from harness import Upstream

FILE = "verl/utils/hybrid_data_parallel/packing.py"
Blocks = tuple[tuple[int, int], ...]


def packing_of(upstream: Upstream) -> Any:
    """The module, without its package, whose neighbours import torch."""
    path = upstream.tree("verl") / FILE
    assert path.is_file(), f"the tree has no {FILE}"
    return load(path)


@cache
def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hdp_packing", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def log_normal(rng: random.Random, count: int, median: float, sigma: float, longest: int = 32768) -> list[int]:
    return [max(1, min(longest, round(median * math.exp(sigma * rng.gauss(0, 1))))) for _ in range(count)]


def tilings(first: int, ranks: int) -> Iterator[Blocks]:
    """Every way to cut a block into blocks whose sizes divide it, each at a multiple of its size."""
    yield ((first, ranks),)
    for parts in (n for n in range(2, ranks + 1) if ranks % n == 0):
        size = ranks // parts
        for inner in itertools.product(*(list(tilings(first + n * size, size)) for n in range(parts))):
            yield tuple(itertools.chain.from_iterable(inner))


def optimum(packing: Any, lengths: list[int], ranks: int, most: int) -> float:
    """The time of the slowest group in the best of all layouts, by the module's cost model."""
    best, seen = math.inf, set()
    for tiling in tilings(0, ranks):
        sizes = tuple(sorted(size for _, size in tiling))
        if sizes in seen or len(sizes) > len(lengths):
            continue
        seen.add(sizes)
        for assigned in itertools.product(range(len(sizes)), repeat=len(lengths)):
            groups = [
                packing.Group(0, size, tuple(i for i, group in enumerate(assigned) if group == number))
                for number, size in enumerate(sizes)
            ]
            if all(group.sequences for group in groups) and fits(packing, groups, lengths, most):
                best = min(best, packing.slowest(groups, lengths))
    return best


def fits(packing: Any, groups: list[Any], lengths: list[int], most: int, tensor_parallel: int = 1) -> bool:
    return all(
        packing.tokens_of_rank([lengths[i] for i in group.sequences], group.ranks, tensor_parallel) <= most
        for group in groups
    )


def check(packing: Any, lengths: list[int], ranks: int, most: int, tensor_parallel: int = 1) -> list[Any]:
    """A layout that has been checked: ranks and sequences all there once, the maximum kept, not slower than plain."""
    groups = packing.layout(lengths, ranks, most, tensor_parallel)
    covered = [rank for group in groups for rank in range(group.first, group.first + group.ranks)]
    assert sorted(covered) == list(range(ranks))
    assert sorted(i for group in groups for i in group.sequences) == list(range(len(lengths)))
    assert all(ranks % group.ranks == 0 == group.first % group.ranks and group.sequences for group in groups)
    assert fits(packing, groups, lengths, most, tensor_parallel)
    plain = packing.plain(lengths, ranks)
    if fits(packing, plain, lengths, most, tensor_parallel):
        assert packing.slowest(groups, lengths, tensor_parallel) <= packing.slowest(plain, lengths, tensor_parallel)
    return list(groups)


@pytest.mark.on
def test_small_groups_are_near_the_best_of_all_layouts(upstream: Upstream) -> None:
    packing, rng, ratios = packing_of(upstream), random.Random(3), []
    for _ in range(150):
        ranks, count = rng.choice([2, 3, 4]), rng.randint(1, 6)
        lengths = log_normal(rng, count, 1500, rng.choice([0.3, 1.0, 1.5]), 16000)
        most = max(packing.tokens_of_rank(lengths, ranks, 1), rng.choice([1, 4096, 30000]))
        found = packing.slowest(check(packing, lengths, ranks, most), lengths)
        ratios.append(found / optimum(packing, lengths, ranks, most))
    ratios.sort()
    assert ratios[0] > 1 - 1e-9, "better than the best of all: the reference missed a layout"
    assert sum(ratio > 1.001 for ratio in ratios) <= 6 and ratios[-1] < 1.35, ratios[-8:]


@pytest.mark.on
def test_every_layout_is_whole_and_keeps_the_maximum(upstream: Upstream) -> None:
    packing, rng = packing_of(upstream), random.Random(4)
    for _ in range(400):
        ranks, tensor_parallel = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 60, 64]), rng.choice([1, 2, 4])
        lengths = log_normal(rng, rng.choice([1, 2, 3, 8, 64]), 1000, rng.choice([0.0, 1.0, 2.0]))
        needed = packing.tokens_of_rank(lengths, ranks, tensor_parallel)
        check(packing, lengths, ranks, round(needed * rng.choice([1, 1.05, 1.5, 4])), tensor_parallel)


@pytest.mark.on
def test_short_sequences_go_to_one_rank_each_and_long_ones_to_several(upstream: Upstream) -> None:
    packing = packing_of(upstream)
    assert [g.ranks for g in check(packing, [500] * 8, 4, 1000)] == [1, 1, 1, 1]
    both = check(packing, [4000, 500, 500, 500, 500], 4, 2000)
    assert [(g.ranks, len(g.sequences)) for g in both] == [(2, 1), (1, 2), (1, 2)]
    # One sequence, and two of which each needs all ranks: plain context parallelism.
    assert [g.ranks for g in check(packing, [500], 4, 1000)] == [4]
    assert [g.ranks for g in check(packing, [3900, 3900], 4, 2000)] == [2, 2]
    assert [g.ranks for g in check(packing, [6000, 1900], 4, 2000)] == [4]
    # The long one takes longer on eight ranks than both on all.
    assert [g.ranks for g in check(packing, [16000, 100], 16, 16000)] == [16]


@pytest.mark.on
def test_other_processes_find_the_same_layout(upstream: Upstream) -> None:
    packing, rng = packing_of(upstream), random.Random(5)
    lengths = log_normal(rng, 64, 1000, 1.0)
    most = round(packing.tokens_of_rank(lengths, 8, 2) * 1.2)
    here = [[g.first, g.ranks, list(g.sequences)] for g in packing.layout(lengths, 8, most, 2)]
    code = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('p', sys.argv[1])\n"
        "p = importlib.util.module_from_spec(spec); sys.modules['p'] = p; spec.loader.exec_module(p)\n"
        "print(json.dumps([[g.first, g.ranks, list(g.sequences)] for g in p.layout(*json.loads(sys.argv[2]))]))\n"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(upstream.tree("verl") / FILE), json.dumps([lengths, 8, most, 2])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed})
        assert json.loads(done.stdout) == here


def best_of_all(packing: Any, lengths: list[int], ranks: int, most: int) -> float:
    """`optimum`, by branching and bounding: for larger groups, of which all assignments are too many."""
    order, best, cost = sorted(lengths, reverse=True), math.inf, packing.CostModel()
    for sizes in {tuple(sorted(size for _, size in tiling)) for tiling in tilings(0, ranks)}:
        if len(sizes) > len(order):
            continue
        adds = [
            [
                (
                    cost.sequences([packing.padded_length(length, size, 1)], size)[0],
                    packing.tokens_of_rank([length], size, 1),
                )
                for size in sizes
            ]
            for length in order
        ]
        best = assigned(adds, [(size, cost.block(size), 0) for size in sizes], most, best)
    return best


def assigned(
    adds: list[list[tuple[float, int]]], blocks: list[tuple[int, float, int]], most: int, best: float
) -> float:
    """`best`, or the least time of blocks (size, time, tokens) with a sequence each once the first of `adds` are dealt."""
    if not adds:
        return min(best, max(time for _, time, _ in blocks)) if all(tokens for *_, tokens in blocks) else best
    for place, block in enumerate(blocks):
        (size, time, tokens), (add, more) = block, adds[0][place]
        if block not in blocks[:place] and time + add < best and tokens + more <= most:
            dealt = [*blocks[:place], (size, time + add, tokens + more), *blocks[place + 1 :]]
            best = assigned(adds[1:], dealt, most, best)
    return best


@pytest.mark.on
def test_eight_ranks_with_tight_room_are_near_the_best_of_all_layouts(upstream: Upstream) -> None:
    packing, rng, ratios = packing_of(upstream), random.Random(8), []
    for _ in range(60):
        lengths = log_normal(rng, rng.randint(4, 9), 9000, 0.6, 40000)
        most = max(9216, round(packing.tokens_of_rank(lengths, 8, 1) * rng.choice([1, 1.02, 1.1])))
        found = packing.slowest(check(packing, lengths, 8, most), lengths)
        ratios.append(found / best_of_all(packing, lengths, 8, most))
    ratios.sort()
    assert ratios[0] > 1 - 1e-9, "better than the best of all: the reference missed a layout"
    assert sum(ratio > 1.02 for ratio in ratios) <= 6 and ratios[-1] < 1.2, ratios[-12:]


@pytest.mark.on
def test_a_layout_that_halving_does_not_find(upstream: Upstream) -> None:
    """Halving ends with plain context parallelism, 32,448: the sequences of no half have room in it."""
    packing, lengths = packing_of(upstream), [6228, 11806, 17760, 6717, 13561, 4861, 11684]
    found = packing.slowest(check(packing, lengths, 8, 9216), lengths)
    assert found == pytest.approx(best_of_all(packing, lengths, 8, 9216)) and found < 17_300


def bound(setting: Any, packing: Any, lengths: list[int]) -> float:
    """The time that all ranks need at least: each sequence on the ranks that it costs least, and none ever waits."""
    sizes = [size for size in range(1, setting.ranks + 1) if setting.ranks % size == 0]
    least = [
        min(
            size * setting.cost.sequences([packing.padded_length(length, size, setting.tensor_parallel)], size)[0]
            for size in sizes
            if packing.tokens_of_rank([length], size, setting.tensor_parallel) <= setting.max_tokens
        )
        for length in lengths
    ]
    return sum(least) / setting.ranks


def whole(lengths: list[int], parts: list[list[int]]) -> bool:
    return sorted(itertools.chain.from_iterable(parts)) == list(range(len(lengths))) and all(parts)


@pytest.mark.on
@pytest.mark.parametrize(
    ("sequences", "ranks", "most", "share", "near"),
    [
        (256, 4, 8704, 0.05, 1.02),
        (256, 4, 8704, 0.3, 1.02),
        (256, 8, 9216, 0.05, 1.025),
        (256, 8, 9216, 0.3, 1.025),
        (256, 8, 4608, 0.3, 1.03),
        (64, 8, 9216, 0.3, 1.07),
    ],
)
def test_micro_batches_by_time_are_near_the_bound(
    upstream: Upstream, sequences: int, ranks: int, most: int, share: float, near: float
) -> None:
    """Sequences as a GRPO run's; plain context parallelism takes 1.07 to 2 times as long."""
    packing, rng = packing_of(upstream), random.Random(9)
    lengths = log_normal(rng, sequences, 5400, 0.8, 4 * 8704)
    setting = packing.Packing(ranks, most, 1, packing.CostModel(ring_share=share))
    count = -(-sum(lengths) // (ranks * most))
    found = setting.fastest(lengths, count, in_turn)
    assert whole(lengths, found) and count <= len(found) <= count * 1.5 + 1
    for part in found:
        check(packing, [lengths[index] for index in part], ranks, most)
    time, least = setting.time(lengths, found), bound(setting, packing, lengths)
    assert 1 <= time / least < near, time / least
    plain = [[lengths[index] for index in part] for part in in_turn(lengths, count)]
    whole_groups = sum(packing.slowest(packing.plain(part, ranks), part, 1, setting.cost) for part in plain)
    assert time < (0.85 if share == 0.3 else 0.97) * whole_groups


@pytest.mark.on
def test_micro_batches_by_time_are_no_more_than_they_need_to_be(upstream: Upstream) -> None:
    """Equal sequences fill as few as many in the same time; the fewest are as many as tokens need."""
    setting = packing_of(upstream).Packing(4, 4000, 1)
    assert len(setting.fastest([1000] * 64, 4, in_turn)) == 4


@pytest.mark.on
def test_as_many_micro_batches_as_all_agreed_on_take_no_longer(upstream: Upstream) -> None:
    packing, rng = packing_of(upstream), random.Random(10)
    lengths = log_normal(rng, 128, 5400, 0.8, 4 * 8704)
    setting = packing.Packing(4, 8704)
    found = setting.fastest(lengths, 1, in_turn)
    for more in (0, 1, 3, 8):
        chosen = setting.fastest_exactly(lengths, len(found) + more, in_turn)
        assert whole(lengths, chosen) and len(chosen) == len(found) + more
        assert setting.time(lengths, chosen) < 1.06 * setting.time(lengths, found)


@pytest.mark.on
def test_micro_batches_by_time_of_2000_random_batches_are_whole_and_fit(upstream: Upstream) -> None:
    packing, rng = packing_of(upstream), random.Random(11)
    for _ in range(2000):
        ranks, tensor_parallel, count = rng.choice([2, 3, 4, 6, 8, 12]), rng.choice([1, 2]), rng.randint(1, 14)
        most = 2048
        lengths = log_normal(rng, count, rng.choice([300, 1500]), rng.choice([0.0, 1.0]), 1800 * ranks)
        setting = packing.Packing(ranks, most, tensor_parallel)
        needed = min(count, -(-sum(lengths) // (ranks * most)))
        found = setting.fastest(lengths, needed, in_turn)
        assert whole(lengths, found) and len(found) >= needed
        dealt = setting.partition(lengths, needed, in_turn)
        assert setting.time(lengths, found) <= 1.011 * setting.time(lengths, dealt)
        agreed = min(count, len(found) + rng.randint(0, 2))
        chosen = setting.fastest_exactly(lengths, agreed, in_turn)
        assert whole(lengths, chosen) and len(chosen) == agreed
        for part in [*found, *chosen]:
            groups = setting.layout([lengths[index] for index in part])
            assert fits(packing, groups, [lengths[index] for index in part], most, tensor_parallel)


def in_turn(lengths: list[int], parts: int) -> list[list[int]]:
    """A partition that knows no maximum, as upstream's."""
    return [list(range(part, len(lengths), parts)) for part in range(parts)]


@pytest.mark.on
def test_micro_batches_are_as_many_as_the_maximum_needs(upstream: Upstream) -> None:
    packing, rng = packing_of(upstream), random.Random(6)
    for _ in range(60):
        ranks, count = rng.choice([2, 4, 8]), rng.randint(2, 24)
        lengths = log_normal(rng, count, 800, 1.0, 1800 * ranks)
        setting = packing.Packing(ranks, 2048, 1)
        parts = setting.partition(lengths, 1, in_turn)
        assert sorted(itertools.chain.from_iterable(parts)) == list(range(count))
        for agreed in {len(parts), min(count, len(parts) + 2), count}:
            chosen = setting.exactly(lengths, agreed, in_turn)
            assert len(chosen) == agreed and all(chosen)
            assert sorted(itertools.chain.from_iterable(chosen)) == list(range(count))
            for part in chosen:
                check(packing, [lengths[i] for i in part], ranks, 2048)


@pytest.mark.on
def test_micro_batches_are_upstreams_where_those_fit(upstream: Upstream) -> None:
    setting = packing_of(upstream).Packing(2, 2048, 1)
    assert setting.partition([1000, 1000, 1000, 1000], 2, in_turn) == [[0, 2], [1, 3]]
    assert setting.exactly([1000, 1000, 1000, 1000], 2, in_turn) == [[0, 2], [1, 3]]


def awkward(lengths: list[int], parts: int) -> list[list[int]]:
    """A partition without balance: all but one a part are in the first."""
    first = len(lengths) - parts + 1
    return [list(range(first)), *([index] for index in range(first, len(lengths)))]


@pytest.mark.on
def test_what_upstreams_partition_does_not_fit_is_dealt(upstream: Upstream) -> None:
    setting, lengths = packing_of(upstream).Packing(2, 2048, 1), [1000] * 12
    for chosen in (setting.partition(lengths, 4, awkward), setting.exactly(lengths, 4, awkward)):
        assert sorted(map(len, chosen)) == [3, 3, 3, 3]
        assert sorted(itertools.chain.from_iterable(chosen)) == list(range(12))


@pytest.mark.on
def test_a_number_that_happens_not_to_fit_is_reached_by_dividing(upstream: Upstream) -> None:
    """Six micro-batches fit, and no seven that are dealt: one of the six is divided."""
    packing, lengths = packing_of(upstream), [3, 25, 13, 13, 17, 11, 13, 10, 8, 5, 9, 2, 16, 9]
    setting = packing.Packing(2, 16, 2)
    assert len(setting.partition(lengths, 1, awkward)) == 6
    chosen = setting.exactly(lengths, 7, awkward)
    assert len(chosen) == 7 and sorted(itertools.chain.from_iterable(chosen)) == list(range(14))
    for part in chosen:
        check(packing, [lengths[index] for index in part], 2, 16, 2)


@pytest.mark.on
def test_upstreams_partition_is_asked_once(upstream: Upstream) -> None:
    calls = []

    def counted(lengths: list[int], parts: int) -> list[list[int]]:
        calls.append(parts)
        return in_turn(lengths, parts)

    setting = packing_of(upstream).Packing(2, 1024, 1)
    assert len(setting.partition([1100] * 512, 275, counted)) == 512
    assert calls == [], "each is alone, and no partition is needed"
    assert len(setting.partition([1000] * 512, 200, counted)) < 275
    assert len(calls) == 1, "upstream's takes seconds for thousands of sequences"


@pytest.mark.misuse
def test_what_fits_nowhere_is_refused_with_its_figures(upstream: Upstream) -> None:
    packing = packing_of(upstream)
    with pytest.raises(
        ValueError, match="1 sequences of up to 9000 tokens need 2250 tokens on each of 4 ranks, and 2000"
    ):
        packing.layout([9000], 4, 2000)
    with pytest.raises(ValueError, match="9000 tokens"):
        packing.Packing(4, 2000).partition([100, 9000], 1, in_turn)
    for wrong in ([], [0], [5, -1]):
        with pytest.raises(ValueError, match="1 token or more"):
            packing.layout(wrong, 4, 2000)
    with pytest.raises(ValueError, match="maximum of 8 tokens on a rank is too small; it has to be 24 or more"):
        packing.Packing(3, 8, 4).partition([1, 1], 1, in_turn)
    with pytest.raises(ValueError, match="2 sequences cannot fill 3 micro-batches"):
        packing.Packing(2, 2000).partition([5, 5], 3, in_turn)


@pytest.mark.on
def test_a_call_takes_less_than_ten_milliseconds_of_processor_time(upstream: Upstream) -> None:
    packing, rng, times = packing_of(upstream), random.Random(7), {}
    for ranks in (8, 16, 32, 64):
        lengths = log_normal(rng, 1024, 1000, 1.0)
        most = round(packing.tokens_of_rank(lengths, ranks, 1) * 1.1)
        times[ranks] = min(processor_time(packing, lengths, ranks, most) for _ in range(5))
    assert max(times.values()) < 0.010, times


def processor_time(packing: Any, lengths: list[int], ranks: int, most: int) -> float:
    start = time.process_time()
    packing.layout(lengths, ranks, most)
    return time.process_time() - start


@pytest.mark.on
def test_where_whole_sequences_just_fit_it_is_as_fast_as_they_are(upstream: Upstream) -> None:
    """2 % of room: dealt one by one they find none, and plain context parallelism would take 1.74 times as long."""
    packing = packing_of(upstream)
    parts = [[2511, 3514, 10341, 2458], [7027, 3939, 5367, 3213], [6570, 3915, 5761, 3330], [4194, 7473, 3510, 4328]]
    lengths = [4194, 7473, 2511, 6570, 3514, 3510, 10341, 4328, 3915, 5761, 7027, 3939, 5367, 2458, 3330, 3213]
    whole = [packing.Group(rank, 1, tuple(map(lengths.index, part))) for rank, part in enumerate(parts)]
    found = packing.slowest(packing.layout(lengths, 4, 19768), lengths)
    assert found <= packing.slowest(whole, lengths)


def transformer(**sizes: Any) -> SimpleNamespace:
    """A configuration with the names of Megatron's TransformerConfig; a dense model of these sizes if no more is said."""
    dense = {"gated_linear_unit": True, "num_moe_experts": None, "moe_layer_freq": 1}
    return SimpleNamespace(**(dense | sizes))


QWEN3_32B = transformer(
    num_layers=64, hidden_size=5120, num_attention_heads=64, num_query_groups=8, kv_channels=128, ffn_hidden_size=25600
)
QWEN3_235B = transformer(
    num_layers=94, hidden_size=4096, num_attention_heads=64, num_query_groups=4, kv_channels=128, ffn_hidden_size=12288,
    num_moe_experts=128, moe_router_topk=8, moe_ffn_hidden_size=1536, moe_shared_expert_intermediate_size=None,
)  # fmt: skip


@pytest.mark.on
@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (QWEN3_32B, 64 * (2 * 5120 * 128 * (64 + 8) + 3 * 5120 * 25600)),
        (QWEN3_235B, 94 * (2 * 4096 * 128 * (64 + 4) + 8 * 3 * 4096 * 1536 + 4096 * 128)),
    ],
    ids=["dense", "experts"],
)
def test_the_length_where_attention_costs_as_much_follows_from_the_model(
    upstream: Upstream, config: SimpleNamespace, weights: int
) -> None:
    model = packing_of(upstream).CostModel
    # Forward: 2 operations a weight; scores and values 2 each, a channel and token, half of which are seen.
    attention = 2 * 2 * config.num_layers * config.num_attention_heads * config.kv_channels / 2
    assert model.of(config).quadratic_length == pytest.approx(2 * weights / attention)
    assert model.of(config, {"ring_share": None}) == model(model.of(config).quadratic_length)
    assert model.of(config, {"quadratic_length": 9, "ring_share": 0.0, "ring_step": 1}) == model(9.0, 0.0, 1.0)


@pytest.mark.on
def test_layers_without_experts_and_shared_experts_are_counted(upstream: Upstream) -> None:
    model = packing_of(upstream).CostModel
    every_other = SimpleNamespace(**(vars(QWEN3_235B) | {"moe_layer_freq": [0, 1] * 47}))
    assert model.of(SimpleNamespace(**(vars(QWEN3_235B) | {"moe_layer_freq": 2}))) == model.of(every_other)
    dense, sparse = 3 * 4096 * 12288, 8 * 3 * 4096 * 1536 + 4096 * 128
    more = model.of(every_other).quadratic_length - model.of(QWEN3_235B).quadratic_length
    assert more == pytest.approx(47 * (dense - sparse) / (94 * 64 * 128))
    shared = SimpleNamespace(**(vars(QWEN3_235B) | {"moe_shared_expert_intermediate_size": 1536}))
    more = model.of(shared).quadratic_length - model.of(QWEN3_235B).quadratic_length
    assert more == pytest.approx(3 * 4096 * 1536 / (64 * 128))


@pytest.mark.misuse
@pytest.mark.parametrize(
    "costs",
    [{"ring": 1}, {"ring_share": -0.1}, {"ring_step": True}, {"quadratic_length": math.inf}, {"ring_step": "1"}],
)
def test_what_is_no_cost_is_refused(upstream: Upstream, costs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(costs))):
        packing_of(upstream).known_costs(costs)
