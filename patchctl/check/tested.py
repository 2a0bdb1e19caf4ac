"""Whether each patch has behaviour tests and mutations, and whether a record of their run holds: what the README promises of
every one. A stack's features are proven on that stack, whatever another stack of the upstream shows of its own."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.catalog.evidence import BEHAVIOUR, Evidence, mutants_of, tests_of
from patchctl.check.series import Series
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.stack.patches import StackPatch

FOLDER = BEHAVIOUR.as_posix()
_SHOWN = 30


def check_tested(dist: Distribution, series: Series) -> Iterator[Finding]:
    """That tests are there. Nothing of a distribution without that folder: it has its tests elsewhere, or none."""
    if not (dist.root / FOLDER).is_dir():
        return
    seen = set()
    for (upstream, stack), patches in series.stacks.items():
        for patch in patches:
            for what in _lacking(dist, upstream, stack, patch.feature):
                if (patch.file, what) not in seen:  # a patch of a stack that another extends is in both
                    seen.add((patch.file, what))
                    line = patch.header.trailers["Feature"][0].line if "Feature" in patch.header.trailers else 1
                    yield Finding("tested", what, patch.shown, line, "error", upstream, patch.feature)


def _lacking(dist: Distribution, upstream: str, stack: str, feature: str) -> Iterator[str]:
    folder = upstream.replace("-", "_")
    if not tests_of(dist.root, feature, upstream, stack):
        yield f"has no behaviour test; {FOLDER}/{folder}/test_{feature}.py is looked for"
    if not mutants_of(dist.root, feature, upstream, stack):
        yield f"has no mutation; {FOLDER}/mutants/{feature}.yaml with `upstream: {upstream}` is looked for"


def check_proven(dist: Distribution, series: Series, *, required: bool) -> Iterator[Finding]:
    """That every feature of every stack is proven there by a record that holds: with `required` an error each, else one note
    a stack that names them, in a distribution that has behaviour tests."""
    if not required and not (dist.root / FOLDER).is_dir():
        return
    evidence = Evidence(dist.root)
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
