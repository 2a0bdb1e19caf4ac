"""Probe: vLLMRollout on a tiny DeepSeek-V3 gets new weights, several times. Usage: probe_mla_update.py MODEL CASE...

A case is DTYPE,CACHE,MODE,UPDATE with CACHE free or keep (free_cache_engine), MODE eager or graph, and UPDATE whole or without
(the projections are not renewed). What an engine that sleeps has in its weights is lost here, as its memory is on an NPU.
With several processes the ranks are TENSOR_PARALLEL of the environment by data parallel ones, and share the experts.
"""

import asyncio
import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")
npu_engine.leave_compilation_out()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from rollout_config import PROMPTS, disturbed, greedy_tokens, model_config, padded_prompts, rollout_config  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.workers.rollout import mla_weights, moe_weights  # noqa: E402
from vllm_ascend.attention.mla_v1 import AscendMLAImpl  # noqa: E402

MODEL, *CASES = sys.argv[1:]
RANKS = int(os.environ.setdefault("WORLD_SIZE", "1"))
TENSOR = int(os.environ.get("TENSOR_PARALLEL", "1"))
SHARED = {
    "tensor_model_parallel_size": TENSOR,
    "data_parallel_size": RANKS // TENSOR,
    "expert_parallel_size": RANKS,
}
GRAPHS = {"enforce_eager": False, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4]}
LENGTH = 8
DERIVED = ("W_UV", "W_UK_T")


class Allocated(TorchDispatchMode):
    """Bytes of memory that operators make; a view of what is there makes none."""

    def __init__(self):
        super().__init__()
        self.bytes, self.known = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given | self.known:
            self.bytes += result.untyped_storage().nbytes()
            self.known.add(result.untyped_storage().data_ptr())
        return result


def built(dtype, cache, mode):
    from verl.workers.rollout.base import get_rollout_class

    settings = {"dtype": dtype, "free_cache_engine": cache == "free", "moe_update_weights": True}
    settings |= (GRAPHS if mode == "graph" else {}) | (SHARED if RANKS > 1 else {})
    return get_rollout_class("vllm", "sync")(rollout_config(MODEL, **settings), model_config(MODEL), device_mesh=None)


def model_of(rollout):
    return moe_weights.engine_model(rollout.inference_engine)


def implementations(rollout):
    return [layer.impl for layer in mla_weights.latent_layers(model_of(rollout))]


def derived(rollout):
    return [getattr(impl, name) for impl in implementations(rollout) for name in DERIVED]


def held(rollout):
    return [*derived(rollout), *model_of(rollout).parameters()]


def lost(rollout):
    """What sleep of level 2 does to weights: the memory that is mapped again has other contents."""
    for tensor in held(rollout):
        tensor.data.fill_(float("nan"))


def disturbed_too(hf):
    """With the bias by which experts are chosen, which is no parameter of Hugging Face's."""
    disturbed(hf)
    generator = torch.Generator().manual_seed(2)
    for name, bias in hf.named_buffers():
        if "e_score_correction_bias" in name:
            bias.add_(torch.rand(bias.shape, generator=generator))
    return hf


def weights(dtype, times):
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=getattr(torch, dtype))
    for _ in range(times):
        disturbed_too(hf)
    return hf


async def new_weights(rollout, free, hf):
    """As the workers do between training and generation."""
    if free:
        await rollout.release()
        lost(rollout)
        await rollout.resume(tags=["weights"])
    await rollout.update_weights(iter(hf.state_dict().items()))
    if free:
        await rollout.resume(tags=["kv_cache"])


def tokens(rollout):
    return rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()


def stale(rollout):
    """How far what is derived is from what upstream's own function makes of kv_b_proj now."""
    far = 0.0
    for impl in implementations(rollout):
        fresh = object.__new__(AscendMLAImpl)
        fresh.__dict__.update(impl.__dict__)
        fresh.process_weights_after_loading(torch.float32)
        far = max(far, *((getattr(impl, name) - getattr(fresh, name)).abs().max().item() for name in DERIVED))
    return far


def steps(text):
    dtype, cache, mode, update = text.split(",")
    if update == "without":
        moe_weights.renew_projections = lambda model: None
    rollout, free = built(dtype, cache, mode), cache == "free"
    before, order = [one.data_ptr() for one in held(rollout)], [tuple(one.stride()) for one in derived(rollout)]
    result = {"before": tokens(rollout), "hf": {"before": hf_tokens(weights(dtype, 0))}}
    for times, name in ((1, "first"), (2, "second")):
        hf = weights(dtype, times)
        asyncio.run(new_weights(rollout, free, hf))
        result[name] = tokens(rollout)
        result["hf"][name] = hf_tokens(hf)
    result["same memory"] = [one.data_ptr() for one in held(rollout)] == before
    result["same order"] = [tuple(one.stride()) for one in derived(rollout)] == order
    result["stale"] = stale(rollout)
    result["heads"] = [impl.num_heads for impl in implementations(rollout)]
    with Allocated() as allocated:
        mla_weights.renew_projections(model_of(rollout))
    result["bytes"] = {"renewed": allocated.bytes, "derived": sum(one.nbytes for one in derived(rollout))}
    return result


def hf_tokens(hf):
    return [greedy_tokens(hf.float(), prompt, LENGTH) for prompt in PROMPTS]


def main():
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **(alone if RANKS == 1 else {}))
    result = {text: steps(text) for text in CASES}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
