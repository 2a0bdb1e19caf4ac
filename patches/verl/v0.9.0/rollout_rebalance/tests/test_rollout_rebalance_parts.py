"""rollout_rebalance, part by part: its balancer with servers that fail, accounts of a server, answers of two parts, and other classes."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from test_rollout_rebalance import ENGINE

CASES = ["of_a_dead_server", "on_the_way", "after_an_error", "account", "leaving", "refusing", "the_trainers_abort"]
CASES += ["both_parts", "a_client", "classes"]


@pytest.fixture(scope="module")
def made(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """What each case of the probe found."""
    return upstream.run("probe_rebalance_parts.py", tiny_models.qwen3_moe, *CASES, **ENGINE)


@pytest.mark.on
def test_servers_that_answer_are_balanced_without_those_that_do_not(made: Any) -> None:
    found = made["of_a_dead_server"]
    assert found["plans"] == [4, 4]
    assert found["to"] == ["idle"]
    assert found["said"] == 1, "once, and not in every plan"
    assert found["back"] == ["gone", "idle"], "a server that answers again takes requests again"
    assert found["dies when it is to give"] == [4, 4, 4]
    assert found["hangs"] == [4, ["idle"]]


@pytest.mark.on
def test_what_is_on_its_way_holds_up_its_own_server_and_what_is_lost_none(made: Any) -> None:
    assert made["on_the_way"] == {
        "before": 0, "to, meanwhile": ["third"], "for half the time": 0, "after it": 4, "another on its way": 0, "which has come": 4,
    }  # fmt: skip


@pytest.mark.on
def test_plans_go_on_after_an_error(made: Any) -> None:
    assert made["after_an_error"] == {"with impossible times": 0, "then": ["idle"]}


@pytest.mark.on
def test_a_server_says_what_it_has_room_for_and_what_may_leave(made: Any) -> None:
    found = made["account"]
    assert (found["slots"], found["cache"]) == (2 * 8, 8 * 16), "two data parallel ranks, of eight requests each"
    assert found["slots of one that failed"] == 0
    assert found["movable"] == {"plain": True, "moved": False, "an image": False, "a seed": False}
    assert found["waiting"] == ["plain"]


@pytest.mark.on
def test_what_the_trainer_ends_goes_nowhere(made: Any) -> None:
    found = made["leaving"]
    assert found["goes, ended"] == [["goes"], ["goes"]], "what is not here is not ended"
    assert found["goes"] == {"rebalance": {"to": "there", "max_tokens": 95}}
    assert found["stays"] == {}
    assert made["the_trainers_abort"] == [[None, False]]


@pytest.mark.on
def test_a_server_with_other_weights_or_paused_takes_none(made: Any) -> None:
    assert made["refusing"] == {"as here": None, "paused": ["aborted", 3], "other weights": ["aborted", 2]}


@pytest.mark.on
@pytest.mark.stack("verl", ">0.9")
def test_verls_gate_and_what_it_says_of_caches(upstream: Upstream, tiny_models: TinyModels) -> None:
    """A server whose gate is closed takes none; of a moved prompt the cached tokens are those of its first server."""
    found = upstream.run("probe_rebalance_parts.py", tiny_models.qwen3_moe, "behind_the_gate", "cached", **ENGINE)
    assert found == {"behind_the_gate": "aborted", "cached": 2}


@pytest.mark.on
def test_an_answer_has_the_tokens_and_the_counts_of_both_parts(made: Any) -> None:
    found = made["both_parts"]
    assert found["tokens"] == [1, 2, 3, 4, 5, 6]
    assert found["log_probs"] == [-0.5 * one for one in found["tokens"]]
    assert found["routes"] == list(range(8))
    assert found["fields"] == {"global_steps": 3, "spec_num_draft_tokens": 12, "spec_num_accepted_tokens": 2}
    assert found["preempted"] == [3, None]


@pytest.mark.on
def test_the_client_follows_its_request(made: Any) -> None:
    """Prompt and answer so far, with what is left of the limit; every server that was acquired is released."""
    found = made["a_client"]
    assert found["asked"] == [["a", 0, 3, 100], ["b", 1, 5, 98, 3], ["a", 2, 6, 97, 3]]
    assert found["tokens"] == [1, 2, 3, 4, 5]
    assert found["released"] == ["a", "b", "a"]
    assert found["in flight"] == {"a": 0, "b": 0}
    assert found["session"] == "a"


@pytest.mark.on
def test_only_a_server_with_the_switch_on_keeps_account(made: Any) -> None:
    assert made["classes"] == {"on": True, "off": False, "another class": False}


@pytest.mark.off
def test_a_server_with_another_configuration_class_starts(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Upstream's hook `_init_config`: a class of somebody else's, that has not the fields of this patch."""
    found = upstream.run("probe_rebalance_parts.py", tiny_models.qwen3_moe, "another_class", **ENGINE)
    assert found == {"another_class": {"length": 512, "ended": 0}}
