"""Probe: what is said of a dtype with VLLM_ASCEND_ENABLE_NZ of the environment. Usage: probe_moe_update_half.py MODEL DTYPE..."""

import json
import sys

import npu_engine

npu_engine.prepare()

from rollout_config import rollout_config  # noqa: E402  (what imports vllm comes after the preparation)
from verl.workers.rollout.moe_weights import check_settings  # noqa: E402


def said(dtype):
    try:
        check_settings(rollout_config(sys.argv[1], moe_update_weights=True, free_cache_engine=False, dtype=dtype))
    except ValueError as error:
        return str(error)
    return None


print(json.dumps({dtype: said(dtype) for dtype in sys.argv[2:]}))
