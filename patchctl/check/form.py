"""The form of every patch file, and which rules a stack does not ask of patches that it imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from patchctl.catalog.linted import LintedPatch
from patchctl.check.rule import PATCH_CHECKS
from patchctl.check.rules import all_rules
from patchctl.findings.report import Finding, Level
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import did_you_mean
from patchctl.manifest.types import Stack
from patchctl.stack.patches import StackPatch


def lint(patch: StackPatch, upstream: str | None = None) -> Iterator[Finding]:
    """Every rule about one patch file."""
    all_rules()
    linted = LintedPatch(patch)
    for name, check in PATCH_CHECKS.items():
        for fault in check(linted):
            yield Finding(name, fault.message, patch.shown, fault.line, upstream=upstream, patch=patch.feature)


def check_form(dist: Distribution, patches: Mapping[Path, StackPatch]) -> Iterator[Finding]:
    """Lint of every patch; of each rule that a stack names in `unlinted:` one note in place of its findings. Those of other projects
    are not rewritten for a linter: they would no longer be the patches that the project has."""
    spared: Counter[tuple[str, str, str]] = Counter()
    for file, patch in patches.items():
        _, upstream, name, *_ = file.relative_to(dist.root).parts
        stack = dist.stacks.get((upstream, name))
        exempt = stack.unlinted if stack is not None and "Imported" in patch.header.trailers else {}
        found = list(lint(patch, upstream))
        spared.update((upstream, name, rule) for rule in {f.rule for f in found} & exempt.keys())
        yield from (f for f in found if f.rule not in exempt)
    for stack in dist.stacks.values():
        for rule, why in stack.unlinted.items():
            yield _exemption(dist, stack, rule, why, spared[stack.upstream, stack.name, rule])


def _exemption(dist: Distribution, stack: Stack, rule: str, why: str, count: int) -> Finding:
    if rule not in PATCH_CHECKS:
        what = f"{rule} is no rule about one patch file{did_you_mean(rule, PATCH_CHECKS)}"
    elif count == 0:
        what = f"no imported patch of this stack breaks {rule}: take it out of `unlinted:`"
    else:
        what = f"{rule} is not asked of {count} imported patch{'es' if count > 1 else ''}: {' '.join(why.split())}"
    file = dist.stack_file(stack)
    level: Level = "note" if rule in PATCH_CHECKS else "error"
    line = dist.where(file, "unlinted", rule).line
    return Finding("unlinted", what, file.relative_to(dist.root).as_posix(), line, level, stack.upstream)
