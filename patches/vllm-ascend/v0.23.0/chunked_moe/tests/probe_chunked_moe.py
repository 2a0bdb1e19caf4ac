"""Probe: a data-parallel engine of two ranks whose experts take their tokens in chunks, beside Hugging Face.

Usage: probe_chunked_moe.py MODEL ADDITIONAL_CONFIG, on two processes. Rank 0 has longer and more prompts than rank 1.
Tokens go to the experts by all-to-all (as on an A3 above MC2's capacity, here 0) and then by all-gather (as on an A2).
Then the layer alone: ranks with unequal numbers of tokens, and every argument of fused_experts (chunked_moe_cases).
Printed: greedy tokens, how many tokens each call of a dispatcher was given, and differences of chunked from whole.
"""

import json
import os
import sys

import npu_engine
import npu_experts_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_experts_0_23.prepare(device="A3")

import chunked_moe_cases as cases  # noqa: E402  (what imports vllm comes after the preparation)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm_ascend import ascend_forward_context  # noqa: E402

MODEL, ADDITIONAL = sys.argv[1], json.loads(sys.argv[2])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LENGTH = 6
PROMPTS = {0: [[10 + index, *range(20, 30)] for index in range(3)], 1: [[40, 41, 42]]}[RANK]
UNEVEN = [13, 2]


def generate(llm):
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in outputs]


def hf_tokens():
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    greedy = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    return [hf.generate(torch.tensor([one]), **greedy)[0, -LENGTH:].tolist() for one in PROMPTS]


def engine_runs(llm):
    """By kind of exchange: greedy tokens, and how many tokens the experts were given at a time, in order."""
    runs = {}
    for kind in cases.DEVICE:
        llm.reset_prefix_cache()
        with cases.exchanged_by(kind), cases.dispatched(cases.method(kind)) as calls:
            tokens = generate(llm)
        runs[kind] = {"tokens": tokens, "given": [call["hidden_states"] for call in calls]}
    return runs


def uneven_ranks(layer, config):
    """The layer of this rank with UNEVEN[rank] tokens, whole and in chunks of 4."""
    hidden = torch.randn(UNEVEN[RANK], config.model_config.get_hidden_size(), generator=cases.generator(RANK))
    logits = torch.randn(UNEVEN[RANK], 4, generator=cases.generator(RANK + 10))
    found = {}
    for kind in cases.DEVICE:
        run = cases.layer_run(layer, config, kind, hidden, logits, UNEVEN)
        whole, chunked = run(0), run(4)
        found[kind] = {"difference": cases.difference(chunked["out"], whole["out"]), "given": chunked["given"]}
    return found


def main():
    dist.init_process_group("gloo")
    ascend_forward_context._mc2_tokens_capacity = 0  # MC2's operators have no reference implementation
    llm = npu_engine.small_llm(
        MODEL, data_parallel_size=RANKS, enable_expert_parallel=True, additional_config=ADDITIONAL
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    result = {"hf": hf_tokens(), "engine": engine_runs(llm)}
    if ADDITIONAL:
        layer = runner.get_model().model.layers[0].mlp.experts
        result["uneven"] = uneven_ranks(layer, runner.vllm_config)
        result["cases"] = cases.all_cases(runner.vllm_config)
        result["shared"] = cases.shared_experts(runner.vllm_config)
        result["left alone"] = cases.left_alone(runner.vllm_config)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
