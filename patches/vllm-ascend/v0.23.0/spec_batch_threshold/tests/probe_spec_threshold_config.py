"""Probe: engine configurations with additional_config's spec_batch_threshold, one after another in this process.

Usage: probe_spec_threshold_config.py MODEL JSON... with each JSON {"threshold": ..., and options of vllm's EngineArgs}; `"role"` makes the
engine a side of a transfer of KV caches, `"recurrent": true` gives the model recurrent layers. Prints the error of each, or null.
"""

import json
import os
import sys

import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
npu_engine_0_23.prepare()

from vllm.config import KVTransferConfig, ModelConfig  # noqa: E402  (the platform must be prepared first)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

ENGINE = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True}
MODEL, *CASES = sys.argv[1:]


def error_of(threshold, recurrent=False, role=None, **options):
    if role:
        options["kv_transfer_config"] = KVTransferConfig(kv_connector="MooncakeConnector", kv_role=role)
    # vllm-ascend looks at a second engine's configuration only when told so.
    additional = {"spec_batch_threshold": threshold, "refresh": True}
    # A tiny checkpoint with recurrent layers would need their kernels' package; this is the property that is asked.
    before = ModelConfig.has_inner_state
    if recurrent:
        ModelConfig.has_inner_state = property(lambda self: True)
    try:
        EngineArgs(model=MODEL, additional_config=additional, **ENGINE, **options).create_engine_config()
    except ValueError as error:
        return str(error)
    finally:
        ModelConfig.has_inner_state = before
    return None


print(json.dumps([error_of(**json.loads(case)) for case in CASES]))
