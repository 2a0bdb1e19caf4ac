"""Probe: what verl's vLLMRollout writes to stderr while it generates, by rank. Usage: probe_rollout_progress.py MODEL WORLDS

WORLDS is a JSON list of settings of the rollout, each for a world of two processes.
"""

import json
import os
import sys
import tempfile

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in the rank's process, which is prepared
npu_engine.prepare()

import torch.distributed as dist  # noqa: E402  (what imports vllm comes after the preparation)
from probe_rollout_dp_ranks import run_world  # noqa: E402
from rollout_config import hf_greedy, model_config, padded_prompts, rollout_config  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout  # noqa: E402

MODEL = sys.argv[1]


def generated(rollout):
    """Tokens of the prompts, and the stderr of generation alone."""
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile("w+") as written:
        os.dup2(written.fileno(), 2)
        try:
            output = rollout.generate_sequences(padded_prompts())
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
        written.seek(0)
        return output.batch["responses"].tolist(), written.read()


def rank_of_two(settings):
    dist.init_process_group("gloo")
    rollout = vLLMRollout(rollout_config(MODEL, **settings), model_config(MODEL), device_mesh=None)
    tokens, stderr = generated(rollout)
    dist.barrier()
    dist.destroy_process_group()
    return {"tokens": tokens, "stderr": stderr}


worlds = [run_world(2, lambda rank, settings=settings: rank_of_two(settings)) for settings in json.loads(sys.argv[2])]
print(json.dumps({"hf": hf_greedy(MODEL)["before"], "worlds": worlds}))
