"""rollout_rebalance, its planner: a pure function, held against all plans there are on small groups. Needs no torch."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from harness import Upstream
from rebalance_reference import (
    FOLDER,
    all_plans,
    broken_limits,
    cost,
    large_case,
    planner_of,
    small_case,
)


def states_of(planner: Any, *ranks: dict[str, Any]) -> list[Any]:
    """Ranks by lists of tokens: `running` and `waiting`; 100 blocks and 64 requests unless said otherwise."""
    states = []
    for rank, given in enumerate(ranks):
        running = [planner.RequestState(f"r{at}", -(-n // 128), n) for at, n in enumerate(given.get("running", ()))]
        waiting = [planner.RequestState(f"w{at}", 0, n) for at, n in enumerate(given.get("waiting", ()))]
        total = given.get("blocks", 100)
        free = total - sum(one.blocks for one in running)
        states.append(planner.RankState(rank, running, waiting, free, total, given.get("slots", 64)))
    return states


def as_tuples(moves: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(one) for one in moves]


def held_against_all_plans(upstream: Upstream, seed: int, cases: int, queues: bool) -> list[int]:
    """In how many of the cases the planner's cost equals the best one in its first 1, 2, 3 and 4 goals."""
    planner, rng, equal = planner_of(upstream), random.Random(seed), [0, 0, 0, 0]
    for _ in range(cases):
        states, policy = small_case(planner, rng, queues)
        moves = planner.plan(states, policy)
        found = cost(states, moves, policy)
        best = min(cost(states, plan, policy) for plan in all_plans(planner, states, policy))
        assert not broken_limits(states, moves, policy)
        assert best <= found <= cost(states, [], policy), "worse than no move, or the reference missed a plan"
        assert found[0] == best[0], f"the smallest graph is {best[0]}: {states} {policy}"
        equal = [number + (found[: goal + 1] == best[: goal + 1]) for goal, number in enumerate(equal)]
    return equal


@pytest.mark.on
def test_all_goals_are_met_where_nothing_waits(upstream: Upstream) -> None:
    assert held_against_all_plans(upstream, seed=1, cases=150, queues=False) == [150] * 4


@pytest.mark.on
def test_smallest_graph_is_always_found_and_queues_are_relieved(upstream: Upstream) -> None:
    graph, stranded, *_ = held_against_all_plans(upstream, seed=2, cases=250, queues=True)
    assert graph == 250
    # Placed greedily, and what runs is never sent to make room for what waits: about 2 of 100 cases keep one more.
    assert stranded >= 0.95 * 250


@pytest.mark.on
@pytest.mark.slow
def test_against_all_plans_of_many_groups(upstream: Upstream) -> None:
    assert held_against_all_plans(upstream, seed=3, cases=2000, queues=False) == [2000] * 4
    graph, stranded, moves, blocks = held_against_all_plans(upstream, seed=4, cases=4000, queues=True)
    assert graph == 4000
    assert min(stranded, moves, blocks) >= 0.95 * 4000


@pytest.mark.on
def test_its_own_cost_is_what_it_says(upstream: Upstream) -> None:
    planner, rng = planner_of(upstream), random.Random(5)
    for make in [small_case] * 300 + [large_case] * 20:
        states, policy = make(planner, rng)
        for moves in ([], planner.plan(states, policy)):
            graph, *rest = planner.cost(states, moves, policy)
            assert (float("inf") if graph == planner.UNCAPTURED else graph, *rest) == cost(states, moves, policy)


@pytest.mark.on
def test_limits_hold_in_large_groups_and_planning_ends(upstream: Upstream) -> None:
    planner, rng, plans = planner_of(upstream), random.Random(6), 0
    for _ in range(40):
        states, policy = large_case(planner, rng)
        before = cost(states, [], policy)
        for _ in range(10):
            moves = planner.plan(states, policy)
            if not moves:
                break
            plans += 1
            assert not broken_limits(states, moves, policy)
            after = cost(states, moves, policy)
            # Fewer moves never count against a smaller graph or less stranded requests, so rounds must come to an end.
            assert after[:2] < before[:2]
            before = after
            states = planner.moved(states, moves)
            assert cost(states, [], policy)[:2] == after[:2]
        else:
            pytest.fail("still moving after ten rounds")
    assert plans > 20, "the cases were too easy"


@pytest.mark.on
def test_same_plan_on_every_rank(upstream: Upstream) -> None:
    planner, rng = planner_of(upstream), random.Random(7)
    for make in [small_case] * 100 + [large_case] * 10:
        states, policy = make(planner, rng)
        expected = planner.plan(states, policy)
        for _ in range(3):
            mixed = [one._replace(running=rng.sample(one.running, len(one.running))) for one in states]
            rng.shuffle(mixed)
            assert planner.plan(mixed, policy) == expected


@pytest.mark.on
def test_tail_reaches_the_smaller_graph_with_fewest_moves(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [900, 300, 700, 500, 200, 800]}, {"running": [100]}, {"running": [100] * 4})
    moves = planner.plan(states, planner.Policy((2, 4, 8, 16)))
    # Rank 0 is two above a graph of 4: its two smallest go, and rank 2 has no slot left.
    assert as_tuples(moves) == [("r1", 0, 1, False, 3), ("r4", 0, 1, False, 2)]


@pytest.mark.on
def test_nothing_moves_without_a_smaller_graph(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    policy = planner.Policy((4, 8, 16))
    uneven = states_of(planner, {"running": [100] * 8}, {"running": [100] * 5})
    assert planner.plan(uneven, policy) == [], "13 requests do not fit on two graphs of 4"
    assert planner.plan(states_of(planner, {"running": [100] * 4}, {}), policy) == [], "no graph is smaller"
    assert planner.plan(states_of(planner, {}, {}), policy) == []
    assert planner.plan([], policy) == []


@pytest.mark.on
def test_what_waits_moves_before_what_runs(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [100] * 3, "waiting": [5000, 90]}, {"running": [100]})
    moves = planner.plan(states, planner.Policy((2, 4, 8)))
    assert as_tuples(moves) == [("w1", 0, 1, True, 0)], "it will run as soon as it can, so it counts"


@pytest.mark.on
@pytest.mark.parametrize("full", [{"slots": 4}, {"blocks": 5}], ids=["slots", "blocks"])
def test_flooded_rank_is_relieved_without_a_smaller_graph(upstream: Upstream, full: dict[str, int]) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [100] * 4, "waiting": [90] * 3, **full}, {"running": [100] * 6})
    policy = planner.Policy((8, 16))
    stranded = cost(states, [], policy)[1]
    moves = planner.plan(states, policy)
    # The graph is 8: two may come, the last of the queue first. What runs stays.
    assert stranded >= 2
    assert as_tuples(moves) == [("w1", 0, 1, True, 0), ("w2", 0, 1, True, 0)]


@pytest.mark.on
@pytest.mark.parametrize(
    ("destination", "settings"),
    [
        ({"running": [1280], "blocks": 11}, {}),
        ({"running": [1280] * 3, "blocks": 33}, {"growth_tokens": 128}),
        ({"running": [1280], "blocks": 20}, {"reserve": 0.5}),
        ({"running": [1280], "slots": 1}, {}),
        ({"running": [1280], "waiting": [9000, 10], "blocks": 60}, {}),
    ],
    ids=["full cache", "growth", "reserve", "slots", "waiting"],
)
def test_rank_that_would_be_flooded_is_no_destination(
    upstream: Upstream, destination: dict[str, Any], settings: dict[str, Any]
) -> None:
    planner = planner_of(upstream)
    policy = planner.Policy((4, 8), **settings)
    source = {"running": [200] * 5, "slots": 5}
    assert planner.plan(states_of(planner, source, destination), policy) == []
    roomy = states_of(planner, source, destination, {"running": [1280] * 3})
    assert [one.destination for one in planner.plan(roomy, policy)] == [2]


@pytest.mark.on
def test_known_rest_of_an_answer_needs_less_room(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    source, target = states_of(planner, {"running": [256] * 5}, {"running": [256], "blocks": 7})
    policy = planner.Policy((4, 8), growth_tokens=256)
    assert planner.plan([source, target], policy) == [], "both may grow by two blocks: 8 of 7"
    ending = [one._replace(expected_tokens=0) for one in target.running]
    assert len(planner.plan([source, target._replace(running=ending)], policy)) == 1


@pytest.mark.on
def test_pinned_requests_stay(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    source, target = states_of(planner, {"running": [100, 200, 300]}, {})
    policy = planner.Policy((2, 4))

    def pinned(*names: str) -> Any:
        return source._replace(running=[one._replace(movable=one.request_id not in names) for one in source.running])

    assert [one.request_id for one in planner.plan([pinned("r0"), target], policy)] == ["r1"]
    assert planner.plan([pinned("r0", "r1", "r2"), target], policy) == []


@pytest.mark.on
def test_packing_that_no_simple_rule_finds(upstream: Upstream) -> None:
    """Six requests fill two caches to the last block only as 7 5 2 and 6 4 4; most room first and tightest fit miss it."""
    planner = planner_of(upstream)
    source = {"running": [128 * size for size in (7, 6, 5, 4, 4, 2, 90, 91, 92)], "blocks": 400}
    policy = planner.Policy((3, 16))
    moves = planner.plan(states_of(planner, source, {"blocks": 14}, {"blocks": 14}), policy)
    loads = sorted(sorted(one.blocks for one in moves if one.destination == rank) for rank in (1, 2))
    assert loads == [[2, 5, 7], [4, 4, 6]]
    assert planner.plan(states_of(planner, source, {"blocks": 14}, {"blocks": 13}), policy) == []


@pytest.mark.on
def test_search_for_a_packing_ends(upstream: Upstream) -> None:
    """The sum of 60 requests fits, but each of 40 ranks has room for one: a full search would try 2 to the 40 ways."""
    planner = planner_of(upstream)
    source = {"running": [128 * 7] * 30 + [128 * 6] * 30 + [9999] * 4, "blocks": 1000}
    ranks = [{"blocks": 10 + at % 2} for at in range(40)]
    assert planner.plan(states_of(planner, source, *ranks), planner.Policy((4, 64))) == []


@pytest.mark.on
def test_graph_sizes_count_tokens_of_a_step(upstream: Upstream) -> None:
    """With drafts a request brings several tokens into a step, and sizes are captured in tokens."""
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [100] * 3}, {"running": [100]})
    policy = planner.Policy((8, 16), tokens_per_request=4)
    assert planner.graph_size(states, policy) == 16
    assert len(planner.plan(states, policy)) == 1
    assert planner.graph_size(planner.moved(states, planner.plan(states, policy)), policy) == 8


@pytest.mark.on
def test_while_drafts_are_paused_a_request_is_one_token(upstream: Upstream) -> None:
    """Without the fifth both ranks could use a smaller graph; the other has room for it only if no drafts are counted."""
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [128] * 5}, {"running": [128] * 3, "blocks": 12})
    drafting = planner.Policy((4, 8, 16), growth_tokens=512, tokens_per_request=4)
    assert planner.plan(states, drafting) == [], "each of four requests may grow by four blocks"
    assert len(planner.plan(states, drafting.paused())) == 1
    assert (drafting.paused().tokens_per_request, drafting.paused().growth_tokens) == (1, 128)


@pytest.mark.on
def test_load_above_all_graphs_is_worse_than_any(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [100] * 9}, {"running": [100] * 2})
    assert len(planner.plan(states, planner.Policy((4, 8)))) == 1


def timed(planner: Any, **times: Any) -> Any:
    return planner.Policy((4, 8), times=planner.Times(step=(0.06, 0.08), **({"horizon_steps": 100} | times)))


@pytest.mark.on
def test_moves_are_made_only_if_they_pay(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [1280] * 5}, {"running": [1280] * 2})
    # 100 steps save 2 s; ten blocks are sent.
    assert len(planner.plan(states, timed(planner))) == 1
    assert len(planner.plan(states, timed(planner, pause=1.0, block=0.09))) == 1
    assert planner.plan(states, timed(planner, pause=1.0, block=0.11)) == []
    assert planner.plan(states, timed(planner, pause=2.1)) == []
    assert len(planner.plan(states, timed(planner, pause=2.1, horizon_steps=200))) == 1
    queue = states_of(planner, {"running": [100] * 3, "waiting": [100] * 2}, {"running": [100] * 2})
    assert len(planner.plan(queue, timed(planner, pause=2.1))) == 1, "what waits has no KV to send"


@pytest.mark.on
def test_caches_are_levelled_only_if_told_and_if_it_pays(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    states = states_of(planner, {"running": [2560, 1280, 1280]}, {"running": [128]})
    assert planner.plan(states, timed(planner)) == [], "the graph is the smallest"
    moves = planner.plan(states, timed(planner, cache=0.1))
    assert as_tuples(moves) == [("r2", 0, 1, False, 10)], "20 blocks would leave rank 1 fuller than rank 0"
    assert planner.plan(states, timed(planner, cache=0.1, pause=1.1)) == [], "10 of 100 blocks save 1 s in 100 steps"


@pytest.mark.on
def test_rank_that_gives_takes_nothing(upstream: Upstream) -> None:
    """Rank 0 sends a request to rank 1 to level the caches, and has the only slots left for what waits at rank 2."""
    planner = planner_of(upstream)
    states = states_of(
        planner,
        {"running": [2560, 1280]},
        {"running": [128] * 3},
        {"running": [128] * 4, "waiting": [128] * 2, "slots": 4},
    )
    assert as_tuples(planner.plan(states, timed(planner, cache=0.1))) == [("r1", 0, 1, False, 10)]
    assert [one.destination for one in planner.plan(states, timed(planner))] == [0, 1], "caches are not levelled"


@pytest.mark.on
def test_with_times_it_is_never_worse_than_no_move(upstream: Upstream) -> None:
    planner, rng, moved = planner_of(upstream), random.Random(8), 0
    for make in [small_case] * 200 + [large_case] * 15:
        states, policy = make(planner, rng)
        step = tuple(0.05 + 0.001 * size for size in policy.graph_sizes)
        times = planner.Times(step, rng.choice((10, 500)), rng.choice((0.0, 0.2)), rng.choice((0.0, 0.01)), 0.05)
        policy = planner.Policy(**(vars(policy) | {"times": times}))
        moves = planner.plan(states, policy)
        assert not broken_limits(states, moves, policy)
        assert planner.plan(states[::-1], policy) == moves
        none, found = (
            (planner.expected_seconds(states, one, policy), planner.cost(states, one, policy)) for one in ([], moves)
        )
        assert found < none if moves else found == none
        moved += bool(moves)
    assert moved > 50


@pytest.mark.on
def test_it_needs_the_standard_library_only(upstream: Upstream) -> None:
    planner_of(upstream)
    parent = (upstream.tree("verl") / FOLDER).parent
    code = f"import sys; sys.path.insert(0, {str(parent)!r}); import rebalance.planner as p; print(p.plan([], p.Policy((4,))))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"graph_sizes": ()}, "graph_sizes"),
        ({"graph_sizes": (4, 0)}, "graph_sizes"),
        ({"graph_sizes": (4,), "block_size": 0}, "block_size"),
        ({"graph_sizes": (4,), "growth_tokens": -1}, "growth_tokens"),
        ({"graph_sizes": (4,), "reserve": 1.0}, "reserve"),
    ],
)
def test_settings_without_sense_are_refused(upstream: Upstream, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        planner_of(upstream).Policy(**settings)


@pytest.mark.misuse
def test_times_that_do_not_match_are_refused(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    with pytest.raises(ValueError, match=r"times\.step"):
        planner.Policy((4, 8), times=planner.Times((0.1,), 100))
    with pytest.raises(ValueError, match=r"horizon_steps"):
        planner.Policy((4, 8), times=planner.Times((0.1, 0.2), 0))


@pytest.mark.misuse
def test_states_without_sense_are_refused(upstream: Upstream) -> None:
    planner = planner_of(upstream)
    policy = planner.Policy((4, 8))
    one, two = states_of(planner, {"running": [100] * 5}, {})
    with pytest.raises(ValueError, match="a rank is given twice"):
        planner.plan([one, two._replace(rank=0)], policy)
    with pytest.raises(ValueError, match="rank 0: a request is given twice"):
        planner.plan([one._replace(waiting=one.running[:1]), two], policy)
    with pytest.raises(ValueError, match="rank 1: impossible"):
        planner.plan([one, two._replace(free_blocks=101)], policy)
    with pytest.raises(ValueError, match="no such requests"):
        planner.cost([one, two], [planner.Move("other", 0, 1, False, 1)], policy)
