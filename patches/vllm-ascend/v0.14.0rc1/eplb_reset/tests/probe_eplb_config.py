"""Probe: what vllm-ascend's EplbConfig makes of each argument. Usage: probe_eplb_config.py EPLB_CONFIG_JSON..."""

import json
import sys

from vllm_ascend.ascend_config import EplbConfig


def answer(user_config):
    try:
        return EplbConfig(user_config).config
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


print(json.dumps([answer(json.loads(one)) for one in sys.argv[1:]]))
