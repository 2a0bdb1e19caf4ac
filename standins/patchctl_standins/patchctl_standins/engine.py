"""The stand-in for the engine's device, of the vllm that was imported."""

import os
from functools import partial


def prepare_on_import(vllm):
    """vllm was imported, and nothing of it is used yet. PATCHCTL_NPU names the device, as npu_engine has it."""
    if vllm.__version__.startswith("0.14."):
        from npu_engine import prepare_on_import as prepare
    else:
        prepare = _with_experts
    prepare(vllm)


def _with_experts(vllm):
    """npu_training_0_9's engine with the experts of npu_experts_0_23, which a dense model has none of."""
    import npu_engine
    import npu_engine_0_23
    import npu_experts_0_23
    import npu_training_0_9
    import torch_npu._C  # noqa: F401  (what is set on it is lost when vllm-ascend imports it first afterwards)

    npu_engine.prepare = partial(npu_engine.prepare, os.environ.get("PATCHCTL_NPU", "A3"))
    npu_engine_0_23._register_customop = npu_experts_0_23._register_customop
    npu_training_0_9.prepare_on_import(vllm)
