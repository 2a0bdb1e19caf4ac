"""Probe: greedy tokens of a tiny Qwen3 from vllm's LLM on vllm-ascend's worker, and from Hugging Face. Usage: probe_engine.py MODEL"""

import json
import os
import sys

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import vllm  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL, TOKENS = sys.argv[1], 12
PROMPTS = [[10, 11, 12, 13, 14], [20, 21, 22], [30 + at for at in range(40)]]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def main():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    llm = npu_engine.small_llm(MODEL)
    params = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = [
        hf.generate(torch.tensor([one]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None) for one in PROMPTS
    ]
    worker = llm.llm_engine.model_executor.driver_worker.worker
    result = {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "hf": [one[0, -TOKENS:].tolist() for one in ids],
        "worker": type(worker).__module__,
        "runner": type(worker.model_runner).__module__,
        "vllm": vllm.__version__,
    }
    torch.distributed.destroy_process_group()
    print(json.dumps(result))


main()
