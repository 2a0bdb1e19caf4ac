"""fsdp_torch_compile: what actor.use_torch_compile and ref.use_torch_compile say, verl's FSDP engines do."""

from __future__ import annotations

import json

import pytest
from harness import Upstream

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
# Whether the actor's entropy is to be compiled, and the reference's, which follows the actor.
HEEDED = {
    "neither": ([f"{ACTOR}.use_torch_compile=False", f"{REF}.use_torch_compile=False"], [False, False]),
    "not the actor's": ([f"{ACTOR}.use_torch_compile=False"], [False, False]),
    "not the reference's": ([f"{REF}.use_torch_compile=False"], [True, False]),
}
AS_BEFORE = {
    "nothing said": ([], [True, True]),
    "the engine's own": ([f"{ACTOR}.fsdp_config.use_torch_compile=False"], [False, True]),
    "the engine's own comes last": (
        [
            f"{ACTOR}.use_torch_compile=False",
            f"{ACTOR}.fsdp_config.use_torch_compile=True",
            f"{REF}.use_torch_compile=True",
        ],
        [True, True],
    ),
}


@pytest.fixture(scope="module")
def found(upstream: Upstream) -> dict[str, list[bool]]:
    cases = json.dumps({name: overrides for name, (overrides, _) in (HEEDED | AS_BEFORE).items()})
    standins = ["torchvision"]
    return dict(
        upstream.run("probe_fsdp_torch_compile.py", upstream.tree("verl"), cases, need=["verl"], standins=standins)
    )


@pytest.mark.on
@pytest.mark.parametrize("case", HEEDED)
def test_what_is_said_is_done(found: dict[str, list[bool]], case: str) -> None:
    assert found[case] == HEEDED[case][1]


@pytest.mark.off
@pytest.mark.parametrize("case", AS_BEFORE)
def test_the_rest_is_as_before(found: dict[str, list[bool]], case: str) -> None:
    assert found[case] == AS_BEFORE[case][1]
