"""verl v0.9.0's platform with stand-ins, as Ray's workers meet it in `make demo`; triton's names beside it."""

from __future__ import annotations

import pytest
from harness import Upstream

STANDINS = [
    "torch_npu",
    "megatron_cpu",
    "npu_attention",
    "npu_training",
    "npu_training_0_9",
    "patchctl_standins",
    "torchvision",
]
# transformers 5 asks whether it is on the meta device: off it, it takes rotary positions for set, which then are not.
ANYHOW = {"resource": "NPU", "engine": "FSDPEngineWithLMHead", "context": "meta"}


@pytest.mark.parametrize("on", [True, False])
def test_an_npu_whose_tensors_are_on_the_cpu(upstream: Upstream, on: bool) -> None:
    upstream.skip_unless("verl", ">=0.9")
    # With MindSpeed's adaptor, whose stand-ins wrap torch's own functions.
    need = ["verl", "megatron-lm", "mindspeed"] if on else ["verl"]
    env = {"PATCHCTL_STANDINS": str(int(on)), "PATCHCTL_NPUS": "1"}
    found = upstream.run("tests/behaviour/probe_platform_0_9.py", need=need, standins=STANDINS, env=env)
    device = {"device": "cpu", "backend": "gloo", "npu": True, "ipc": False}
    assert found == ANYHOW | (device if on else {"device": "npu", "backend": "hccl", "npu": False, "ipc": None})


def test_mindspeeds_triton_kernels_are_refused(upstream: Upstream) -> None:
    """They are declared where its adaptor is imported, and torch goes on without triton."""
    upstream.skip_unless("megatron-lm", ">=0.16")
    found = upstream.run(
        "probe_triton_names.py", need=["megatron-lm", "mindspeed"], standins=["torch_npu", "megatron_cpu"]
    )
    assert found == {
        "kernel": "the Triton kernel l2norm_fwd_kernel1 has no stand-in",
        "name": "triton.language.load has no stand-in",
        "torch has triton": False,
    }
