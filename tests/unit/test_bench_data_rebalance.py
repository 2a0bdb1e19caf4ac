"""The model of benchmarks/bench_data_rebalance.py, on cases small enough to work out by hand."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from programs import loaded

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_data_rebalance.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with loaded(SCRIPT) as module:
        yield module


def pieces(bench: ModuleType, tokens: list[int], slots: int = 8, cache: int = 10**6, prompt_tokens: int = 0) -> list:
    """(start, end, running, cache at start) of one engine; every answer to the same prompt."""
    machine = bench.Machine(slots=slots, cache_tokens=cache)
    trace = bench.Engine([bench.Request(0, length) for length in tokens], machine, prompt_tokens).run()
    return [(piece.start, piece.end, piece.running, piece.cache) for piece in trace.pieces]


def test_orders_are_those_of_verl_and_of_data_rebalance(bench: ModuleType) -> None:
    answers = [[11, 12], [21, 22], [31, 32]]
    assert [request.left for request in bench.grouped(answers)] == [11, 12, 21, 22, 31, 32]
    assert [request.left for request in bench.tiled(answers)] == [11, 21, 31, 12, 22, 32]
    assert [request.prompt for request in bench.tiled(answers)] == [0, 1, 2, 0, 1, 2]
    parts = bench.chunks(bench.tiled(answers), 2)
    assert [[request.left for request in part] for part in parts] == [[11, 21, 31], [12, 22, 32]]
    with pytest.raises(ValueError, match="6 requests cannot be cut into 4 equal parts"):
        bench.chunks(bench.tiled(answers), 4)


def test_lengths_have_the_mean_the_limit_and_the_correlation_asked_for(bench: ModuleType) -> None:
    work = bench.Workload(prompts=400, correlation=1.0)
    answers = bench.lengths(work, seed=1)
    everything = [length for row in answers for length in row]
    assert statistics.fmean(everything) == pytest.approx(7345, rel=1e-3)
    assert max(everything) == 32768 and min(everything) >= 1
    assert all(len(set(row)) == 1 for row in answers)
    assert answers == bench.lengths(work, seed=1) != bench.lengths(work, seed=2)
    # Without correlation the means of 16 answers scatter a quarter as much as the answers.
    alike = bench.lengths(bench.Workload(prompts=400, correlation=0.0), seed=1)
    scatter = statistics.pstdev(statistics.fmean(row) for row in alike)
    assert scatter == pytest.approx(statistics.pstdev(x for row in alike for x in row) / 4, rel=0.15)


def test_an_engine_runs_as_many_as_it_has_slots(bench: ModuleType) -> None:
    assert pieces(bench, [5]) == [(0, 5, 1, 0)]
    assert pieces(bench, [5, 3], slots=1) == [(0, 5, 1, 0), (5, 8, 1, 0)]
    # The third begins when the shorter of the first two ends.
    assert pieces(bench, [5, 3, 4], slots=2) == [(0, 3, 2, 0), (3, 5, 2, 3), (5, 7, 1, 2)]


def test_a_full_cache_sets_the_latest_request_aside_and_it_keeps_its_tokens(bench: ModuleType) -> None:
    # Two of eight tokens in a cache of ten: both have five, then the second waits until the first has ended.
    assert pieces(bench, [8, 8], cache=10) == [(0, 5, 2, 0), (5, 8, 1, 5), (8, 11, 1, 5)]


def test_answers_to_one_prompt_share_its_tokens(bench: ModuleType) -> None:
    assert pieces(bench, [2, 2], prompt_tokens=100) == [(0, 2, 2, 100)]
    requests = [bench.Request(0, 2), bench.Request(1, 2)]
    (piece,) = bench.Engine(requests, bench.Machine(), 100).run().pieces
    assert piece.cache == 200


@pytest.mark.parametrize("cache", [35, 2])
def test_every_token_is_generated_once(bench: ModuleType, cache: int) -> None:
    requests = bench.grouped(bench.lengths(bench.Workload(prompts=4), seed=3))
    trace = bench.Engine(requests, bench.Machine(cache_tokens=cache * 32768), 74).run()
    generated = sum((piece.end - piece.start) * piece.running for piece in trace.pieces)
    assert generated == sum(request.left for request in requests)
    assert (trace.set_aside > 0) == (cache == 2)


def test_a_step_takes_the_cited_times(bench: ModuleType) -> None:
    machine = bench.Machine()
    assert bench.step_ms(1, 0, machine) == bench.step_ms(4, 0, machine) == 60
    assert bench.step_ms(65, 0, machine) == bench.step_ms(128, 0, machine) == 125
    assert bench.step_ms(128, machine.cache_tokens, machine) == 200


def test_lockstep_waits_for_the_busiest_engine_in_each_step(bench: ModuleType) -> None:
    # Engine 0 holds one prompt of 1,000 tokens for 64 steps, engine 1 two of them for 32; a quarter is 18.75 ms.
    requests = [bench.Request(0, 64), bench.Request(0, 64), bench.Request(1, 32), bench.Request(2, 32)]
    machine = bench.Machine(engines=2, cache_tokens=4000)
    later = 60 + 75 * 1064 / 4000
    together = bench.rollout(requests, machine, 1000)
    assert together.seconds == pytest.approx(32 * (60 + 37.5 + later) / 1000)
    assert together.first_idle == pytest.approx(later / (60 + 37.5 + later))
    alone = bench.rollout(requests, bench.Machine(engines=2, cache_tokens=4000, lockstep=False), 1000)
    assert alone.seconds == pytest.approx(32 * (60 + 18.75 + later) / 1000)


def test_equal_lengths_gain_nothing_and_hard_prompts_do(bench: ModuleType) -> None:
    def ratio(machine: bench.Machine, **work: float) -> float:
        return float(bench.compare(bench.Workload(**work), machine, seeds=3).ratio)

    machine = bench.Machine(engines=8)
    assert ratio(machine, prompts=16, sigma=0.0, prompt_tokens=0) == 1.0
    assert ratio(machine, prompts=16, sigma=0.0, prompt_tokens=2048) < 1.0, "a prompt is held more often"
    assert ratio(machine, prompts=64, correlation=0.0) < 1.1 < ratio(machine, prompts=64, correlation=0.9)
