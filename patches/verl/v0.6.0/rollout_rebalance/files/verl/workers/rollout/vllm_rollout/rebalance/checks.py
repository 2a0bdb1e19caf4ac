# Copyright 2025 Individual Contributor: patchctl
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What rollout_rebalance needs of the engine, checked when the rollout is built."""

import importlib.metadata

from packaging.version import Version

from verl.workers.config.rollout_rebalance import KEY, ROLLOUT

WRITTEN_FOR = {"vllm": (0, 14), "vllm-ascend": (0, 14)}
# Methods that draft from a request's tokens alone, so a request can go on without what its drafter knew. `suffix` takes
# a moved request for a new one, and drafts from its prompt and what comes after the move; the others from all of it.
DRAFTERS = ("ngram", "suffix", "sam")


def check_engine(engine) -> None:
    """Refuses an engine whose requests cannot be moved.

    Args:
        engine: vllm's LLM.

    Raises:
        ValueError: names what is in the way and what to set instead.
    """
    _check_versions()
    core = getattr(engine.llm_engine.engine_core, "engine_core", None)
    if core is None:
        _refuse("the engine core is in another process", "VLLM_ENABLE_V1_MULTIPROCESSING=0 in the environment")
    _check_classes(core, engine.llm_engine.model_executor.driver_worker.worker.model_runner)
    _check_settings(engine.llm_engine.vllm_config)
    _check_cache(core.scheduler.kv_cache_config)


def _check_versions() -> None:
    for package, release in WRITTEN_FOR.items():
        try:
            found = Version(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            _refuse(f"it is for {package}, which is not installed")
        if found.release[:2] != release:
            wanted = ".".join(map(str, release))
            _refuse(f"it moves requests of {package} {wanted}, and {found} keeps them otherwise")


def _check_classes(core, runner) -> None:
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    if type(core.scheduler).__name__ != "Scheduler":
        _refuse(
            f"the scheduler is {type(core.scheduler).__name__}, and only vllm's own one is known",
            f"nothing in {ROLLOUT}.engine_kwargs.vllm that chooses a scheduler (async_scheduling, scheduler_cls, "
            "additional_config), and no VLLM_ASCEND_BALANCE_SCHEDULING",
        )
    if not isinstance(runner, NPUModelRunner):
        _refuse(f"the model runner is {type(runner).__name__}", "no VLLM_USE_V2_MODEL_RUNNER")


def _check_settings(vllm_config) -> None:
    """Refuses features of the engine that keep something of a request which is not carried along."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    found = {
        "pipeline_parallel_size > 1": parallel.pipeline_parallel_size > 1,
        "decode_context_parallel_size > 1": parallel.decode_context_parallel_size > 1,
        "prefill_context_parallel_size > 1": parallel.prefill_context_parallel_size > 1,
        "async_scheduling": vllm_config.scheduler_config.async_scheduling,
        "scheduling_policy=priority": vllm_config.scheduler_config.policy == "priority",
        "M-RoPE": model.uses_mrope,
        "kv_transfer_config": vllm_config.kv_transfer_config is not None,
        "ec_transfer_config": vllm_config.ec_transfer_config is not None,
        "enable_return_routed_experts": getattr(model, "enable_return_routed_experts", False),
    }
    for setting in (setting for setting, there in found.items() if there):
        _refuse(f"the engine has {setting}", f"{ROLLOUT}.engine_kwargs.vllm without it")
    if vllm_config.lora_config is not None:
        _refuse("the engine has LoRA adapters", "actor_rollout_ref.model.lora_rank=0")
    if model.is_multimodal_model or model.is_encoder_decoder or model.runner_type != "generate":
        _refuse(f"{model.model} is no text generation model")
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in DRAFTERS:
        _refuse(
            f"the drafter of {speculative.method} keeps a state of its own for each request",
            f"{ROLLOUT}.speculative_config.method to one of {', '.join(DRAFTERS)}",
        )


def _check_cache(kv_cache_config) -> None:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    plain = len(specs) == 1 and isinstance(specs[0], FullAttentionSpec)
    if not plain:
        names = ", ".join(type(spec).__name__ for spec in specs)
        _refuse(f"only one group of full attention layers can be moved, and this model has {names}")
    if specs[0].sliding_window is not None or specs[0].attention_chunk_size is not None:
        _refuse("only full attention layers can be moved, and this model has layers with a window")


def _refuse(reason: str, instead: str = "") -> None:
    raise ValueError(f"{KEY}.enable=True: {reason}; set {instead + ', or ' if instead else ''}{KEY}.enable=False")
