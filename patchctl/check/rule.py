"""What a rule is, and how a function that looks at one patch file becomes the check of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from patchctl.stack.patches import LintedPatch

Scope = Literal["patch", "distribution", "source", "workspace"]


@dataclass(frozen=True)
class LintRule:
    """`holds` is what must be so, `why` what goes wrong otherwise."""

    id: str
    scope: Scope
    holds: str
    why: str


@dataclass(frozen=True)
class Violation:
    """One place of a patch file where a rule does not hold. `line` counts from 1."""

    line: int
    message: str


PatchCheck = Callable[[LintedPatch], Iterator[Violation]]
PATCH_CHECKS: dict[str, PatchCheck] = {}
PATCH_RULES: dict[str, LintRule] = {}


def patch_rule(name: str, holds: str, why: str) -> Callable[[PatchCheck], PatchCheck]:
    """Makes a function the check of a rule about one patch file."""

    def register(check: PatchCheck) -> PatchCheck:
        PATCH_CHECKS[name] = check
        PATCH_RULES[name] = LintRule(name, "patch", holds, why)
        return check

    return register
