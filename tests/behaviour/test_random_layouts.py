"""What features reorder or send between ranks, on 2,000 random layouts each: everything arrives, once, where it belongs.

Those of hdp's packing stand with its other tests (test_hdp_packing.py). Layouts here need not be those that verl makes today.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from harness import Upstream

COUNT = 2000
SEED = 17


def test_generation_spread_over_engines_gives_upstreams_batch(upstream: Upstream) -> None:
    """data_rebalance: rows, objects and the number of a prompt's samples on each engine."""
    if reason := upstream.lacks("verl", "data_rebalance"):
        pytest.skip(reason)
    assert upstream.run("tests/behaviour/verl/probe_reorderings.py", COUNT, SEED, need=["verl"], timeout=300) == []


def test_experts_that_are_exchanged_arrive_where_they_are_held(upstream: Upstream) -> None:
    """ep_alltoallv_reshard: the plan carried out, buffer by buffer, as all_to_all_single with uneven splits does it."""
    if reason := upstream.lacks("verl", "ep_alltoallv_reshard"):
        pytest.skip(reason)
    plan, rng = _load(upstream), random.Random(SEED)
    for _ in range(COUNT):
        made, experts = layouts(plan, rng)
        plan.check_layouts(made, experts)
        width, stages = rng.randint(1, 5), sorted({one.stage for one in made})
        transfers = [one for stage in stages for one in plan.route(made, stage)]
        groups = plan.exchange_groups(len(made), transfers)
        assert sorted(rank for group in groups for rank in group) == list(range(len(made)))
        for group in groups:
            arrived = carried_out(plan, made, transfers, group, width)
            for rank in group:
                own = {(made[rank].stage, expert) for expert in made[rank].owns}
                wanted = {(stage, expert) for stage in stages for expert in made[rank].holds} - own
                assert arrived[rank] == dict.fromkeys(wanted, 1), (made, rank)


def _load(upstream: Upstream) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "ep_reshard_planned", upstream.tree("verl") / "verl/utils/ep_reshard.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def layouts(plan: Any, rng: random.Random) -> tuple[list[Any], int]:
    """Stages of any ranks; of each stage every expert is trained somewhere, often twice; engines of any ranks and placement."""
    stages, each, nodes = rng.randint(1, 3), rng.randint(1, 6), rng.randint(1, 3)
    ranks, experts = stages * each, rng.randint(1, 16)
    order = rng.sample(range(ranks), ranks)
    stage_of = {rank: place // each for place, rank in enumerate(order)}
    owns: dict[int, set[int]] = {rank: set() for rank in range(ranks)}
    for stage in range(stages):
        members = [rank for rank in range(ranks) if stage_of[rank] == stage]
        for expert in range(experts):
            for rank in rng.sample(members, rng.randint(1, min(3, each))):
                owns[rank].add(expert)
    engine_ranks = rng.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
    placed = rng.sample(range(ranks), ranks)
    made: dict[int, Any] = {}
    for first in range(0, ranks, engine_ranks):
        members = sorted(placed[first : first + engine_ranks])
        holder = [rng.choice(members) for _ in range(experts)]
        for rank in members:
            holds = tuple(expert for expert in range(experts) if holder[expert] == rank)
            trained = tuple(rng.sample(sorted(owns[rank]), len(owns[rank])))
            made[rank] = plan.RankLayout(stage_of[rank], trained, holds, tuple(members), str(rng.randrange(nodes)))
    return [made[rank] for rank in range(ranks)], experts


def carried_out(
    plan: Any, made: list[Any], transfers: list[Any], group: tuple[int, ...], width: int
) -> dict[int, Counter[tuple[int, int]]]:
    """What the ranks of a group are sent, as the ranks that own it label it, cut by the splits of both sides."""
    arrived: dict[int, Counter[tuple[int, int]]] = {rank: Counter() for rank in group}
    mine = [one for one in transfers if one.target in group]
    for one_round in plan.merge_rounds(plan.single_rounds(mine), width):
        buffers = {rank: [one for one in one_round if one.source == rank] for rank in group}
        splits = {rank: plan.splits(one_round, rank, group) for rank in group}
        for rank in group:
            assert all(one.expert in made[rank].owns and one.stage == made[rank].stage for one in buffers[rank])
            assert sum(splits[rank][0]) == len(buffers[rank]) <= width
            expected = [one for one in one_round if one.target == rank]
            received = []
            for place, source in enumerate(group):
                to = splits[source][0]
                start = sum(to[: group.index(rank)])
                assert to[group.index(rank)] == splits[rank][1][place]
                received += buffers[source][start : start + splits[rank][1][place]]
            # The receiver names what comes by the order of its own list.
            assert received == expected
            assert len(received) <= width
            arrived[rank].update((one.stage, one.expert) for one in received)
    return arrived
