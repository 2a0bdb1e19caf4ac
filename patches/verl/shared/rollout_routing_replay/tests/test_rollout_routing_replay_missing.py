"""rollout_routing_replay: tokens for which the rollout returned no routes are found, told, and refused or left to the trainer's router."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

ENGINE: dict[str, Any] = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu", "torchvision"], "timeout": 300}
CASES = ["native", "alone", "refuse", "nothing missing", "reductions", "warnings", "layers", "native without values"]
CASES += ["padded masks", "packing"]
LOST = [(0, 0), (0, 2), (0, 5), (1, 3)]  # of 13 tokens to replay; the last in one layer alone
SHARE = {"actor/missing_routes_share": 4 / 13}
SAID = "router replay R3: 4 of 13 tokens (30.77%) have no routes"
KEY = "actor_rollout_ref.actor.megatron.router_replay.missing_routes"
MEGATRON = ["main_ppo megatron", "actor_rollout_ref.actor.use_dynamic_bsz=True", "algorithm.adv_estimator=grpo"]
MEGATRON += ["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True"]
R3 = [
    "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
]


@pytest.fixture(scope="module")
def made(upstream: Upstream) -> dict[str, Any]:
    """What the engine's probe found, by the name of its case."""
    return dict(zip(CASES, upstream.run("probe_missing_routes.py", *CASES, **ENGINE), strict=True))


def tokens(routes: Any) -> dict[tuple[int, int], Any]:
    return {(row, at): layers for row, one in enumerate(routes) for at, layers in enumerate(one)}


@pytest.mark.on
def test_native_routes_tokens_without_routes_by_the_trainers_router(made: dict[str, Any]) -> None:
    taken, wanted, alone = tokens(made["native"]["taken"]), tokens(made["native"]["wanted"]), tokens(made["alone"])
    last = [(0, 6), (1, 7)]  # what the model wrote last, which the rollout did not read
    for at, layers in taken.items():
        if at in [*LOST, *last]:
            assert [len(layer) for layer in layers] == [2, 2], at
            # Nothing that was replayed is behind the first layer's choice.
            assert layers[0] == alone[at][0], at
        else:
            assert layers == wanted[at], at
    assert any(taken[at] != wanted[at] for at in LOST)


@pytest.mark.on
def test_their_share_is_a_metric_and_one_warning_says_so(made: dict[str, Any]) -> None:
    assert made["native"]["told"] == pytest.approx(SHARE)
    assert made["nothing missing"]["told"] == {"actor/missing_routes_share": 0.0}
    (line,) = made["warnings"]["two passes"]
    assert line.startswith(SAID)


@pytest.mark.on
def test_refuse_ends_before_a_router_runs(made: dict[str, Any]) -> None:
    error, routers = made["refuse"]
    assert error is not None
    assert error.startswith(SAID)
    assert "missing_routes=native" in error
    assert routers == 0


@pytest.mark.on
def test_refuse_lets_whole_routes_pass(made: dict[str, Any]) -> None:
    whole = made["nothing missing"]
    taken, wanted = tokens(whole["taken"]), tokens(whole["wanted"])
    assert all(taken[at] == wanted[at] for at in taken if at not in [(0, 6), (1, 7)])


@pytest.mark.on
def test_every_rank_is_told_the_share_of_all(upstream: Upstream) -> None:
    """Rank 1 alone has lost routes: rank 0 ends with the same error."""
    ranks = [of_rank for (of_rank,) in upstream.run("probe_missing_routes.py", "ranks", procs=2, **ENGINE)]
    for one in ranks:
        assert one["native"] == pytest.approx({"actor/missing_routes_share": 4 / 26})
        error, routers = one["refuse"]
        assert error is not None and error.startswith("router replay R3: 4 of 26 tokens (15.38%)"), error
        assert routers == 0


@pytest.mark.on
def test_finding_them_costs_one_reduction_a_pass_and_no_wait_a_micro_batch(made: dict[str, Any]) -> None:
    assert made["reductions"]["native"] == made["reductions"]["replay"] + 1
    assert made["native without values"] is None


@pytest.mark.on
def test_dense_layers_have_no_routes_to_miss(made: dict[str, Any]) -> None:
    assert made["layers"] == [[True, False, False]] * 2


@pytest.mark.on
def test_with_one_expert_a_token_nothing_can_be_told(made: dict[str, Any]) -> None:
    (line,) = made["warnings"]["top-k of 1"]
    assert "top-k of 1" in line
    assert made["warnings"]["share of 1"] is None


@pytest.mark.on
def test_the_mask_of_padded_batches_ends_where_the_model_ended(made: dict[str, Any]) -> None:
    assert made["padded masks"] == {"batches": 300, "equal": 300}


@pytest.mark.on
def test_packing_64_sequences_waits_as_often_as_packing_two(made: dict[str, Any]) -> None:
    """Upstream waits for each sequence once more, and three times on an NPU."""
    for two, many in made["packing"]:
        assert two[1] is many[1] is True
        assert many[0] == two[0] <= 5
    assert made["packing"][1][1][2] == 1  # MindSpeed was given positions


@pytest.mark.off
def test_replay_replays_zeros_as_upstream(upstream: Upstream) -> None:
    (replay,) = upstream.run("probe_missing_routes.py", "replay", **ENGINE)
    taken = tokens(replay["taken"])
    assert [taken[at] for at in LOST[:3]] == [[[0], [0]]] * 3
    assert taken[LOST[3]] == [[0], tokens(replay["wanted"])[LOST[3]][1]]
    assert replay["told"] == {}


@pytest.mark.misuse
def test_words_that_are_not_known_and_an_engine_that_reads_none_are_refused_before_ray(upstream: Upstream) -> None:
    veomni = "+actor_rollout_ref.actor.veomni.router_replay.missing_routes=native"
    refused = [
        [*MEGATRON, *R3, f"{KEY}=nativ"],
        [*MEGATRON, f"{KEY}=True"],
        [*MEGATRON[1:], "model_engine=veomni", veomni],
    ]
    taken = [[*MEGATRON, *R3], *([*MEGATRON, *R3, f"{KEY}={word}"] for word in ("refuse", "native", "replay"))]
    cases = map(json.dumps, [*taken, *refused])
    answers = upstream.run(
        "probe_router_replay_refusals.py", *cases, need=["verl"], standins=["torchvision"], timeout=300
    )
    assert answers[: len(taken)] == [None] * len(taken)
    wrong, number, engine = answers[len(taken) :]
    assert f"{KEY}=nativ is not known: use one of refuse, native, replay" in wrong
    assert f"{KEY}=True is not known" in number
    assert "leave it out, Megatron's engine alone reads it" in engine
