"""Probe: vLLMRollout on tiny MoE models gets new weights, several times. Usage: probe_moe_update.py CASE...

A case is SHAPE,DTYPE,CACHE,SWITCH with SHAPE square or oblong (of w13), CACHE free or keep (free_cache_engine) and
SWITCH on or off (moe_update_weights). MODEL_square and MODEL_oblong in the environment name the folders. With several
processes they are data parallel and share the experts.
"""

import asyncio
import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from rollout_config import PROMPTS, disturbed, greedy_tokens, model_config, padded_prompts, rollout_config  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

RANKS = int(os.environ.setdefault("WORLD_SIZE", "1"))
SHARED = {"data_parallel_size": RANKS, "expert_parallel_size": RANKS} if RANKS > 1 else {}
HF_LENGTH = 8


class Case:
    def __init__(self, text):
        shape, dtype, cache, switch = text.split(",")
        self.model, self.dtype, self.free = os.environ[f"MODEL_{shape}"], dtype, cache == "free"
        self.settings = {"dtype": dtype, "free_cache_engine": self.free, **SHARED}
        if switch == "on":  # without the patch the setting is not known
            self.settings["moe_update_weights"] = True

    def rollout(self, folder=None):
        """A new engine, with the weights in `folder` or its own."""
        from verl.workers.rollout.base import get_rollout_class

        folder = folder or self.model
        config = rollout_config(folder, **self.settings)
        return get_rollout_class("vllm", "sync")(config, model_config(folder), device_mesh=None)

    def weights(self, times):
        """Hugging Face's model, disturbed so many times."""
        hf = AutoModelForCausalLM.from_pretrained(self.model, dtype=getattr(torch, self.dtype))
        for _ in range(times):
            disturbed(hf)
        return hf


async def new_weights(rollout, free, hf=None):
    """As the workers do between training and generation; without `hf` the engine only sleeps and wakes up."""
    if free:
        await rollout.release()
        await rollout.resume(tags=["weights"])
    if hf is not None:
        await rollout.update_weights(iter(hf.state_dict().items()))
    if free:
        await rollout.resume(tags=["kv_cache"])


def tokens(rollout):
    prompts = padded_prompts()
    return rollout.generate_sequences(prompts).batch["responses"].tolist()


def expert_weights(rollout):
    model = rollout.inference_engine.llm_engine.model_executor.driver_worker.worker.model_runner.model
    return [getattr(layer.mlp.experts, name) for layer in model.model.layers for name in ("w13_weight", "w2_weight")]


def addresses(rollout):
    return [weight.data_ptr() for weight in expert_weights(rollout)]


def groups():
    from vllm.distributed.parallel_state import get_dp_group, get_ep_group
    from vllm_ascend.distributed.parallel_state import get_mc2_group

    return [get_dp_group(), get_ep_group(), get_mc2_group()]


def steps(case):
    """Tokens after each step, and those of Hugging Face and of a fresh engine with the same weights."""
    rollout = case.rollout()
    before, made = addresses(rollout), groups()
    first, second = case.weights(1), case.weights(2)
    result = {"before": tokens(rollout)}
    for name, hf in {"first": first, "second": second, "second again": second, "slept": None}.items():
        asyncio.run(new_weights(rollout, case.free, hf))
        result[name] = tokens(rollout)
    result["hf"] = {name: hf_tokens(hf) for name, hf in {"first": first, "second": second}.items()}
    result["same memory"] = addresses(rollout) == before
    result["same groups"] = all(one is other for one, other in zip(made, groups(), strict=True))
    result["experts"] = [len(weight) for weight in expert_weights(rollout)]
    result["fresh"] = fresh_tokens(case, second)
    return result


def hf_tokens(hf):
    return [greedy_tokens(hf.float(), prompt, HF_LENGTH) for prompt in PROMPTS]


def fresh_tokens(case, hf):
    """Of an engine that has loaded the weights as its checkpoint."""
    folder = os.path.abspath(f"fresh_{os.environ.get('RANK', '0')}_{len(os.listdir('.'))}")
    hf.to(getattr(torch, case.dtype)).save_pretrained(folder)
    model_config(case.model).tokenizer.save_pretrained(folder)
    return tokens(case.rollout(folder))


def outcome(text):
    try:
        return steps(Case(text))
    except (RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    if RANKS > 1:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    result = {text: outcome(text) for text in sys.argv[1:]}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
