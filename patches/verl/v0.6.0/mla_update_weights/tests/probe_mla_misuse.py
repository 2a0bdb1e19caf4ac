"""Probe: latent attention that moe_update_weights=True refuses, and what it accepts. Usage: probe_mla_misuse.py MODEL"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
npu_engine.prepare()

import torch.distributed as dist  # noqa: E402
from rollout_config import model_config, rollout_config  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402
from verl.workers.rollout.mla_weights import latent_layers  # noqa: E402
from verl.workers.rollout.moe_weights import check_engine, engine_model  # noqa: E402
from vllm_ascend.attention.sfa_v1 import AscendSFAImpl  # noqa: E402
from vllm_ascend.ops import rotary_embedding  # noqa: E402
from vllm_ascend.quantization.method_adapters import AscendLinearMethod  # noqa: E402

MODEL = sys.argv[1]


class Changed:
    """Attributes of an object, for a while."""

    def __init__(self, owner, **attributes):
        self.owner, self.attributes = owner, attributes

    def __enter__(self):
        self.before = {name: getattr(self.owner, name) for name in self.attributes}
        for name, value in self.attributes.items():
            object.__setattr__(self.owner, name, value)

    def __exit__(self, *exc):
        for name, value in self.before.items():
            object.__setattr__(self.owner, name, value)


def said(engine, owner=sys, **attributes):
    with Changed(owner, **attributes):
        try:
            check_engine(engine)
        except ValueError as error:
            return str(error)
    return None


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    config = rollout_config(MODEL, moe_update_weights=True)
    engine = get_rollout_class("vllm", "sync")(config, model_config(MODEL), device_mesh=None).inference_engine
    layer = latent_layers(engine_model(engine))[0]
    impl, settings = layer.impl, layer.impl.vllm_config.model_config
    # Not initialised: that needs its kernels and a quantised checkpoint. Their classes are what decides.
    sparse, quantised = AscendSFAImpl.__new__(AscendSFAImpl), AscendLinearMethod.__new__(AscendLinearMethod)
    angles = rotary_embedding._cos_cache.clone()
    result = {
        "plain": said(engine),
        "sparse": said(engine, layer, impl=sparse),
        "quantised": said(engine, impl.fused_qkv_a_proj, quant_method=quantised),
        "layer_sharding": said(engine, impl, layer_sharding_kwargs=[impl.o_proj]),
        "no scaling": said(engine, rotary_embedding, _cos_cache=angles),
    }
    with Changed(settings, enable_sleep_mode=False):
        result["no scaling, no sleep"] = said(engine, rotary_embedding, _cos_cache=angles)
    dist.destroy_process_group()
    print(json.dumps(result))


main()
