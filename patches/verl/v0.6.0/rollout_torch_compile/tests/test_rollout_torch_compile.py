"""rollout_torch_compile: the engine of a Megatron worker is compiled although MindSpeed has replaced torch.compile.

MindSpeed's patches, verl's worker, both rollouts and vllm's compilation are real; a CPU that records and replays graphs
stands for the device. Without the patch the engine runs, with the same tokens, but nothing is compiled or captured.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_torch_compile.py"
WITHOUT_MINDSPEED = ["verl", "vllm-ascend", "vllm", "megatron-lm"]
STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]
PIECES, SIZES, DECODE_STEPS = 3, 2, 7  # two layers give three pieces; the first of eight tokens comes from the prompt


@pytest.fixture(scope="module")
def build(upstream: Upstream, tiny_models: TinyModels) -> Any:
    def run(mode: str, *more: str) -> Any:
        need = [*WITHOUT_MINDSPEED, *more]
        env = {"VLLM_ASCEND_ENABLE_NZ": "0"}
        return upstream.run(PROBE, tiny_models.qwen3, mode, need=need, standins=STANDINS, env=env, timeout=300)

    return run


@pytest.fixture(scope="module")
def with_mindspeed(build: Any) -> Any:
    return build("sync", "mindspeed")


@pytest.mark.on
def test_engine_is_compiled_and_replays_graphs(with_mindspeed: Any) -> None:
    assert with_mindspeed["mindspeed"] and with_mindspeed["replaced"]
    assert with_mindspeed["compiled"]
    assert with_mindspeed["captured"] == PIECES * SIZES
    # After the build torch.compile is MindSpeed's again, and the graphs go on being used.
    assert with_mindspeed["restored"]
    assert with_mindspeed["replayed"] == PIECES * DECODE_STEPS


@pytest.mark.on
def test_an_exception_in_the_build_leaves_torch_compile_as_it_was(with_mindspeed: Any) -> None:
    assert with_mindspeed["failing"]["error"] == "ValidationError"
    assert with_mindspeed["failing"]["restored"]
    assert with_mindspeed["compiled"]  # the build after it gets the real one again


@pytest.mark.on
def test_model_of_the_asynchronous_rollout_is_compiled(build: Any) -> None:
    assert build("async", "mindspeed") == {"replaced": True, "restored": True, "compiled": True, "mindspeed": True}


@pytest.mark.on  # its counterpart on the unpatched tree cannot run: without vllm_import_compat no rollout is imported
def test_without_mindspeed_nothing_is_replaced_or_imported(build: Any, with_mindspeed: Any) -> None:
    out = build("sync")
    assert out == with_mindspeed | {"replaced": False, "mindspeed": False}
