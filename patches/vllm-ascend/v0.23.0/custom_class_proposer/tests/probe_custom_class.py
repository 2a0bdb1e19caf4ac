"""Probe: vllm engines on vllm-ascend's worker with proposers of a user's own (drafters.py), and without.

Usage: probe_custom_class.py MODEL CASE...: a class of drafters.py, or `plain`, `ngram`, `hf`. Each case is a process of its own, forked
after the imports. One that fails prints its error, and whether the model's weights had been loaded.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import drafters  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # noqa: E402

MODEL, CASES = sys.argv[1], sys.argv[2:]
PROMPTS = [[10, 11, 12, 13, 14, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31, 32] * 16]
LENGTHS = [40, 24, 32]  # the third is prefilled in two steps
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
SPECULATION = {"plain": None, "ngram": NGRAM}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
loaded = []


def of_class(name):
    return {"method": "custom_class", "model": f"drafters.{name}", "num_speculative_tokens": 3}


def hugging_face():
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    made = [
        hf.generate(torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=None)
        for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    ]
    return {"tokens": [one[0, len(prompt) :].tolist() for prompt, one in zip(PROMPTS, made, strict=True)]}


def engine(name):
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    load = NPUModelRunner.load_model
    NPUModelRunner.load_model = lambda self, *args, **kwargs: (loaded.append(name), load(self, *args, **kwargs))[1]
    speculation = SPECULATION[name] if name in SPECULATION else of_class(name)
    llm = npu_engine.small_llm(MODEL, max_model_len=128, max_num_batched_tokens=40, speculative_config=speculation)
    core = llm.llm_engine.engine_core.engine_core
    seen = {"drafted": 0, "accepted": 0}
    take = core.scheduler.update_from_output

    def observed(scheduled, output):
        for request, drafts in scheduled.scheduled_spec_decode_tokens.items():
            seen["drafted"] += len(drafts)
            seen["accepted"] += max(len(output.sampled_token_ids[output.req_id_to_index[request]]) - 1, 0)
        return take(scheduled, output)

    core.scheduler.update_from_output = observed
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in LENGTHS]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    runner = core.model_executor.driver_worker.worker.model_runner
    seen |= {"tokens": [list(one.outputs[0].token_ids) for one in outputs], "drafter": type(runner.drafter).__name__}
    proposer = getattr(runner.drafter, "proposer", None)
    if isinstance(proposer, drafters.Lookup):
        seen |= {"made": proposer.made, "mappings": [one for one in proposer.mappings if one is not None]}
    if isinstance(proposer, drafters.Knowing):
        seen |= {"compared": proposer.compared, "wrong": proposer.wrong}
        seen |= {"runner": proposer.runner is runner, "model": proposer.model is runner.model}
    return seen


def case(name):
    try:
        return hugging_face() if name == "hf" else engine(name)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "loaded": loaded}


def in_own_process(name):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(case, name).result()


if __name__ == "__main__":
    print(json.dumps({name: in_own_process(name) for name in CASES}))
