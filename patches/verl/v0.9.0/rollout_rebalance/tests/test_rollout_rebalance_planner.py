"""rollout_rebalance, its planner: a pure function, held against every plan of one pair and against its own limits. Needs no torch."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PLANNER = "verl/workers/rollout/rebalance/planner.py"
# A step reads all weights once, and then something for each request.
STEPS = {number: 0.010 + 0.001 * number for number in range(1, 65)}


@pytest.fixture(scope="module")
def planner(upstream: Upstream) -> Any:
    """The module, read from its file: it imports nothing else of verl. None where verl has no such file."""
    file = Path(upstream.tree("verl"), PLANNER)
    if not file.is_file():
        return None
    spec = importlib.util.spec_from_file_location("rebalance_planner", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def server(planner: Any, name: str, *contexts: int, **changes: Any) -> Any:
    """One that runs requests with so many tokens each, which may make a thousand more; `changes` are of every request or of the server."""
    requests = tuple(
        planner.Request(
            f"{name}{at}", context, changes.get("remaining", 1000), changes.get("movable", True), changes.get("waiting", False)
        )
        for at, context in enumerate(contexts)
    )  # fmt: skip
    return planner.Server(requests, changes.get("version"), changes.get("slots", 64), changes.get("cache", 1 << 20))


def moves(planner: Any, servers: dict[str, Any], prompt: float = 10_000.0, **policy: Any) -> list[tuple[str, str, str]]:
    speeds = planner.Speeds(policy.pop("token", STEPS), prompt)
    return [
        tuple(one) for one in planner.plan(servers, speeds, planner.Policy(**{"horizon": 512, "gain": 0.1} | policy))
    ]


@pytest.mark.on
def test_half_of_the_requests_of_a_crowded_server_go_to_an_idle_one(planner: Any) -> None:
    made = moves(planner, {"a": server(planner, "a", *[500] * 8), "b": server(planner, "b")})
    # Half would be four; what their prompts cost makes three the best: 512 * 0.015 against 512 * 0.014 + 0.2.
    best = min(
        range(5), key=lambda number: max(512 * STEPS[8 - number], number and 512 * STEPS[number] + number * 0.05)
    )
    assert made == [(f"a{at}", "a", "b") for at in range(best)] and best == 4


@pytest.mark.on
def test_what_has_to_be_computed_anew_is_counted(planner: Any) -> None:
    """Long contexts on a server that computes prompts slowly cost more than they save; the cheapest go where fewer are enough."""
    crowded = {"a": server(planner, "a", *[8000] * 8), "b": server(planner, "b")}
    assert moves(planner, crowded, prompt=1000.0) == []
    assert moves(planner, crowded, prompt=1e9)
    uneven = {"a": server(planner, "a", 9000, 100, 8000, 50, 7000, 60), "b": server(planner, "b")}
    assert [one[0] for one in moves(planner, uneven, prompt=20_000.0)] == ["a3", "a5", "a1"]


@pytest.mark.on
def test_as_many_as_gain_most_by_every_number_there_is(planner: Any) -> None:
    """Against all numbers of requests of a pair, for random loads, times and prompts."""
    rng = random.Random(7)
    some = 0
    for _ in range(300):
        token = dict(enumerate(itertools.accumulate(rng.uniform(0, 0.002) for _ in range(20)), 1))
        prompt, gain, horizon = rng.uniform(500, 50_000), rng.uniform(0, 0.3), rng.randint(1, 800)
        full, few = rng.randint(0, 12), rng.randint(0, 6)
        contexts = sorted(rng.randint(1, 3000) for _ in range(full))
        servers = {"a": server(planner, "a", *contexts), "b": server(planner, "b", *[100] * few, movable=False)}

        times = (
            [
                max(
                    horizon * token[max(full - number, 1)],
                    (sum(contexts[:number]) / prompt + horizon * token[few + number])
                    if number
                    else horizon * token[full],
                )
                for number in range(max((full - few) // 2, 0) + 1 if full else 1)
            ]
            if full
            else [0.0]
        )
        made = moves(planner, servers, prompt, token=token, horizon=horizon, gain=gain)
        if full - few < 2:
            assert not [one for one in made if one[1] == "a"]
            continue
        best = times.index(min(times))
        wanted = best if times[0] - times[best] >= gain * times[0] else 0
        assert len(made) >= wanted and (wanted > 0) == bool(made)
        some += bool(made)
    assert 50 < some < 250, "nearly all or nearly no cases have a plan"


@pytest.mark.on
def test_a_server_with_a_request_that_waits_takes_none_and_gives_those_that_run(planner: Any) -> None:
    """Whatever waits elsewhere: it is full there, or still busy with the requests of the last plan."""
    number = {"a": 8, "b": 1, "c": 4}
    servers = {name: server(planner, name, *[500] * many) for name, many in number.items()}
    plain = moves(planner, servers, gain=0.05)
    assert {one[1:] for one in plain} == {("a", "b")}
    servers["b"] = server(planner, "b", 500, waiting=True)
    assert {one[1:] for one in moves(planner, servers, gain=0.05)} == {("a", "c")}
    servers["c"] = server(planner, "c", *[500] * 4, waiting=True)
    assert moves(planner, servers, gain=0.05) == []
    waits, runs = server(planner, "w", 1, 2, waiting=True), server(planner, "a", *[500] * 8)
    crowded = planner.Server(waits.requests + runs.requests, None, 64, 1 << 20)
    made = moves(planner, {"a": crowded, "b": server(planner, "b")})
    assert made and {one[0][0] for one in made} == {"a"}, "the two that wait are the cheapest, and stay"


@pytest.mark.on
def test_servers_with_other_weights_are_no_pair(planner: Any) -> None:
    servers = {"a": server(planner, "a", *[500] * 8, version=3), "b": server(planner, "b", version=2)}
    assert moves(planner, servers) == []
    servers["c"] = server(planner, "c", 500, version=3)
    assert {one[2] for one in moves(planner, servers)} == {"c"}


@pytest.mark.on
def test_what_a_server_has_no_room_for_stays(planner: Any) -> None:
    crowded = server(planner, "a", *[500] * 8)
    assert len(moves(planner, {"a": crowded, "b": server(planner, "b", slots=2)})) == 2
    # Of a request 500 tokens are there and 512 are to come.
    assert len(moves(planner, {"a": crowded, "b": server(planner, "b", cache=3 * 1012)})) == 3
    held = server(planner, "b", 512, movable=False, cache=3 * 1012)
    assert len(moves(planner, {"a": crowded, "b": held}, gain=0.05)) == 1


@pytest.mark.on
def test_requests_that_may_not_move_or_end_soon_stay(planner: Any) -> None:
    idle = server(planner, "b")
    assert moves(planner, {"a": server(planner, "a", *[500] * 8, movable=False), "b": idle}) == []
    assert moves(planner, {"a": server(planner, "a", *[500] * 8, remaining=5), "b": idle}) == []


@pytest.mark.on
def test_no_plan_without_times_and_none_where_fewer_requests_are_no_faster(planner: Any) -> None:
    servers = {"a": server(planner, "a", *[10] * 8), "b": server(planner, "b")}
    assert moves(planner, servers, token={}) == []
    assert moves(planner, servers, token={8: 0.02, 64: 0.09}) == [], "nobody has seen fewer than eight"
    assert moves(planner, servers, token={1: 0.019, 8: 0.02}) == [], "a gain below the least one"
    assert moves(planner, servers, token={1: 0.019, 8: 0.02}, gain=0.0)
    assert moves(planner, servers, token={4: 0.05, 8: 0.02}) == [], "a slow moment makes no promise"


@pytest.mark.on
def test_a_plan_makes_no_server_the_last(planner: Any) -> None:
    """No request moves twice, who gives takes nothing, and no server is done later than the last one would have been."""
    rng = random.Random(3)
    for _ in range(200):
        servers = {
            name: server(planner, name, *[rng.randint(1, 4000) for _ in range(rng.randint(0, 30))]) for name in "abcdef"
        }
        prompt = rng.uniform(2_000, 100_000)
        made = moves(planner, servers, prompt)
        assert len({one[0] for one in made}) == len(made)
        assert not {one[1] for one in made} & {one[2] for one in made}
        requests = {one.request_id: one for each in servers.values() for one in each.requests}
        count = {name: len(each.requests) for name, each in servers.items()}
        last = 512 * STEPS[max(count.values())]
        anew = dict.fromkeys(servers, 0)
        for request_id, source, destination in made:
            assert requests[request_id] in servers[source].requests
            count[source], count[destination] = count[source] - 1, count[destination] + 1
            anew[destination] += requests[request_id].context
        after = [anew[name] / prompt + 512 * STEPS.get(number, 0.0) for name, number in count.items()]
        assert max(after) <= last + 1e-9


@pytest.mark.on
def test_the_same_from_servers_in_any_order(planner: Any) -> None:
    servers = {name: server(planner, name, *[300] * number) for name, number in zip("abcd", (9, 1, 7, 0), strict=True)}
    assert {tuple(moves(planner, dict(order))) for order in itertools.permutations(servers.items())} == {
        tuple(moves(planner, servers))
    }


@pytest.mark.misuse
def test_impossible_numbers_are_refused(planner: Any) -> None:
    servers = {"a": server(planner, "a", 1)}
    for changes in ({"prompt": 0.0}, {"token": {1: -1.0}}, {"horizon": 0}):
        with pytest.raises(ValueError, match="impossible numbers"):
            moves(planner, servers, **changes)
