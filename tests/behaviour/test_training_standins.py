"""The stand-ins under verl's FSDP workers: operators against plain PyTorch, and how they come into a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

# float32, in another order.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def operators(upstream: Upstream) -> Any:
    return upstream.run("tests/behaviour/probe_training_ops.py", standins=["torch_npu", "npu_attention"])


@pytest.mark.parametrize("name", ["rms_norm", "rotary_mul", "cross_entropy", "attention_of_rows"])
def test_operators_and_their_gradients_equal_plain_pytorch(operators: Any, name: str) -> None:
    assert operators["worst"][name] <= TOLERANCE


def test_what_is_not_implemented_is_refused(operators: Any) -> None:
    assert operators["refused"] == ["interleaved rotation", "mean loss"]


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_standin_is_put_in_place_once_where_it_is_on(upstream: Upstream, tmp_path: Path, switch: str) -> None:
    (tmp_path / "watched.py").write_text("READY = True\n")
    env = {"PATCHCTL_STANDINS": switch, "STANDIN_MODULES": str(tmp_path)}
    seen = upstream.run("tests/behaviour/probe_at_start.py", standins=["patchctl_standins"], env=env)
    on = switch == "1"
    assert seen["calls"] == ([["before", False], ["after", True]] if on else [])
    assert (seen["finders"], seen["loader"]) == (int(on), "SourceFileLoader")


def test_collectives_take_what_hccl_takes(upstream: Upstream) -> None:
    standins = ["torch_npu", "npu_attention", "npu_training"]
    ranks = upstream.run("tests/behaviour/probe_training_groups.py", standins=standins, procs=2)
    stacked = [[[0.0], [0.0]], [[1.0], [1.0]]]
    lists = {"gathered": [[0.0], [1.0]], "sizes": [[1], [1]]}
    assert ranks == [{**lists, "stacked": stacked, "sent": [1.0], "backend": "gloo"}] * 2
