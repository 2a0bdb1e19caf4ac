"""Probe: an engine that was not told to balance on demand. Usage: probe_eplb_off.py MODEL EPLB_CONFIG_JSON

Prints the processes that the engine has started, and what comes of the balancing that upstream starts with the engine;
without any, greedy tokens and those of Hugging Face.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from probe_eplb_common import Engine, HuggingFace, children, gather_as_hccl, make_llm, refusal  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL, EPLB_CONFIG = sys.argv[1], json.loads(sys.argv[2])


def main():
    dist.init_process_group("gloo")
    gather_as_hccl()
    before = children()
    engine = Engine(make_llm(MODEL, EPLB_CONFIG))
    result = {"processes": children() - before, "balancing": engine.runner.dynamic_eplb}
    result["maps"] = [experts.log2phy is not None for experts in engine.experts()]
    if engine.runner.dynamic_eplb:
        # Where NPUWorker.determine_available_memory comes to, which the stand-in does not run.
        result["warmup"] = refusal(engine.runner.eplb_warmup)
        engine.runner.eplb_updator.shutdown()
        engine.runner.manager.shutdown()
    else:
        hf = HuggingFace(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32))
        result |= {"tokens": engine.generate(), "hf": hf.tokens()}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
