"""What a change of stacks leaves behind or forgets: tests and mutations of no feature, generated files of a pin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchctl.catalog.evidence import BEHAVIOUR
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS


def check_left_over(dist: Distribution) -> Iterator[Finding]:
    """What proves a feature and lies in no feature's folder: nothing runs it. What lies in the folder of a feature that is
    gone goes with the folder (`unlisted-file`)."""
    top = dist.root / BEHAVIOUR
    tests = (file for file in top.rglob("test_*.py") if _is_of_a_feature(file))
    for file in sorted([*tests, *(top / MUTANTS).glob("*.yaml")]):
        shown = file.relative_to(dist.root).as_posix()
        yield Finding("left-over", "no feature has it: delete it, or move it into the folder of one", shown)


def _is_of_a_feature(test: Path) -> bool:
    """By the mark that each feature's tests have; others are of what upstream does without us."""
    return "pytest.mark.on\n" in test.read_text(encoding="utf-8", errors="replace")


def check_generated(dist: Distribution) -> Iterator[Finding]:
    """A note for each stack that lacks a generated file which another stack of the upstream has."""
    for stack in dist.stacks.values():
        own = {g.path for g in stack.generated}
        for (upstream, name), other in sorted(dist.stacks.items()):
            if upstream != stack.upstream or stack.extends == name or other.extends == stack.name:
                continue
            for generated in other.generated:
                if generated.path not in own:
                    own.add(generated.path)
                    what = f"`generated:` has no {generated.path}, as {upstream}/{name} has: {generated.why}"
                    file = dist.stack_file(stack).relative_to(dist.root).as_posix()
                    yield Finding("generated-missing", what, file, None, "note", upstream)
