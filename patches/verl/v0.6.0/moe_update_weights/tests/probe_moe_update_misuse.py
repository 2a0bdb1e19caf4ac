"""Probe: what moe_update_weights=True refuses, and what it accepts. Usage: probe_moe_update_misuse.py [DENSE MOE]

Without models, and without vllm-ascend on the path, only that its absence is refused.
"""

import json
import os
import sys
from types import SimpleNamespace


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def without_vllm_ascend():
    from verl.workers.rollout.moe_weights import check_settings

    return {"no vllm-ascend": refused(lambda: check_settings(SimpleNamespace(name="vllm", mode="sync")))}


def rollout(model, mode="sync", **settings):
    from rollout_config import model_config, rollout_config
    from verl.workers.rollout.base import get_rollout_class

    config = rollout_config(model, mode=mode, moe_update_weights=True, **settings)
    return get_rollout_class("vllm", mode)(config, model_config(model), device_mesh=None)


def settings_refused(model, nz="0", **settings):
    """What is said before an engine is built; `nz` is VLLM_ASCEND_ENABLE_NZ."""
    from rollout_config import rollout_config
    from verl.workers.rollout.moe_weights import check_settings

    os.environ["VLLM_ASCEND_ENABLE_NZ"] = nz
    return refused(lambda: check_settings(rollout_config(model, moe_update_weights=True, **settings)))


def settings_cases(model):
    return {
        "asynchronous": refused(lambda: rollout(model, mode="async")),
        "sglang": settings_refused(model, name="sglang"),
        "NZ and free_cache_engine": settings_refused(model, nz="1"),
        "NZ for all weights": settings_refused(model, nz="2", free_cache_engine=False, dtype="bfloat16"),
        "NZ for quantised weights only": settings_refused(model, nz="1", free_cache_engine=False, dtype="bfloat16"),
        "NZ for all weights, in float32": settings_refused(model, nz="2", free_cache_engine=False),
        "no NZ": settings_refused(model),
    }


def quantised(model):
    """A real engine whose last expert layer says that vllm-ascend quantises it."""
    from verl.workers.rollout.moe_weights import check_engine, engine_model, expert_layers
    from vllm_ascend.quantization.method_adapters import AscendFusedMoEMethod
    from vllm_ascend.quantization.methods.w8a8_dynamic import AscendW8A8DynamicFusedMoEMethod

    engine = rollout(model).inference_engine
    # Not initialised: that needs a quantised checkpoint. Its class is what decides.
    method = AscendFusedMoEMethod.__new__(AscendFusedMoEMethod)
    object.__setattr__(method, "quant_method", AscendW8A8DynamicFusedMoEMethod.__new__(AscendW8A8DynamicFusedMoEMethod))
    object.__setattr__(expert_layers(engine_model(engine))[-1], "quant_method", method)
    return refused(lambda: check_engine(engine))


def latent_attention(model):
    """A real engine whose last attention layer says that it is latent, in a way that mla_update_weights does not know either."""
    import torch
    from verl.workers.rollout.moe_weights import check_engine, engine_model
    from vllm.attention.layer import MLAAttention

    engine = rollout(model).inference_engine
    # Not initialised: that needs vllm-ascend's MLA kernels. Its class is what decides.
    attention = MLAAttention.__new__(MLAAttention)
    torch.nn.Module.__init__(attention)
    attention.layer_name, attention.impl = "model.layers.1.self_attn.attn", object()
    engine_model(engine).model.layers[-1].self_attn.attn = attention
    return refused(lambda: check_engine(engine))


def another_layout():
    import torch
    from verl.workers.rollout.moe_weights import kernel_view

    try:
        kernel_view(torch.zeros(4, 6, 8)[:, :, ::2], "w13_weight")
    except RuntimeError as error:
        return str(error)
    return None


def main():
    dense, moe = sys.argv[1:]
    import npu_engine

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    npu_engine.prepare()
    import torch.distributed as dist

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    result = settings_cases(moe)
    os.environ["VLLM_ASCEND_ENABLE_NZ"] = "0"
    result["quantised"] = quantised(moe)
    result["latent attention"] = latent_attention(moe)
    result["dense"] = refused(lambda: rollout(dense))
    result["another layout"] = another_layout()
    return result


print(json.dumps(main() if len(sys.argv) > 1 else without_vllm_ascend()))
