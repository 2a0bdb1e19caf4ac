"""Probe: a tiny model's greedy tokens with captured graphs, and how large a graph each step replayed.

Usage: probe_graphs_0_23.py MODEL SETTINGS ENGINE REQUESTS, SETTINGS (JSON) for vllm's LLM, ENGINE the stand-in that prepares it, up
to 8 requests, which are as many as the engine takes.
"""

import importlib
import json
import os
import sys

import npu_engine
import npu_graphs_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_graphs_0_23.prepare(importlib.import_module(sys.argv[3]))

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import vllm  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL, SETTINGS, TOKENS = sys.argv[1], json.loads(sys.argv[2]), 12
PROMPTS = [
    [10, 11, 12, 13, 14],
    [20, 21, 22],
    [7, 8] * 20,
    [9, 10] * 3,
    [3, 4, 5],
    [50, 51, 50, 51, 50],
    [60, 61],
    [70, 71] * 2,
]
PROMPTS = PROMPTS[: int(sys.argv[4])]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def main():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    llm = npu_engine.small_llm(MODEL, enforce_eager=False, **SETTINGS)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    replayed, steps = [], []
    npu_graphs_0_23.noted(replayed)
    execute = runner.execute_model

    def counted(scheduled, *args, **kwargs):
        if scheduled.total_num_scheduled_tokens:
            steps.append(sorted(scheduled.num_scheduled_tokens.values()))
        return execute(scheduled, *args, **kwargs)

    runner.execute_model = counted
    params = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = [
        hf.generate(torch.tensor([one]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None) for one in PROMPTS
    ]
    result = {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "hf": [one[0, -TOKENS:].tolist() for one in ids],
        "steps": steps,
        "replayed": replayed,
    }
    torch.distributed.destroy_process_group()
    print(json.dumps(result))


main()
