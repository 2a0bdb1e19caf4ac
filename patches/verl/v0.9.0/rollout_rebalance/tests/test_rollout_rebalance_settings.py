"""rollout_rebalance: settings that it cannot work with are refused on the driver."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

KEY = "actor_rollout_ref.rollout.rollout_rebalance"
ROLLOUT = "actor_rollout_ref.rollout"
FITS = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True",
    f"{ROLLOUT}.name=vllm",
]
FITS += ["algorithm.adv_estimator=grpo"]
ON = [*FITS, f"{KEY}.enable=True"]
ONE_STEP, FULLY = ["one_step_off_policy", *ON], ["fully_async_policy", *ON]
OWN = [f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=2"]
SEPARATE = [*ON, *OWN, "trainer.v1.trainer_mode=separate_async"]
TAKEN: list[list[str]] = [
    FITS,
    ON,
    [*ON, f"{KEY}.token_seconds=[[1,0.02],[64,0.05]]", f"{KEY}.prompt_tokens_per_second=9000"],
    # Servers of two devices: one of its own and four on the trainer's, two of its own, and devices that sync does not use.
    SEPARATE,
    [*SEPARATE, f"{ROLLOUT}.nnodes=2", "actor_rollout_ref.hybrid_engine=False"],
    [*ON, *OWN],
    ONE_STEP,
    FULLY,
]
REFUSED = {
    "is neither True nor False": [*FITS, f"{KEY}.enable=no"],
    "interval=0: set it to above 0": [*ON, f"{KEY}.interval=0"],
    "horizon=0.5: set it to a whole number": [*ON, f"{KEY}.horizon=0.5"],
    "min_gain=1.5: set it to from 0 to below 1": [*ON, f"{KEY}.min_gain=1.5"],
    "max_moves=True: set it to a whole number": [*ON, f"{KEY}.max_moves=True"],
    "token_seconds=[1, 0.02]: set it to pairs": [*ON, f"{KEY}.token_seconds=[1,0.02]"],
    "prompt_tokens_per_second=-1: set it to above 0": [*ON, f"{KEY}.prompt_tokens_per_second=-1"],
    "name=vllm, not sglang": [*ON, f"{ROLLOUT}.name=sglang"],
    "set actor_rollout_ref.rollout.full_determinism=False": [*ON, f"{ROLLOUT}.full_determinism=True"],
    "disaggregation.enabled=False": [*ON, f"{ROLLOUT}.disaggregation.enabled=True"],
    # main_ppo asks vllm about adapters before, which is not here.
    "set actor_rollout_ref.model.lora.merge=True": [*ONE_STEP, "actor_rollout_ref.model.lora_rank=8"],
    "with 0 of the servers that it balances": [*ON, "trainer.n_gpus_per_node=1"],
    "with 1 of the servers that it balances there is nowhere to move to": [
        *ON,
        *OWN,
        "trainer.n_gpus_per_node=2",
        f"{ROLLOUT}.nnodes=2",
    ],
    "with 1 of the servers": [*SEPARATE, "actor_rollout_ref.hybrid_engine=False"],
    "with 1 of the servers that it": ["one_step_off_policy", *ON, "rollout.nnodes=1", "rollout.n_gpus_per_node=2"],
    # Entry points that call verl's validate_config when Ray runs, or not at all.
    "interval=-1: set it to above 0": [*ONE_STEP, f"{KEY}.interval=-1"],
    "interval=-2: set it to above 0": [*FULLY, f"{KEY}.interval=-2"],
    "is another one": [*ON, "another balancer"],
}


ROUTER = [*ON, f"{ROLLOUT}.router_config_path=router.yaml"]


@pytest.fixture(scope="module")
def said(upstream: Upstream) -> Any:
    """What verl says to the settings of TAKEN, then to those of REFUSED."""
    cases = map(json.dumps, [*TAKEN, *REFUSED.values()])
    return upstream.run("probe_rebalance_refusals.py", *cases, need=["verl"], standins=["torchvision"], timeout=300)


@pytest.mark.misuse
def test_settings_that_do_not_go_together_are_refused_before_ray_starts(said: Any) -> None:
    assert said[: len(TAKEN)] == [None] * len(TAKEN)
    for wanted, message in zip(REFUSED, said[len(TAKEN) :], strict=True):
        assert message and wanted in message, (wanted, message)
        assert "rollout_rebalance" in message


@pytest.mark.misuse
@pytest.mark.stack("verl", ">0.9")
def test_a_router_of_ones_own_is_refused(upstream: Upstream) -> None:
    (message,) = upstream.run(
        "probe_rebalance_refusals.py", json.dumps(ROUTER), need=["verl"], standins=["torchvision"], timeout=300
    )
    assert "rollout_rebalance" in message
    assert "set actor_rollout_ref.rollout.router_config_path=null" in message
