"""wake_up_experts: what a model with experts answers after its engine slept, with the weights that it had and with new ones."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 600,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_wake_up_experts.py", tiny_models.qwen3_moe, **ENGINE)


@pytest.mark.on
@pytest.mark.parametrize("step", ["woken", "woken twice", "idle", "updated again"])
def test_experts_wake_up_as_they_fell_asleep(made: Any, step: str) -> None:
    """With the weights that they had, where nobody loads any; upstream's next step ends with an error about shapes, and nothing is behind it.
    Where somebody does, what was laid out for that is freed."""
    assert step in made, made
    tokens, hugging_faces = made[step]
    assert tokens == hugging_faces
    assert made["held"] == 0


@pytest.mark.off
def test_new_weights_are_computed_with(made: Any) -> None:
    """After an update as verl makes it: the weights awake, loaded, and laid out by process_weights_after_loading."""
    for step in ("awake", "updated"):
        tokens, hugging_faces = made[step]
        assert tokens == hugging_faces
    assert made["updated"] != made["awake"], "an update that makes no difference"


@pytest.mark.off
def test_an_update_frees_the_weights_that_it_replaces(made: Any) -> None:
    """As upstream: experts do not take their memory twice."""
    assert made["held"] == 0
