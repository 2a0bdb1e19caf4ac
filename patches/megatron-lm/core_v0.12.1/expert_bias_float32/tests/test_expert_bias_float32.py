"""expert_bias_float32: a router's bias is loaded and saved in float32, whether the model has gone forward or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

EXACT = {"dtype": ["torch.float32"], "equal": True}


@pytest.fixture(scope="module")
def results(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    need, standins = ["megatron-lm"], ["megatron_cpu"]
    return upstream.run("probe_expert_bias_float32.py", folder, need=need, standins=standins, timeout=120)


@pytest.mark.on
@pytest.mark.parametrize("case", ["resumed", "state dict", "rounded"])
def test_a_model_that_never_went_forward_loads_what_was_saved(results: Any, case: str) -> None:
    assert results[case] == EXACT


@pytest.mark.on
def test_it_gives_its_bias_away_in_float32(results: Any) -> None:
    assert results["given away"] == ["torch.float32"]


@pytest.mark.off
@pytest.mark.parametrize("case", ["resumed after a forward", "state dict after a forward"])
def test_after_a_forward_upstream_does_so_too(results: Any, case: str) -> None:
    assert results[case] == EXACT


@pytest.mark.off
def test_a_model_without_a_bias_has_the_same_state(results: Any) -> None:
    assert results["without a bias"] == ["weight torch.bfloat16"]
