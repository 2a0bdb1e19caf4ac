"""Probe: what an engine's configuration makes of speculation with settings of a suffix automaton.

Usage: probe_sam_config.py MODEL CASES. CASES is a JSON object of names and arguments of the engine; `"on the command line": true` has
the two configurations parsed from there. Prints for each name the settings, or the error.
"""

import json
import os
import sys
from dataclasses import asdict

import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
npu_engine_0_23.prepare()

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402
from vllm_ascend import ascend_config, utils  # noqa: E402

MODEL, CASES = sys.argv[1], json.loads(sys.argv[2])


def arguments(case):
    if not case.pop("on the command line", False):
        return EngineArgs(model=MODEL, **case)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = [f"--{name.replace('_', '-')}={json.dumps(value)}" for name, value in case.items()]
    return EngineArgs.from_cli_args(parser.parse_args(["--model", MODEL, *given]))


def outcome(case):
    try:
        config = arguments(case).create_engine_config()
    except Exception as error:
        return {"error": str(error), "value_error": isinstance(error, ValueError)}
    seen = {"method": getattr(config.speculative_config, "method", None)}
    seen["async"] = config.scheduler_config.async_scheduling
    seen["fused dispatch"] = utils.speculative_enable_dispatch_gmm_combine_decode(config)
    if hasattr(ascend_config, "get_sam_config"):
        made = ascend_config.get_sam_config(config)
        seen["sam"] = asdict(made) if made else None
    return seen


print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
