"""Probe: what vllm and vllm-ascend make of the switches of patches when an engine is configured.

Usage: probe_engine_switches.py MODEL CASES. CASES is a JSON list; each is {"env": {...}} or arguments of vllm's EngineArgs.
Prints, for each, the error or the values that the switches came to. No model is loaded.
"""

import json
import os
import sys

import npu_engine

npu_engine.prepare()

from vllm import envs  # noqa: E402  (the platform must be prepared first)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.gc_utils import StepGC  # noqa: E402
from vllm_ascend.ascend_config import clear_ascend_config  # noqa: E402

ENGINE = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True}


def came_to(model, env=None, **arguments):
    if env:
        os.environ.update(env)
        # What an engine core makes before the model (vllm/v1/engine/core.py).
        return {"interval": StepGC().interval}
    clear_ascend_config()  # vllm-ascend keeps what the first engine of a process was given
    config = EngineArgs(model=model, **ENGINE, **arguments).create_engine_config()
    return {"additional_config": config.additional_config, "speculates": config.speculative_config is not None}


def answer(model, case):
    try:
        return came_to(model, **case)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


assert not hasattr(envs.__getattr__, "cache_info"), "variables are cached, so that only the first value would be read"
print(json.dumps([answer(sys.argv[1], case) for case in json.loads(sys.argv[2])]))
