"""hybrid_data_parallel in upstream's own classes: who does not know the switch refuses it, and pipeline stages agree.

Real: verl's workers and engines with their constructors, Megatron's groups and models, MindSpeed's patches, gloo.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from hdp_runs import WHERE

ACTOR, REFERENCE = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron"
SWITCHED = [f"{ACTOR}.hybrid_data_parallel=True"]
# What is made (hdp_settings.make), with which lines of a command line, and what it says.
REFUSED: dict[str, tuple[str, list[str], str]] = {
    "actor": ("actor_rollout", SWITCHED, "needs actor_rollout_ref.actor.megatron.context_parallel_size of 2 or more"),
    "reference": ("ref", [f"{REFERENCE}.hybrid_data_parallel=True"], f"needs {ACTOR}.hybrid_data_parallel=True"),
    "critic": ("critic", ["critic.megatron.hybrid_data_parallel=True"], "set it to False for the critic"),
    "reward model": (
        "reward model",
        ["++reward_model.megatron.hybrid_data_parallel=True"],
        "set it to False for the reward model",
    ),
    "engine": ("MegatronEngine", SWITCHED, "set it to False for the engine workers"),
    "MindSpeed's engine": ("MindspeedEngineWithLMHead", SWITCHED, "set it to False for the engine workers"),
}


@pytest.fixture(scope="module")
def workers(upstream: Upstream) -> list[dict[str, Any]]:
    cases = {name: case[:2] for name, case in REFUSED.items()}
    probe = "probe_hdp_workers.py"
    return list(upstream.run(probe, json.dumps(cases), procs=2, timeout=240, **WHERE))


@pytest.mark.misuse
@pytest.mark.parametrize("case", REFUSED)
def test_a_constructor_refuses_before_anything_is_begun(workers: list[dict[str, Any]], case: str) -> None:
    for rank in workers:
        found = rank["refused"][case]
        assert found["said"] is not None and REFUSED[case][2] in found["said"], found
        assert not found["begun"]


@pytest.mark.misuse
def test_an_actor_with_the_switch_and_all_others_without_it_are_made(workers: list[dict[str, Any]]) -> None:
    without = ["actor_rollout", "ref", "critic", "reward model", "MegatronEngine", "MindspeedEngineWithLMHead"]
    for rank, one in enumerate(workers):
        assert one["accepted"] is not None, f"a constructor went on that should have refused: {one['refused']}"
        assert one["accepted"]["ranks"] == 2
        # With the switch both ranks are one data parallel rank, and the first of them answers for it.
        places = {"actor_rollout, on": [0, rank == 0]} | {who: [rank, True] for who in without}
        assert one["accepted"]["places"] == places


def started(upstream: Upstream, procs: int, *sizes: str, timeout: float = 120) -> list[list[dict[str, Any]]]:
    """For each of the sizes (CONTEXT:PIPELINE), what the ranks report."""
    ranks = upstream.run("probe_hdp_stages.py", *sizes, procs=procs, timeout=timeout, **WHERE)
    return [list(reports) for reports in zip(*ranks, strict=True)]


def check_groups(found: list[dict[str, Any]], ranks: int) -> None:
    """A rank has a group of each size, with as many ranks as it should have, and a second one of each ring, which has sent a
    message before any run; then one of all ranks is made, which PyTorch finds by the number of groups before it."""
    for rank, one in enumerate(found):
        assert one["said"] is None and one["overlap"], found
        place, counts = rank % ranks, {"all": len(found)}
        for size in (size for size in range(1, ranks) if ranks % size == 0):
            kinds = ["group"] if size == 1 else ["group", "overlap"]
            counts |= {f"{kind} {place - place % size} {size}": size for kind in kinds}
        assert one["counts"] == counts
        assert one["warmed up"] == [size for size in range(2, ranks) if ranks % size == 0]


@pytest.fixture(scope="module")
def pair(upstream: Upstream) -> list[list[dict[str, Any]]]:
    """Two ranks, of which the second has no attention: of one context parallel group, and of two stages."""
    found = started(upstream, 2, "2:1", "1:2")
    assert [[rank["attentions"] for rank in reports] for reports in found] == [[1, 0], [1, 0]]
    return found


@pytest.mark.on
def test_a_rank_without_attention_takes_the_second_groups_too(pair: list[list[dict[str, Any]]]) -> None:
    check_groups(pair[0], 2)


@pytest.mark.misuse
def test_what_one_stage_cannot_do_is_said_on_every_rank(pair: list[list[dict[str, Any]]]) -> None:
    said = [rank["said"] for rank in pair[1]]
    assert said[0] is not None and "which takes no ranks with a micro-batch" in said[0]
    assert said == [said[0]] * 2


@pytest.mark.on
@pytest.mark.slow
def test_a_stage_without_attention_makes_as_many_groups(upstream: Upstream) -> None:
    """Four ranks have second groups of two; stages that make them and stages that do not then wait for each other."""
    (found,) = started(upstream, 8, "4:2", timeout=240)
    assert [rank["attentions"] for rank in found] == [1] * 4 + [0] * 4
    check_groups(found, 4)
