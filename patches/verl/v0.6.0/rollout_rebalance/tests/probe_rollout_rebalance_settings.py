"""Probe: rollout_rebalance left off, and what it refuses. Usage: probe_rollout_rebalance_settings.py DENSE MOE

Builds one engine of a rollout that has rebalancing off, and tells what of rebalancing is there. Where the feature is
there, what its checks say to settings and to that engine with one of its settings changed.
"""

import copy
import importlib.metadata
import importlib.util
import json
import os
import sys
from types import SimpleNamespace

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch.distributed as dist  # noqa: E402  (what imports vllm comes after the preparation)
from rollout_config import compose_config, hf_greedy, model_config, padded_prompts, rollout_config  # noqa: E402

DENSE, MOE = sys.argv[1:]
ON = {"rollout_rebalance.enable": True, "data_parallel_size": 2, "rollout_rebalance.graph_sizes": "[1,2,4]"}
METHODS = ("has_unfinished_requests", "step", "get_output", "abort_requests")


def off():
    """A rollout as it was before the feature: its tokens, and what of the feature has been imported or installed."""
    from verl.workers.rollout.base import get_rollout_class

    # With data parallelism it is off as well (rollout_data_parallel), and the checks below get an engine they accept.
    config = rollout_config(DENSE, **{"+engine_kwargs.vllm.async_scheduling": False})
    rollout = get_rollout_class("vllm", "sync")(config, model_config(DENSE), device_mesh=None)
    engine = rollout.inference_engine.llm_engine
    tokens = rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()
    hf = hf_greedy(DENSE)["before"]
    return rollout.inference_engine, {
        "tokens": [ids[: len(one)] for ids, one in zip(tokens, hf, strict=True)],
        "hf": hf,
        "imported": [name for name in sys.modules if "rebalance" in name and "vllm_rollout" in name],
        "replaced": [name for name in METHODS if name in vars(engine) or name in vars(engine.engine_core)],
    }


def told(function, *arguments):
    """The ValueError of a call; None when there is none."""
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    return None


def of_settings():
    """What is said to settings of the rollout, before there is an engine."""
    from verl.workers.config.rollout_rebalance import check_settings

    def said(**settings):
        return told(lambda: check_settings(rollout_config(MOE, **(ON | settings))))

    return {
        "accepted": said(),
        "off": said(**{"rollout_rebalance.enable": False, "data_parallel_size": 1}),
        "one": said(data_parallel_size=1),
        "mode": said(mode="async"),
        "engine": said(name="sglang"),
        "eager": said(**{"rollout_rebalance.graph_sizes": "[]"}),
        "interval": said(**{"rollout_rebalance.interval": 0}),
        "staging": said(**{"rollout_rebalance.staging_megabytes": 0}),
        "sizes": said(**{"rollout_rebalance.graph_sizes": "[4,0]"}),
        "asynchronous": told(build_asynchronous),
        "driver": told(check_as_the_driver),
    }


def build_asynchronous():
    from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMAsyncRollout

    vLLMAsyncRollout(rollout_config(MOE, mode="async", **ON), model_config(MOE), device_mesh=None)


def check_as_the_driver():
    from verl.utils.settings_checks import check_settings

    check_settings(compose_config(MOE, **(ON | {"data_parallel_size": 1})))


def of_engine(llm):
    """What is said to the engine with one of its settings changed."""
    from verl.workers.rollout.vllm_rollout.rebalance import checks

    core, config = llm.llm_engine.engine_core.engine_core, llm.llm_engine.vllm_config
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner

    def changed(part, **values):
        other, inner = copy.copy(config), copy.copy(getattr(config, part))
        for key, value in values.items():
            object.__setattr__(inner, key, value)
        object.__setattr__(other, part, inner)
        return told(checks._check_settings, other)

    def with_(part, value):
        other = copy.copy(config)
        object.__setattr__(other, part, value)
        return told(checks._check_settings, other)

    return {
        "accepted": told(checks.check_engine, llm),
        "async_scheduling": changed("scheduler_config", async_scheduling=True),
        "priority": changed("scheduler_config", policy="priority"),
        "pipeline": changed("parallel_config", pipeline_parallel_size=2),
        "context": changed("parallel_config", decode_context_parallel_size=2),
        "connector": with_("kv_transfer_config", SimpleNamespace()),
        "lora": with_("lora_config", SimpleNamespace()),
        "drafter": with_("speculative_config", SimpleNamespace(method="eagle3")),
        "ngram": with_("speculative_config", SimpleNamespace(method="ngram")),
        "window": told(checks._check_cache, other_cache(core, sliding_window=64)),
        "groups": told(
            checks._check_cache, SimpleNamespace(kv_cache_groups=core.scheduler.kv_cache_config.kv_cache_groups * 2)
        ),
        "process": told(checks.check_engine, SimpleNamespace(llm_engine=SimpleNamespace(engine_core=None))),
        "runner": told(checks._check_classes, core, object()),
        "scheduler": told(checks._check_classes, SimpleNamespace(scheduler=object()), runner),
        "version": told(with_version, checks),
    }


def other_cache(core, **values):
    import dataclasses

    spec = dataclasses.replace(core.scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec, **values)
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])


def with_version(checks):
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.15.0" if name == "vllm" else version(name)
    try:
        checks._check_versions()
    finally:
        importlib.metadata.version = version


def of_graphs(llm):
    """Graph sizes of the configuration, of the engine, and none."""
    from verl.workers.rollout.vllm_rollout.rebalance.setup import make_policy

    def policy(sizes, captured, drafts=0):
        speculative = SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
        config = SimpleNamespace(
            speculative_config=speculative,
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=captured),
            cache_config=llm.llm_engine.vllm_config.cache_config,
        )
        settings = SimpleNamespace(graph_sizes=sizes, interval=10)
        return make_policy(settings, config)

    return {
        "given": list(policy([2, 4], [8, 16]).graph_sizes),
        "captured": list(policy([], [8, 16]).graph_sizes),
        "growth": policy([8], [], drafts=3).growth_tokens,
        "none": told(policy, [], []),
        "drafts": told(policy, [2, 8], [], 3),
    }


def of_rounds():
    """How the blocks of tensors with these rows are cut into rounds."""
    from verl.workers.rollout.vllm_rollout.rebalance.kv_blocks import rounds

    cases = [([100] * 4, 3, 1000), ([100, 100, 900], 3, 1000), ([100], 5, 250), ([2000], 2, 1000), ([100], 0, 1000)]
    return [[list(one) for one in rounds(*case)] for case in cases]


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    llm, result = off()
    result = {"off": result}
    if importlib.util.find_spec("verl.workers.config.rollout_rebalance"):
        result |= {"settings": of_settings(), "engine": of_engine(llm), "graphs": of_graphs(llm), "rounds": of_rounds()}
    print(json.dumps(result))


os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
main()
