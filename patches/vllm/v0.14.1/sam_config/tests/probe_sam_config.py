"""Probe: what vllm makes of a speculative configuration, on the platform that a plugin in FOLDER names.

Usage: probe_sam_config.py FOLDER MODEL CASES ALONE RUNNER. FOLDER goes first on sys.path; CASES is a JSON object of names and
{"speculative": {...}, further arguments of the engine}, ALONE one of names and speculative configurations that are made
without an engine, RUNNER one with which a model runner is made, or null. Prints for each name what came, or the error.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

import torch
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

MODEL = sys.argv[2]
CASES, ALONE, RUNNER = map(json.loads, sys.argv[3:])
ENGINE = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 128}
FIELDS = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
OURS = ("sam_min_match_length", "sam_max_drafts_per_match", "sam_share_in_group", "sam_max_memory_mb")


def arguments(speculative, from_command_line=False, **engine):
    if not from_command_line:
        return EngineArgs(model=MODEL, speculative_config=speculative, **ENGINE, **engine)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(["--model", MODEL, "--speculative-config", json.dumps(speculative)])
    made = EngineArgs.from_cli_args(parsed)
    for name, value in ENGINE.items():
        setattr(made, name, value)
    return made


def outcome(make, case):
    try:
        return make(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "value_error": isinstance(error, ValueError)}


def engine_with(case):
    config = arguments(**{"speculative": None} | case).create_engine_config()
    seen = {"async": config.scheduler_config.async_scheduling}
    return seen | held(config.speculative_config) if config.speculative_config else seen


def held(speculative):
    return {
        "fields": {name: getattr(speculative, name) for name in FIELDS},
        "ours": {name: getattr(speculative, name) for name in OURS if getattr(speculative, name, None) is not None},
        "text": repr(speculative),
        "eagle": speculative.use_eagle(),
        "drafts_have_a_model": speculative.draft_model_config is not None,
        "hash": speculative.compute_hash(),
    }


def runner_with(speculative):
    """What a runner derived from vllm's own finds after its constructor, when it makes the drafter itself."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner, _torch_cuda_wrapper
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    class Runner(CPUModelRunner):
        def __init__(self, config):
            # The CPU runner's own constructor refuses every speculation.
            GPUModelRunner.__init__(self, config, torch.device("cpu"))

    config = arguments(speculative).create_engine_config()
    with set_current_vllm_config(config), _torch_cuda_wrapper():
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        runner = Runner(config)
    return {"drafts": runner.num_spec_tokens, "drafter": hasattr(runner, "drafter")}


seen = {name: outcome(engine_with, case) for name, case in CASES.items()}
seen |= {name: outcome(lambda given: held(SpeculativeConfig(**given)), case) for name, case in ALONE.items()}
if RUNNER:
    seen["runner"] = outcome(runner_with, RUNNER)
print(json.dumps({"platform": type(current_platform).__name__, "cases": seen}))
