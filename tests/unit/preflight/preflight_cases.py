"""Machines and cases for the tests of preflight: the real distribution's recipes on recordings of a good node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from machines import write_machine
from pins import distribution, newest, on, recipes, recipes_on

from patchctl.findings import Finding
from patchctl.requirements.sets import set_of
from patchctl.training.models import model_of, read_models
from patchctl.training.preflight.case import MEAN_TOKENS, Case
from patchctl.training.preflight.checks import all_findings
from patchctl.training.preflight.machine import Machine, recorded
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.resolve import Given, resolve

REPOSITORY = Path(__file__).parents[3]
NOWHERE = Machine({}, "nowhere", 0.0)

Look = Callable[..., dict[str, list[Finding]]]


def case_of(
    title: str, machine: Machine = NOWHERE, given: Given | None = None, mean: int = MEAN_TOKENS, on_newest: bool = False
) -> Case:
    """A real recipe on a machine, on the newest release or on the profile's own stacks."""
    profile, name = title.split("/")
    dist, known = (on(newest()), recipes_on(newest())) if on_newest else (distribution(), recipes())
    return Case(
        machine,
        resolve(known, profile, name, given),
        dist.profile(profile).runtime,
        dist.requirements,
        known.rules,
        dist.practice,
        _switches(profile, on_newest),
        model_of(read_models(dist), profile),
        mean,
        dist.profile(profile).stacks,
        set_of(dist, dist.profile(profile)),
    )


@cache
def _switches(profile: str, on_newest: bool) -> tuple[str, ...]:
    return tuple(features_and_switches(on(newest()) if on_newest else distribution(), profile)[1])


def look_in(folder: Path) -> Look:
    """Looks at machines that are written below a folder: the findings by name for a recipe on a good node with some files
    replaced; None leaves a file out."""

    def look(
        title: str = "qwen3-235b/grpo",
        given: Given | None = None,
        mean: int = MEAN_TOKENS,
        on_newest: bool = False,
        **changed: str | None,
    ) -> dict[str, list[Finding]]:
        node = write_machine(folder / f"node{len(list(folder.iterdir()))}", title.split("/")[0], **changed)
        findings: dict[str, list[Finding]] = {}
        for finding in all_findings(case_of(title, recorded(node), given, mean, on_newest)):
            findings.setdefault(finding.name, []).append(finding)
        return findings

    return look
