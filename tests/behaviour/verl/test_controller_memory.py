"""What preflight says comes to verl's controller, against the bytes that do: over a real Ray, with FSDP's and Megatron's workers.

Four devices, two of which share a part of the batch: sequence parallel under FSDP, pipeline stages under Megatron; engines of two.
An object of Ray's is larger than its tensors by what torch.save and pickle write around them: a few KB a reply.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

from patchctl.training.preflight.checks.ray import FLOAT32, Lengths, Sharing, Switches, controller

pytestmark = pytest.mark.stack("verl", "<0.9")

PROBE = "tests/behaviour/verl/probe_controller_memory.py"
SKIP = "actor_rollout_ref.actor.skip_old_log_prob"
AROUND_A_REPLY = 8192
ENV = {"RAY_max_direct_call_object_size": "64", "RAY_AUTH_MODE": "disabled"}
# Megatron's actor makes its fields fp32, which preflight counts; FSDP's leaves them as autocast has them, bf16 on a CPU.
FIELD_BYTES = {"fsdp": 2, "megatron": 4}
LAST_STAGE = {"fsdp": 2, "megatron": 1}  # of the devices that share a part, those that have entropies after an update


# Each is a training run over four workers: one of them every time, the others among the slow tests.
RUNS = [
    ("megatron", True),
    *(pytest.param(one, marks=pytest.mark.slow) for one in (("megatron", False), ("fsdp", False), ("fsdp", True))),
]


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest, upstream: Upstream, tiny_models: TinyModels) -> tuple[Any, str, bool]:
    kind, skip = request.param
    if reason := upstream.lacks("verl", "skip_old_log_prob"):
        pytest.skip(reason)
    need = ["verl", "megatron-lm"]
    found = upstream.run(
        PROBE, tiny_models.qwen3, kind, f"{SKIP}={skip}", need=need, standins=["megatron_cpu"], env=ENV, timeout=300
    )
    return found, kind, skip


def test_the_controller_gets_what_preflight_says(run: tuple[Any, str, bool]) -> None:
    found, kind, skip = run
    lengths = Lengths(found["rows"], found["rows"], found["prompt"], found["response"])
    sharing = Sharing(found["inner"], LAST_STAGE[kind], found["inner"])
    said = {r.call: r.bytes for r in controller(lengths, sharing, Switches(skips=skip, reference=True)).replies}
    calls = found["calls"]
    assert set(said) == {name for name, call in calls.items() if call["tensors"]}
    for name, counted in said.items():
        expected = counted if name == "generate_sequences" else counted * FIELD_BYTES[kind] // FLOAT32
        assert calls[name]["replies"] == found["devices"]  # all of them answer, whoever is listened to
        assert calls[name]["tensors"] == expected, name
        assert expected <= calls[name]["bytes"] <= expected + found["devices"] * AROUND_A_REPLY, name
