"""Probe: greedy tokens of a tiny Qwen3-MoE from vllm's LLM with vllm-ascend's own expert layer, and from Hugging Face.

Usage: probe_moe_engine.py MODEL. With several processes the engines are data parallel and experts are spread over them;
each rank has prompts of its own, and rank 0 more of them.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402

MODEL = sys.argv[1]
RANKS = int(os.environ.setdefault("WORLD_SIZE", "1"))
RANK = int(os.environ.setdefault("RANK", "0"))
TOKENS = {0: 12, 1: 5}  # ranks stop at different times


def prompts():
    return [[10 + index, 11, 12, 13, 14 + RANK] for index in range(3 if RANK == 0 else 1)]


def hf_tokens():
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    length = TOKENS[RANK]
    out = [
        hf.generate(torch.tensor([one]), max_new_tokens=length, do_sample=False, eos_token_id=None) for one in prompts()
    ]
    return [ids[0, -length:].tolist() for ids in out]


def main():
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group(
        "gloo", **({} if RANKS > 1 else {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1})
    )
    llm = npu_engine.small_llm(MODEL, data_parallel_size=RANKS, enable_expert_parallel=RANKS > 1)
    layer = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model.model.layers[0].mlp.experts
    params = SamplingParams(temperature=0, max_tokens=TOKENS[RANK], ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": one} for one in prompts()], params, use_tqdm=False)
    result = {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "hf": hf_tokens(),
        "layer": type(layer).__name__,
        "w13": list(layer.w13_weight.shape),
    }
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
