"""An optimizer state that is None: the rest is saved, and loaded with the same values."""

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


@pytest.fixture(scope="module")
def offloaded(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same on Megatron's HybridDeviceOptimizer, one process: its states have `step` and `master_param` too."""
    folder: Path = tmp_path_factory.mktemp("offloaded")
    need, standins = ["megatron-lm"], ["megatron_cpu"]
    return dict(upstream.run("probe_offloaded_optimizer.py", folder, need=need, standins=standins, timeout=240))


def check_loaded(results: list[dict[str, Any]], scenario: str, tensors: list[str], none: str) -> None:
    """Every rank holds what was saved: `tensors` with equal values, `none` as None, the fp32 master among them."""
    for rank in results:
        result = rank[scenario]
        assert "error" not in result, result
        assert {"param", "exp_avg"} <= set(result["differed_before"])
        assert result["differ"] == []
        assert sorted(result["equal"]) == tensors
        assert set(result["none"]) == ({none} if none else set())
        assert result["steps_equal"]
        assert result["master"] == ["torch.float32"]
        assert result.get("after_next_step", []) == []


@pytest.mark.on
@pytest.mark.parametrize("scenario", ["none on both sides", "none on both sides, gathered on rank 0"])
def test_none_on_both_sides(results: list[dict[str, Any]], scenario: str) -> None:
    check_loaded(results, scenario, TENSORS, none=UNUSED)


@pytest.mark.on
def test_new_optimizer_loads_a_checkpoint_without_the_state(results: list[dict[str, Any]]) -> None:
    check_loaded(results, "none, loaded into a new optimizer", TENSORS, none=UNUSED)


@pytest.mark.on
def test_side_that_keeps_none_leaves_the_saved_state_out(results: list[dict[str, Any]]) -> None:
    for rank in results:
        result = rank["saved, but none where it is loaded"]
        assert "error" not in result, result
        assert result["differ"] == [UNUSED]
        assert sorted(result["equal"]) == TENSORS
        assert result["steps_equal"]


@pytest.mark.on
def test_strict_load_names_the_state_that_the_checkpoint_has_not(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert f"optimizer.state.{UNUSED}." in rank["none, but there where it is loaded"]["error"]


@pytest.mark.on
def test_load_that_is_not_strict_makes_it_none_again(results: list[dict[str, Any]]) -> None:
    check_loaded(results, "none, but there where it is loaded, not strict", TENSORS, none=UNUSED)


@pytest.mark.on
@pytest.mark.parametrize("scenario", ["none for one parameter", "none for one parameter, new optimizer, not strict"])
def test_one_parameter_without_a_state_keeps_its_others(results: list[dict[str, Any]], scenario: str) -> None:
    holders = 0
    for rank in results:
        result = rank[scenario]
        assert "error" not in result, result
        assert result["differ"] == []
        parameters, forgotten = result["equal"]["param"], result["none"].get("exp_avg_sq", 0)
        assert result["equal"]["exp_avg"] == parameters
        assert result["equal"]["exp_avg_sq"] == parameters - forgotten
        holders += forgotten
    assert holders, "no rank holds a share of the output layer"


@pytest.mark.misuse
def test_state_that_only_some_layers_of_one_tensor_have_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    result = upstream.run(PROBE, tmp_path, need=["megatron-lm"], standins=["megatron_cpu"])
    error = result["none in one of two layers"]["error"]
    assert error.startswith("CheckpointingException"), error
    assert "optimizer.state.exp_avg_sq.decoder.layers" in error, error


@pytest.mark.off
def test_without_none_everything_is_saved_and_loaded_as_upstream_does(results: list[dict[str, Any]]) -> None:
    check_loaded(results, "there on both sides", sorted([*TENSORS, UNUSED]), none="")


@pytest.mark.on
def test_offloaded_optimizer_keeps_its_step_where_a_state_is_none(offloaded: dict[str, Any]) -> None:
    result = offloaded["one is None"]
    assert "error" not in result, result
    assert result["before"]["differ"] == ["exp_avg", "exp_avg_sq", "master_param", "param", "step"]
    assert result["before"]["none"] == [1, 0]
    assert result["after"] == {"differ": [], "none": [1, 1], "steps": [[2.0], [2.0]]}


@pytest.mark.off
def test_offloaded_optimizer_with_all_states_is_saved_and_loaded_as_upstream_does(offloaded: dict[str, Any]) -> None:
    result = offloaded["all there"]
    assert "error" not in result, result
    assert result["before"]["steps"] == [[2.0], [1.0]]
    assert result["after"] == {"differ": [], "none": [0, 0], "steps": [[2.0], [2.0]]}
    assert result["next"] == {"differ": [], "none": [0, 0], "steps": [[3.0], [3.0]]}
