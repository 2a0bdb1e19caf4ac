"""An optimizer state that is None: the rest is saved, and loaded with the same values, in both formats that verl uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_optimizer_none_state.py"
RANKS = 2
TENSORS = ["exp_avg", "exp_avg_sq", "param"]
UNUSED = "max_exp_avg_sq"


@pytest.fixture(scope="module")
def results(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two data parallel ranks holds after each scenario of the probe."""
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    need, standins = ["megatron-lm"], ["megatron_cpu"]
    return list(upstream.run(PROBE, folder, need=need, standins=standins, procs=RANKS, timeout=240))


def check_loaded(results: list[dict[str, Any]], scenario: str, tensors: list[str], none: list[str]) -> None:
    """Every rank holds what was saved: `tensors` with equal values, `none` as None, the fp32 master among them."""
    for rank in results:
        result = rank[scenario]
        assert "error" not in result, result
        assert {"param", "exp_avg"} <= set(result["differed_before"])
        assert (result["differ"], result["equal"], result["none"]) == ([], tensors, none)
        assert result["steps_equal"]
        assert result["master"] == ["torch.float32"]
        assert result["after_next_step"] == []


@pytest.mark.on
@pytest.mark.parametrize("scenario", ["none on both sides", "none on both sides, gathered"])
def test_none_on_both_sides(results: list[dict[str, Any]], scenario: str) -> None:
    check_loaded(results, scenario, TENSORS, none=[UNUSED])


@pytest.mark.on
def test_new_optimizer_loads_a_checkpoint_without_the_state(results: list[dict[str, Any]]) -> None:
    check_loaded(results, "none, loaded into a new optimizer", TENSORS, none=[UNUSED])


@pytest.mark.on
def test_side_that_keeps_none_leaves_the_saved_state_out(results: list[dict[str, Any]]) -> None:
    for rank in results:
        result = rank["saved, but none where it is loaded"]
        assert "error" not in result, result
        assert (result["differ"], result["equal"]) == ([UNUSED], TENSORS)
        assert result["steps_equal"]


@pytest.mark.on
def test_strict_load_names_the_state_that_the_checkpoint_has_not(results: list[dict[str, Any]]) -> None:
    for rank in results:
        error = rank["none, but there where it is loaded"]["error"]
        assert error.startswith("CheckpointException"), error
        assert f".{UNUSED} from model not in state dict" in error


@pytest.mark.misuse
def test_state_that_only_some_parameters_of_a_bucket_have_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    result = upstream.run(PROBE, tmp_path, need=["megatron-lm"], standins=["megatron_cpu"])
    error = result["none for one parameter"]["error"]
    assert error.startswith("ValueError: optimizer states ['exp_avg_sq'] are None for some parameters"), error


@pytest.mark.off
def test_without_none_everything_is_saved_and_loaded_as_upstream_does(results: list[dict[str, Any]]) -> None:
    check_loaded(results, "there on both sides", sorted([*TENSORS, UNUSED]), none=[])
