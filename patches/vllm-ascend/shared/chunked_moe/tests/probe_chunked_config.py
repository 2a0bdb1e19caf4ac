"""Probe: what vllm-ascend says to settings of moe_chunk_tokens when an engine is configured.

Usage: probe_chunked_config.py MODEL CASE... with CASE as JSON: `additional` configuration, `fused` for
VLLM_ASCEND_ENABLE_FUSED_MC2, `engine` for further arguments of the engine. Prints the error of each, or None.
"""

import json
import os
import sys

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

ENGINE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True}


def answer(model, additional, fused=0, role=None, **engine):
    os.environ["VLLM_ASCEND_ENABLE_FUSED_MC2"] = str(fused)
    if role:
        engine["kv_transfer_config"] = KVTransferConfig(kv_connector="MooncakeConnector", kv_role=role)
    # vllm-ascend looks at a second engine's configuration only when told so.
    args = EngineArgs(
        model=model, tokenizer=model, additional_config=additional | {"refresh": True}, **ENGINE, **engine
    )
    try:
        args.create_engine_config()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return None


print(json.dumps([answer(sys.argv[1], **json.loads(case)) for case in sys.argv[2:]]))
