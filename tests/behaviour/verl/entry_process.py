"""An entry module of verl as a process of its own, up to the start of Ray."""

from __future__ import annotations

from pathlib import Path

from harness import Upstream

PROBE = "tests/behaviour/verl/probe_entry.py"
# An argument that ray.init does not know: a run that comes to it ends there, before any process of Ray's is started.
ENDS_AT_RAY = "+ray_kwargs.ray_init.no_such_argument=1"
CAME_TO_RAY = "Unknown keyword argument(s): no_such_argument"


def start(upstream: Upstream, module: str, *overrides: str) -> tuple[int, str]:
    """The exit status of `python -m module`, and the end of its output."""
    command = [module, "actor_rollout_ref.rollout.name=vllm", ENDS_AT_RAY, *overrides]
    found = upstream.run(PROBE, *command, need=["verl"], timeout=180)
    return found["status"], found["output"]


def has_module(tree: Path, module: str) -> bool:
    return (tree / f"{module.replace('.', '/')}.py").is_file()
