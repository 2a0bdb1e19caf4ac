"""Probe: what vLLMRollout asks of an engine from training to training. Usage: probe_eplb_off.py MODEL

The engine records its calls and answers nothing; `generate` ends the generation. For a vllm that the unpatched verl can
import: there no rollout of it runs on a newer one (vllm_import_compat).
"""

import asyncio
import json
import sys

import torch.distributed as dist
from omegaconf import open_dict
from transformers import AutoConfig

MODEL = sys.argv[1]
ADDITIONAL = {"enable_cpu_binding": False, "eplb_config": {"dynamic_eplb": True, "eplb_policy_type": 2}}

# vllm 0.9 and 0.10 register model types that transformers has had of its own since.
_register = AutoConfig.register
AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: _register(name, config, exist_ok=True))

from rollout_config import compose_config, model_config, padded_prompts  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.config import RolloutConfig  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd as spmd  # noqa: E402


class Called(Exception):
    """Ends the generation where a device would be needed."""


class RecordingLLM:
    def __init__(self, **kwargs):
        self.given = kwargs
        self.calls = []

    def __getattr__(self, name):
        def called(*args, **kwargs):
            self.calls.append(args[0] if name == "collective_rpc" else name)
            if name == "generate":
                raise Called

        return called


def make_rollout():
    config = compose_config(MODEL).actor_rollout_ref.rollout
    with open_dict(config):
        config.engine_kwargs.vllm = {"additional_config": ADDITIONAL}
    config = omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)
    return spmd.vLLMRollout(config, model_config(MODEL), device_mesh=None)


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    spmd.LLM = RecordingLLM
    rollout = make_rollout()
    asyncio.run(rollout.resume(tags=["kv_cache"]))
    try:
        rollout.generate_sequences(padded_prompts())
    except Called:
        pass
    asyncio.run(rollout.release())
    engine = rollout.inference_engine
    kept = engine.given["additional_config"] == ADDITIONAL
    imported = [name for name in sys.modules if name.endswith("eplb_lifecycle")]
    print(json.dumps({"calls": engine.calls, "additional_config_kept": kept, "imported": imported}))
    dist.destroy_process_group()


main()
