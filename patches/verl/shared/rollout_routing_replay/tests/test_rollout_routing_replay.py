"""rollout_routing_replay: which experts verl's Megatron engine takes for each token, and which settings it takes for replay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

ENGINE: dict[str, Any] = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu", "torchvision"], "timeout": 300}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MEGATRON = ["main_ppo megatron", f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"]
MEGATRON += ["algorithm.adv_estimator=grpo"]
FSDP = MEGATRON[1:]
FULLY = ["fully_async_policy megatron", *FSDP]
RECORDED = f"{ROLLOUT}.enable_rollout_routing_replay=True"
R2, R3 = (f"{ACTOR}.megatron.router_replay.mode={mode}" for mode in ("R2", "R3"))
PADDED, BYPASS = "actor_rollout_ref.model.use_remove_padding=False", "algorithm.rollout_correction.bypass_mode=True"
TAKEN = [
    FSDP,
    MEGATRON,
    [*MEGATRON, PADDED],
    [*MEGATRON, R3, RECORDED],
    [*MEGATRON, R3, RECORDED, BYPASS],
    [*MEGATRON, R2],
    [*MEGATRON, RECORDED, f"{ROLLOUT}.moe_load_balance_metrics_interval=1"],
    [*FULLY, R3, RECORDED],
]
REFUSED = {
    "R3 has no routes to replay: set actor_rollout_ref.rollout.enable_rollout_routing_replay=True": [*MEGATRON, R3],
    "that nothing reads: set actor_rollout_ref.actor.megatron.router_replay.mode=R3": [*MEGATRON, R2, RECORDED],
    "that nothing reads: only strategy=megatron and veomni": [*FSDP, RECORDED],
    "set actor_rollout_ref.model.use_remove_padding=True": [*MEGATRON, R3, RECORDED, PADDED],
    "algorithm.rollout_correction.bypass_mode=False": [*MEGATRON, R2, BYPASS],
    # Entry points that call verl's validate_config when Ray runs, or not at all; fully_async_policy has bypass mode on.
    "only strategy=megatron and veomni replay them": ["one_step_off_policy", *FSDP, RECORDED],
    "in the pass that bypass mode leaves out: use mode=R3": [*FULLY, R2],
}  # fmt: skip
# What verl's own guide for Ascend named; its engines read megatron.router_replay and veomni.router_replay.
TAKEN_OF_KEY = [[*MEGATRON, R2, f"{ACTOR}.router_replay.mode=R2"]]
REFUSED_OF_KEY = {
    "is read by no engine: set actor_rollout_ref.actor.megatron.router_replay.mode=R3": [
        *MEGATRON, f"{ACTOR}.router_replay.mode=R3", RECORDED,
    ],
    "strategy=fsdp replays no routes; use one of megatron, veomni": [*FSDP, f"{ACTOR}.router_replay.mode=R3"],
    "strategy=fsdp replays no routes; use one of megatron": ["one_step_off_policy", *FSDP, f"{ACTOR}.router_replay.mode=R3"],
}  # fmt: skip
END = "R3, an end that the model did not write"


@pytest.fixture(scope="module")
def made(upstream: Upstream) -> dict[str, Any]:
    """What the engine's probe found, by the name of its case."""
    cases = [END, "R3", "R3, recomputed", "R2", "R2, 257 experts", "R2, 384 experts", "masks", "masks without values"]
    return dict(zip(cases, upstream.run("probe_rollout_routing_replay.py", *cases, **ENGINE), strict=True))


def said(upstream: Upstream, settings: list[list[str]]) -> Any:
    """What verl says to each."""
    cases = map(json.dumps, settings)
    return upstream.run("probe_router_replay_refusals.py", *cases, need=["verl"], standins=["torchvision"], timeout=300)


@pytest.fixture(scope="module")
def answers(upstream: Upstream) -> Any:
    """What verl says to the settings of TAKEN, then to those of REFUSED."""
    return said(upstream, [*TAKEN, *REFUSED.values()])


def replayed(made: dict[str, Any]) -> bool:
    """Whether every token that the rollout had read goes to the experts that the rollout chose."""
    return bool([taken[:read] for taken, read in zip(made["taken"], made["read"], strict=True)] == made["wanted"])


@pytest.mark.on
def test_tokens_that_the_rollout_did_not_read_keep_the_routers_choice(made: dict[str, Any]) -> None:
    """A user's words behind the last answer have no routes: upstream gives all of them to expert 0, in every layer."""
    ends, whole = made[END], made["R3"]
    assert replayed(ends)
    behind = ends["taken"][0][ends["read"][0] :]
    assert len(behind) == 4
    assert all(len(layer) == 2 for token in behind for layer in token), behind
    # The token that the model wrote last is the first of them, and goes where it goes with nothing behind it.
    assert behind[0] == whole["taken"][0][-1]


@pytest.mark.on
@pytest.mark.stack("verl", "<=0.9")
def test_routes_are_stored_as_the_rollout_counts_them(made: dict[str, Any]) -> None:
    """Two layers of two experts in four bytes: upstream stores 32."""
    assert made["R3"]["bytes a token"] == 4
    assert replayed(made["R3"])


@pytest.mark.on
@pytest.mark.stack("verl", "<=0.9")
def test_r2_replays_more_experts_than_a_byte_counts(made: dict[str, Any]) -> None:
    many = made["R2, 384 experts"]
    assert max(expert for one in many["wanted"] for token in one for layer in token for expert in layer) > 255
    assert many["taken"] == many["wanted"]


@pytest.mark.on
@pytest.mark.stack("verl", "<=0.9")
def test_a_byte_counts_256_experts_and_no_more(made: dict[str, Any]) -> None:
    one_more = made["R2, 257 experts"]
    assert max(expert for one in one_more["wanted"] for token in one for layer in token for expert in layer) == 256
    assert one_more["taken"] == one_more["wanted"]


@pytest.mark.on
def test_the_mask_is_that_of_its_sequences_one_by_one(made: dict[str, Any]) -> None:
    """Random batches, with answers of which the model wrote nothing, and with prompts of no token."""
    assert made["masks"] == {"batches": 300, "equal": 300}


@pytest.mark.on
def test_the_mask_is_made_without_waiting_for_the_device(made: dict[str, Any]) -> None:
    """On a device that has no values: whatever asks for one, which is what waits, ends with an error."""
    assert made["masks without values"] is None


@pytest.mark.off
def test_what_upstream_replays_is_replayed(made: dict[str, Any]) -> None:
    """Answers that end with the model's token, in a pass, an update and its recomputation; and what R2 recorded."""
    again, second = made["R3, recomputed"], made["R2"]
    assert replayed(made["R3"])
    # The rollout did not read the token that it wrote last.
    assert [taken[:-1] for taken in again["forward"]] == again["wanted"]
    assert again["again"] == again["forward"]
    assert second["taken"] == second["wanted"]


@pytest.mark.off
def test_settings_that_replay_are_taken(answers: Any) -> None:
    assert answers[: len(TAKEN)] == [None] * len(TAKEN)


@pytest.mark.misuse
def test_settings_that_replay_nothing_are_refused_before_ray(answers: Any) -> None:
    for words, answer in zip(REFUSED, answers[len(TAKEN) :], strict=True):
        assert answer is not None and words in answer, (words, answer)


@pytest.mark.misuse
@pytest.mark.stack("verl", "<=0.9")
def test_a_key_that_no_engine_reads_is_refused_before_ray(upstream: Upstream) -> None:
    taken, *refused = said(upstream, [*TAKEN_OF_KEY, *REFUSED_OF_KEY.values()])
    assert taken is None
    for words, answer in zip(REFUSED_OF_KEY, refused, strict=True):
        assert answer is not None and words in answer, (words, answer)
