"""rollout_rebalance: settings that it cannot work with are refused on the driver."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

KEY = "actor_rollout_ref.rollout.rollout_rebalance"
ROLLOUT = "actor_rollout_ref.rollout"
TAKEN: list[list[str]] = [
    [],
    [f"{KEY}.enable=True"],
    [f"{KEY}.enable=True", f"{KEY}.token_seconds=[[1,0.02],[64,0.05]]", f"{KEY}.prompt_tokens_per_second=9000"],
    [f"{KEY}.enable=True", "trainer.n_gpus_per_node=1", f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=2"],
]
REFUSED = {
    "is neither True nor False": [f"{KEY}.enable=no"],
    "interval=0: set it to above 0": [f"{KEY}.enable=True", f"{KEY}.interval=0"],
    "horizon=0.5: set it to a whole number": [f"{KEY}.enable=True", f"{KEY}.horizon=0.5"],
    "min_gain=1.5: set it to from 0 to below 1": [f"{KEY}.enable=True", f"{KEY}.min_gain=1.5"],
    "max_moves=True: set it to a whole number": [f"{KEY}.enable=True", f"{KEY}.max_moves=True"],
    "token_seconds=[1, 0.02]: set it to pairs": [f"{KEY}.enable=True", f"{KEY}.token_seconds=[1,0.02]"],
    "prompt_tokens_per_second=-1: set it to above 0": [f"{KEY}.enable=True", f"{KEY}.prompt_tokens_per_second=-1"],
    "name=vllm, not sglang": [f"{KEY}.enable=True", f"{ROLLOUT}.name=sglang"],
    "set actor_rollout_ref.rollout.full_determinism=False": [f"{KEY}.enable=True", f"{ROLLOUT}.full_determinism=True"],
    "disaggregation.enabled=False": [f"{KEY}.enable=True", f"{ROLLOUT}.disaggregation.enabled=True"],
    "set actor_rollout_ref.model.lora.merge=True": [f"{KEY}.enable=True", "actor_rollout_ref.model.lora_rank=8"],
    "there is nowhere to move to": [f"{KEY}.enable=True", "trainer.n_gpus_per_node=1"],
    "is another one": [f"{KEY}.enable=True", "another balancer"],
}


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
