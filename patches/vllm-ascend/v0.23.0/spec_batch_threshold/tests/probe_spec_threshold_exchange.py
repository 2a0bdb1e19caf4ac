"""Probe: what two data-parallel ranks of a model with experts agree on, by NPUModelRunner's own exchange of a step.

Usage: probe_spec_threshold_exchange.py MODEL THRESHOLD, with two processes. No model is loaded, for experts do not run here: the runner
has what the exchange reads of it. Each rank plays steps of its own numbers of requests, drafters' exchanges among them.
"""

import json
import os
import sys
from types import SimpleNamespace

import npu_engine_0_23

npu_engine_0_23.prepare()

import torch.distributed as dist  # noqa: E402
from vllm.config import CUDAGraphMode, set_current_vllm_config  # noqa: E402
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # noqa: E402

MODEL, THRESHOLD = sys.argv[1], json.loads(sys.argv[2])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Requests of each rank by step; None is a step without requests, in which a rank runs a dummy.
RUNNING = [[1, 2, 6, 7, 3, 2, 1, None, None, 2, 5, 6], [2, 2, 2, 2, 2, 6, None, None, 2, 3, 5, 1]]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def runner_of(config):
    runner = object.__new__(NPUModelRunner)
    runner.vllm_config, runner.parallel_config = config, config.parallel_config
    runner.speculative_config, runner.compilation_config = config.speculative_config, config.compilation_config
    runner.dp_size, runner.dp_rank, runner.drafter = RANKS, RANK, None
    runner.ascend_config = SimpleNamespace(dp_allreduce_on_npu=False)
    runner.batch_threshold = None
    if THRESHOLD is not None:
        from vllm_ascend.spec_decode.batch_threshold import BatchThreshold

        runner.batch_threshold = BatchThreshold(runner)
    return runner


def exchanged(runner, tokens, **kind):
    tokens, across, mode = runner._sync_metadata_across_dp(tokens, **kind)
    return [tokens, across.tolist(), mode.name]


def main():
    config = EngineArgs(
        MODEL,
        dtype="float32",
        max_model_len=128,
        enforce_eager=True,
        async_scheduling=False,
        data_parallel_size=RANKS,
        enable_expert_parallel=True,
        distributed_executor_backend="external_launcher",
        speculative_config=NGRAM,
        additional_config={} if THRESHOLD is None else {"spec_batch_threshold": THRESHOLD},
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(RANKS, RANK, "env://", RANK, "gloo")
        ensure_model_parallel_initialized(1, 1)
        runner = runner_of(config)
        steps = []
        for step, running in enumerate(RUNNING[RANK]):
            if running is not None and runner.batch_threshold is not None:
                runner.batch_threshold.count(running)
            mode = CUDAGraphMode.FULL if (step + RANK) % 3 else CUDAGraphMode.NONE
            main_step = exchanged(runner, 4 * (running or 1) + RANK, cudagraph_mode=mode)
            drafter = exchanged(runner, running or 1, is_draft_model=True)
            drafting = runner.batch_threshold.drafting if runner.batch_threshold is not None else None
            steps.append({"running": running or 0, "main": main_step, "drafter": drafter, "drafting": drafting})
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(steps))


main()
