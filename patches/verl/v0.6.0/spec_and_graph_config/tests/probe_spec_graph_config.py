"""Probe: what verl's configuration becomes in the engine's, without running a model.

Usage: probe_spec_graph_config.py MODEL sync|async|numbers|misuse|arguments. The synchronous rollout runs up to the
point where LLM has made its EngineArgs, the server up to the parsed options of `vllm serve`; vllm makes its
configuration of them. `numbers` is the synchronous rollout with a compilation_config that is no mapping.
`arguments` prints what LLM is called with and works with vllm 0.10.0 too; `misuse` prints the refusals.
"""

import asyncio
import json
import os
import sys
from types import SimpleNamespace

MODEL, MODE = sys.argv[1:]
if MODE != "arguments":
    import npu_engine

    npu_engine.prepare()

import torch.distributed as dist  # noqa: E402
from omegaconf import ListConfig  # noqa: E402
from rollout_config import SETTINGS, compose_config, model_config  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd as spmd  # noqa: E402

GRAPHS = {"enforce_eager": False}
FULL = GRAPHS | {"cudagraph_mode": "FULL_DECODE_ONLY"}
DRAFTS = {"speculative_config.num_speculative_tokens": 3, "calculate_log_probs": False}
NGRAM = DRAFTS | {"speculative_config.method": "ngram"}
VLLM = "engine_kwargs.vllm"
CASES = {
    "off": GRAPHS,
    "sizes list": GRAPHS | {"cudagraph_capture_sizes": "[4,2,1]"},
    "sizes text": GRAPHS | {"cudagraph_capture_sizes": "'4, 2,1'"},
    "sizes bracketed": GRAPHS | {"cudagraph_capture_sizes": "'[4,2,1]'"},
    "sizes ListConfig": GRAPHS,
    "full": FULL,
    "small letters": GRAPHS | {"cudagraph_mode": "full_decode_only", "cudagraph_capture_sizes": "[8]"},
    "merged": FULL | {f"+{VLLM}.compilation_config": "{cudagraph_capture_sizes:[8,4]}"},
    "npugraph_ex": FULL | {"npugraph_ex.enable": True, f"+{VLLM}.additional_config": "{enable_cpu_binding:True}"},
    "static kernel": FULL | {"npugraph_ex.enable": True, "npugraph_ex.enable_static_kernel": True},
    "ngram": GRAPHS | NGRAM | {"speculative_config.prompt_lookup_max": 4, "speculative_config.prompt_lookup_min": 2},
    "more keys": GRAPHS | NGRAM | {"+speculative_config.disable_by_batch_size": 8},
}
SAM = {"sam_min_match_length": 4, "sam_share_in_group": True, "sam_max_memory_mb": 64}
SAM_CASE = GRAPHS | DRAFTS | {"speculative_config.method": "sam"}
SAM_CASE |= {f"+speculative_config.{name}": value for name, value in SAM.items()}
# Nothing is merged into the number, which LLM takes and `vllm serve` does not.
NUMBERS = {
    "ngram and number": GRAPHS | NGRAM | {f"+{VLLM}.compilation_config": 3},
    "eager sizes and number": {
        "enforce_eager": True,
        "cudagraph_capture_sizes": "[4]",
        f"+{VLLM}.compilation_config": 3,
    },
}
MISUSE = {
    "eager mode": {"enforce_eager": True, "cudagraph_mode": "FULL"},
    "eager npugraph_ex": {"enforce_eager": True, "npugraph_ex.enable": True},
    "engine": GRAPHS | {"name": "sglang", "cudagraph_mode": "FULL"},
    "mode": GRAPHS | {"cudagraph_mode": "FULL_SOMETIMES"},
    "size": GRAPHS | {"cudagraph_capture_sizes": "[4,0]"},
    "code": GRAPHS | {"cudagraph_capture_sizes": "'list(range(9))'"},
    "number": GRAPHS | {"cudagraph_capture_sizes": 8},
    "sizes without graphs": GRAPHS | {"cudagraph_mode": "NONE", "cudagraph_capture_sizes": "[4]"},
    "piecewise npugraph_ex": GRAPHS | {"npugraph_ex.enable": True},
    "static kernel alone": FULL | {"npugraph_ex.enable_static_kernel": True},
    "mode twice": FULL | {f"+{VLLM}.compilation_config.cudagraph_mode": "FULL"},
    "sizes twice": GRAPHS | {"cudagraph_capture_sizes": "[4]", f"+{VLLM}.cudagraph_capture_sizes": "[4]"},
    "npugraph_ex twice": FULL | {"npugraph_ex.enable": True, f"+{VLLM}.additional_config.npugraph_ex_config": "{}"},
    "speculation twice": GRAPHS | NGRAM | {f"+{VLLM}.speculative_config.method": "ngram"},
    "no mapping": FULL | {f"+{VLLM}.compilation_config": 3},
    "no mapping, sizes": GRAPHS | {"cudagraph_capture_sizes": "[4]", f"+{VLLM}.compilation_config": 3},
    "no method": GRAPHS | DRAFTS,
    "unknown key": GRAPHS | NGRAM | {"+speculative_config.prompt_lookup": 3},
    "unknown method": GRAPHS | DRAFTS | {"speculative_config.method": "guess"},
    "undeclared": GRAPHS | {"npugraph_ex.level": 3},
}


def rollout_config(model, **settings):
    """As a worker reads it: composed from overrides of the command line, instantiated by its _target_."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    overrides = [f"actor_rollout_ref.model.path={model}"]
    for key, value in (SETTINGS | settings).items():
        name = key.removeprefix("+")
        overrides.append(f"{key[: len(key) - len(name)]}actor_rollout_ref.rollout.{name}={value}")
    with initialize_config_dir(folder, version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    return omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


class Made(Exception):
    """Ends a constructor when the engine's arguments are there."""


def sync_arguments(settings, sizes=None):
    """The EngineArgs that LLM itself makes of verl's arguments."""
    from vllm.entrypoints import llm

    class Engine:
        @staticmethod
        def from_engine_args(engine_args, **kwargs):
            raise Made(engine_args)

    llm.LLMEngine = Engine
    config = rollout_config(MODEL, **settings)
    if sizes is not None:
        object.__setattr__(config, "cudagraph_capture_sizes", sizes)
    try:
        spmd.vLLMRollout(config, model_config(MODEL), device_mesh=None)
    except Made as made:
        return made.args[0]


def async_arguments(settings, sizes=None):
    """The AsyncEngineArgs of the options that the server has parsed; only the Ray actor around it is not there."""
    import verl.workers.rollout.vllm_rollout.vllm_async_server as module
    from vllm import AsyncEngineArgs

    parsed = []

    async def run_server(args):
        parsed.append(args)

    config = rollout_config(MODEL, mode="async", **settings)
    if sizes is not None:
        object.__setattr__(config, "cudagraph_capture_sizes", sizes)
    module.ray = SimpleNamespace(get=lambda references: references)
    config.max_model_len = config.prompt_length + config.response_length
    place = {
        "replica_rank": 1,
        "node_rank": 0,
        "nnodes": 1,
        "gpus_per_node": 1,
        "workers": [],
        "run_server": run_server,
    }
    server = SimpleNamespace(config=config, model_config=model_config(MODEL), **place)
    asyncio.run(module.vLLMHttpServer.__ray_metadata__.modified_class.launch_server(server))
    return AsyncEngineArgs.from_cli_args(parsed[0])


def engine_config(arguments):
    """The part of vllm's own configuration that the settings are about."""
    from vllm_ascend.ascend_config import clear_ascend_config

    clear_ascend_config()  # it belongs to the process, as one engine does
    config = arguments.create_engine_config()
    graphs, speculative = config.compilation_config, config.speculative_config
    names = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "disable_by_batch_size")
    return {
        "mode": graphs.cudagraph_mode.name,
        "sizes": graphs.cudagraph_capture_sizes,
        "npugraph_ex": npugraph_ex(),
        "additional": config.additional_config.get("enable_cpu_binding"),
        "speculative": {name: getattr(speculative, name) for name in names} if speculative else None,
        "sam": {name: value for name in SAM if (value := getattr(speculative, name, None)) is not None},
    }


def npugraph_ex():
    from vllm_ascend.ascend_config import get_ascend_config

    chosen = get_ascend_config().npugraph_ex_config
    return [chosen.enable, chosen.enable_static_kernel]


def all_cases():
    """Those of this engine: `sam` where vllm-ascend has its proposer."""
    from vllm.platforms import current_platform

    return CASES | ({"sam": SAM_CASE} if getattr(type(current_platform), "has_sam_proposer", False) else {})


def engine_configs(arguments, cases):
    results = {}
    for name, settings in cases.items():
        results[name] = engine_config(arguments(settings, ListConfig([4, 2, 1]) if "ListConfig" in name else None))
    return results


def refusals():
    def refusal(settings):
        try:
            arguments = sync_arguments(settings)
            arguments.create_engine_config()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return {name: refusal(settings) for name, settings in MISUSE.items()}


def llm_arguments():
    """What LLM is called with when none of the settings is used."""
    handed = {}

    def engine(**kwargs):
        handed.update(kwargs)
        raise Made

    spmd.LLM = engine
    try:
        spmd.vLLMRollout(rollout_config(MODEL, **GRAPHS), model_config(MODEL), device_mesh=None)
    except Made:
        pass
    config = compose_config(MODEL).actor_rollout_ref.rollout
    return {name: str(value) for name, value in handed.items() if name != "model"} | {
        "sizes": config.cudagraph_capture_sizes
    }


os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
MODES = {
    "sync": lambda: engine_configs(sync_arguments, all_cases()),
    "async": lambda: engine_configs(async_arguments, all_cases()),
    "numbers": lambda: engine_configs(sync_arguments, NUMBERS),
    "misuse": refusals,
    "arguments": llm_arguments,
}
print(json.dumps(MODES[MODE]()))
