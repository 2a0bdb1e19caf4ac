"""The stand-ins of an environment that `make demo` makes, as they come into an engine's process, without MindSpeed's tree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from pins import REPO

STANDINS = [
    "vllm-ascend-dist-info", "torch_npu", "npu_attention", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "npu_training",
    "npu_training_0_9", "patchctl_standins",
]  # fmt: skip


def watch_of_the_demo() -> str:
    spec = importlib.util.spec_from_file_location("demo_run", Path(REPO, "scripts", "demo", "run.py"))
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["demo_run"] = module
    spec.loader.exec_module(module)
    return str(module.LATE)


@pytest.mark.parametrize("late", [True, False])
def test_the_worker_waits_and_nothing_is_pinned(upstream: Upstream, late: bool) -> None:
    """Without MindSpeed nothing else takes pinning out of torch's factories, which vllm-ascend's rejection sampler asks for."""
    in_process = upstream.stack("vllm").name.startswith("v0.14.")
    standins = STANDINS if in_process else [*STANDINS, "torchvision"]
    env = {"PATCHCTL_STANDINS_WATCH": watch_of_the_demo() if late else ""}
    found = upstream.run(
        "probe_engine_at_start.py", need=["vllm", "vllm-ascend"], standins=standins, env=env, timeout=300
    )
    assert found == {
        "bare": "Please register PrivateUse1HooksInterface",
        "worker with vllm": in_process or not late,
        "pinned": [[7], [0, 1], [3]],
        "context": "meta",
        "device": "npu_engine",
        "pins": False,
    }


@pytest.mark.parametrize(("demo", "seconds"), [(True, 0.2), (False, 2.0)])
def test_the_demo_looks_oftener_for_a_steps_answers(upstream: Upstream, demo: bool, seconds: float) -> None:
    upstream.skip_unless("verl", ">=0.9")
    env = {"PATCHCTL_STANDINS_WATCH": watch_of_the_demo() if demo else "", "PATCHCTL_NPUS": "1"}
    need = ["verl", "vllm", "vllm-ascend"]
    found = upstream.run(
        "probe_replay_buffer_at_start.py", need=need, standins=[*STANDINS, "torchvision"], env=env, timeout=300
    )
    assert found == seconds
