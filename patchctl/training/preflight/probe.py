"""A node as preflight looks at it, beside the worker: limits and variables are those of its raylet, which the workers of a
training inherit too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from patchctl.cluster.facts import MachineFacts, MachineRequest, Request
from patchctl.manifest.distribution import Distribution
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.live import ProbeRequest, look, workspace_state

# Ray hides all devices from a task that asks for none, with an empty value: nobody's setting.
_HIDDEN_BY_RAY = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def look_here(request: Request, python: str, workspace: Path, dist: Distribution) -> MachineFacts:
    """Every probe of this node."""
    asked = request.machine or MachineRequest()
    environment = {n: v for n, v in os.environ.items() if v or n not in _HIDDEN_BY_RAY}
    paths = paths_here(asked.paths, environment)
    found = look(
        ProbeRequest(
            python=python,
            variables=frozenset(asked.variables),
            paths=tuple(path for path in paths.values() if path),
            model=paths.get("model"),
            workspace=lambda: workspace_state(workspace, dist, python),
            cache_folders=(workspace.joinpath(*asked.start),),
            environment=environment,
        )
    )
    return MachineFacts({**found.texts, **_short(found.texts)}, dict(found.absent), found.time)


def paths_here(paths: Mapping[str, list[str | None]], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Where a recipe's paths lie on this node."""
    return {
        name: given or environment.get(variable or "") or default for name, (given, variable, default) in paths.items()
    }


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    """Of the sockets only those that are listened on travel: a busy node has ten thousand others."""
    if m.SOCKETS not in texts:
        return {}
    lines = texts[m.SOCKETS].splitlines(keepends=True)
    return {m.SOCKETS: "".join(line for line in lines if re.match(r"\s*\d+: \S+ \S+ 0A ", line))}
