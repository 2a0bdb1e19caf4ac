"""Runs that tests of several features share: verl's Megatron actor of a tiny DeepSeek-V3, loaded from a converted checkpoint.

Each set of jobs runs once a session. Probes: tiny_moe_models.py, probe_grouped_convert.py, probe_mla_actor.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Upstream

FOLDER = "tests/behaviour/verl"
NAME = "deepseek_v3_yarn"
WHERE: dict[str, Any] = {
    "need": ["verl", "megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu", "npu_attention"],
    "timeout": 300,
}
Jobs = dict[str, dict[str, Any]]


class Actors:
    """Jobs of probe_mla_actor.py by name, without model and checkpoint, which are made here."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream = upstream
        self._folder = folder
        self._found: dict[str, Any] = {}

    def run(self, jobs: Jobs) -> dict[str, Any]:
        return self._once(jobs, 1)

    def by_two(self, jobs: Jobs) -> dict[str, Any]:
        """By two processes: results are lists by rank."""
        return self._once(jobs, 2)

    def _once(self, jobs: Jobs, procs: int) -> dict[str, Any]:
        key = json.dumps([jobs, procs])
        if key not in self._found:
            made = {"model": str(self._folder / NAME), "checkpoint": str(self._folder / "converted")}
            self._make(made)
            listed = json.dumps([made | job for job in jobs.values()])
            found = self._upstream.run(f"{FOLDER}/probe_mla_actor.py", listed, procs=procs, **WHERE)
            by_job = found if procs == 1 else list(map(list, zip(*found, strict=True)))
            self._found[key] = dict(zip(jobs, by_job, strict=True))
        result: dict[str, Any] = self._found[key]
        return result

    def _make(self, made: dict[str, str]) -> None:
        if Path(made["checkpoint"]).exists():
            return
        self._upstream.run(f"{FOLDER}/tiny_moe_models.py", self._folder, NAME, timeout=180)
        script = self._upstream.tree("verl") / "scripts/converter_hf_to_mcore.py"
        job = {"model": made["model"], "output": made["checkpoint"], "options": []}
        self._upstream.run(f"{FOLDER}/probe_grouped_convert.py", script, json.dumps([job]), **WHERE)
