"""Probe: what is said of an engine whose latent attention is the context parallel one. Usage: probe_mla_context.py MODEL"""

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
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaCPImpl  # noqa: E402
from vllm_ascend.attention.mla_v1 import AscendMLAImpl  # noqa: E402


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    model = sys.argv[1]
    config = rollout_config(model, moe_update_weights=True)
    engine = get_rollout_class("vllm", "sync")(config, model_config(model), device_mesh=None).inference_engine
    # Not initialised: that needs its groups. It has all that the plain one has, whose class it comes from.
    impl = AscendMlaCPImpl.__new__(AscendMlaCPImpl)
    layer = latent_layers(engine_model(engine))[-1]
    impl.__dict__.update(layer.impl.__dict__)
    object.__setattr__(layer, "impl", impl)
    try:
        check_engine(engine)
        said = None
    except ValueError as error:
        said = str(error)
    dist.destroy_process_group()
    print(json.dumps({"said": said, "inherits": isinstance(impl, AscendMLAImpl)}))


main()
