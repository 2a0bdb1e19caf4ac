"""Probe: SamProposer on requests that are played at random (sam_histories.py), without a model."""

import json

import npu_engine_0_23

npu_engine_0_23.prepare()

import sam_histories  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment  # noqa: E402

with set_current_vllm_config(VllmConfig()):  # a batch's block table asks for the groups of context parallelism
    init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
    ensure_model_parallel_initialized(1, 1)
print(json.dumps(sam_histories.history()))
