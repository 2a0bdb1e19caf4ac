"""Probe: how vLLMRollout asks `LLM` for a bar, on any vllm. Usage: probe_rollout_progress_calls.py MODEL [SETTING=VALUE...]

No model runs: the call of `generate` is recorded, and ends it. Also which rollouts refuse the settings.
"""

import json
import os
import sys

import torch.distributed as dist
from transformers import AutoConfig

MODEL = sys.argv[1]
SETTINGS = dict(setting.split("=") for setting in sys.argv[2:])

# vllm 0.9 and 0.10 register model types that transformers has had of its own since.
_register = AutoConfig.register
AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: _register(name, config, exist_ok=True))

from rollout_config import model_config, padded_prompts, rollout_config  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd as spmd  # noqa: E402


class Called(Exception):
    """Ends the generation where a device would be needed."""


class RecordedLLM:
    def __init__(self, **kwargs):
        pass

    def generate(self, **kwargs):
        raise Called(kwargs["use_tqdm"])


def bar():
    """What `use_tqdm` is."""
    spmd.LLM = RecordedLLM
    rollout = spmd.vLLMRollout(rollout_config(MODEL, **SETTINGS), model_config(MODEL), device_mesh=None)
    try:
        rollout.generate_sequences(padded_prompts())
    except Called as called:
        return called.args[0]


def asynchronous():
    """What the asynchronous rollout says to the settings; None when it takes them."""
    os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
    try:
        rollout = object.__new__(spmd.vLLMAsyncRollout)
        rollout._init_zeromq = lambda: None  # its sockets are made after the settings have been looked at
        spmd.vLLMAsyncRollout.__init__(
            rollout, rollout_config(MODEL, mode="async", **SETTINGS), model_config(MODEL), None
        )
    except ValueError as error:
        return str(error)


dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
print(json.dumps({"bar": bar(), "asynchronous": asynchronous()}))
