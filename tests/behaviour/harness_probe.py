"""Probe for test_harness.py: does one small thing, named by the first argument."""

import json
import os
import subprocess
import sys
import time


def sum_of_ranks():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    # Without this one process in twenty aborts at exit ("terminate called without an active exception").
    dist.destroy_process_group()
    return total.item()


def one_rank_fails():
    if os.environ["RANK"] == "1":
        raise ValueError("rank one gives up")
    time.sleep(600)


def hang_with_grandchild():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("grandchild", child.pid)
    time.sleep(600)


def vllm_platform():
    from vllm.platforms import current_platform

    return type(current_platform).__name__


def load_models():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shapes = []
    for folder in sys.argv[2:]:
        tokens = AutoTokenizer.from_pretrained(folder)("1+1", return_tensors="pt").input_ids
        model = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            shapes.append([type(model).__name__, list(model(tokens).logits.shape)])
    return shapes


ACTIONS = {
    "environment": lambda: dict(os.environ),
    "sum-of-ranks": sum_of_ranks,
    "one-rank-fails": one_rank_fails,
    "hang-with-grandchild": hang_with_grandchild,
    "no-json": lambda: sys.exit(0),
    "vllm-platform": vllm_platform,
    "load-models": load_models,
}
print(json.dumps(ACTIONS[sys.argv[1]]()))
