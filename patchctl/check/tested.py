"""Whether each patch has tests and mutations, whether a record of their run holds, and whether tests are left without a patch.

A feature is proven on each stack by itself: a record of another stack of the upstream does not count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchctl.catalog.evidence import BEHAVIOUR, Evidence, keeps_tests, mutants_of, tests_of
from patchctl.check.series import Series
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, TESTS
from patchctl.manifest.types import Stack
from patchctl.prove.new import MARKER
from patchctl.stack.patches import StackPatch

_SHOWN = 30


def check_tested(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Check that every patch has tests and a mutation, in a distribution that keeps tests."""
    if not keeps_tests(dist.root):
        return
    seen = set()
    for key, patches in series.stacks.items():
        for patch in patches:
            for what in _lacking(dist, dist.stacks[key], patch.feature):
                if (patch.file, what) not in seen:  # a patch of a stack that another extends is in both
                    seen.add((patch.file, what))
                    line = patch.header.trailers["Feature"][0].line if "Feature" in patch.header.trailers else 1
                    yield Finding("tested", what, patch.shown, line, "error", key[0], patch.feature)


def check_begun(dist: Distribution) -> Iterator[Finding]:
    """Check that the tests, probes and mutations that `patchctl new` wrote are filled in."""
    folders = (folder for part in (TESTS, MUTANTS) for folder in dist.root.glob(f"patches/*/*/*/{part}"))
    for file in sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".py", ".yaml")):
        lines = enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (line := next((number for number, text in lines if MARKER in text), None)) is not None:
            shown = file.relative_to(dist.root)
            what = f"waits to be filled in where it says {MARKER}"
            yield Finding("filled-in", what, shown.as_posix(), line, "error", shown.parts[1], shown.parts[3])


def _lacking(dist: Distribution, stack: Stack, feature: str) -> Iterator[str]:
    folder = f"patches/{stack.upstream}/{stack.name}/{feature}"
    if not tests_of(dist, stack, feature):
        yield f"has no behaviour test; {folder}/{TESTS}/test_*.py is looked for"
    if not mutants_of(dist, stack, feature):
        yield f"has no mutation; {folder}/{MUTANTS}/*.yaml is looked for"


def check_proven(dist: Distribution, series: Series, *, required: bool) -> Iterator[Finding]:
    """Check that a record proves every feature on every stack. `required` makes each missing one an error; else each stack has one
    note, in a distribution that keeps tests."""
    if not required and not keeps_tests(dist.root):
        return
    evidence = Evidence(dist)
    for key, patches in series.stacks.items():
        stack = dist.stacks[key]
        reasons = [(patch, why) for patch in patches if (why := evidence.unproven(stack, patch)) is not None]
        if required:
            yield from (_error(stack, patch, why) for patch, why in reasons)
        elif reasons:
            yield _note(dist, stack, len(patches), {patch.feature: why for patch, why in reasons})


def _error(stack: Stack, patch: StackPatch, why: str) -> Finding:
    what = f"is not proven on {stack.upstream}/{stack.name}: {why}"
    return Finding("proven", what, patch.shown, 1, "error", stack.upstream, patch.feature)


def _note(dist: Distribution, stack: Stack, patches: int, reasons: dict[str, str]) -> Finding:
    named = [f"{feature} ({why})" for feature, why in reasons.items()]
    more = f", and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    what = f"{len(named)} of {patches} features are not proven on this stack: {', '.join(named[:_SHOWN])}{more}"
    return Finding(
        "proven", what, dist.stack_file(stack).relative_to(dist.root).as_posix(), None, "note", stack.upstream
    )


def check_orphans(dist: Distribution) -> Iterator[Finding]:
    """Find tests and mutations outside every feature's folder, which nothing runs. Those in the folder of a deleted feature are
    reported as `unlisted-file`."""
    top = dist.root / BEHAVIOUR
    tests = (file for file in top.rglob("test_*.py") if _is_of_a_feature(file))
    for file in sorted([*tests, *(top / MUTANTS).glob("*.yaml")]):
        shown = file.relative_to(dist.root).as_posix()
        yield Finding("left-over", "no feature has it: delete it, or move it into the folder of one", shown)


def _is_of_a_feature(test: Path) -> bool:
    """Whether it has the mark of features' tests; other tests are of unpatched upstream."""
    return "pytest.mark.on\n" in test.read_text(encoding="utf-8", errors="replace")
