"""Text and JSON output of `prove`, `bisect` and `blame`. Computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.blame.bisect import Bisected, BisectRun, Unit
from patchctl.blame.blame import Blamed
from patchctl.doc import Doc
from patchctl.prove.runs import PytestOutcome, PytestRun
from patchctl.terminal.text import Style, one_line, visible_line

if TYPE_CHECKING:
    from patchctl.manifest.types import Profile
    from patchctl.prove.prove import Verdict

_REASONS = {
    "good": "the command succeeds with every patch, or cannot be told: there is nothing to look for",
    "base": "the command does not succeed without any patch: no patch broke it",
    "untold": "the command cannot tell without any patch: there is no good run to begin with",
}


def trees_of(stack: str) -> str:
    """Return the --trees folder to propose for UPSTREAM/STACK: one per stack, since existing trees are reused."""
    return f"build/trees/{stack.replace('/', '-')}"


@dataclass(frozen=True)
class ProvedFeature:
    """The result for a feature on a stack."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack that the proof is for")]
    feature: Annotated[str, Doc("feature name")]
    status: Annotated[
        str, Doc("`proven`, `not proven` or `skipped`; for a feature that the stack dropped, `met` or `not met`")
    ]
    reasons: Annotated[list[str], Doc("failures, and why tests were skipped", line=True)]
    kept: Annotated[int, Doc("number of runs reused from the record")]
    base: Annotated[list[PytestOutcome], Doc("test results on the unpatched trees")]
    patched: Annotated[list[PytestOutcome], Doc("test results on the patched trees")]
    mutants: Annotated[dict[str, list[PytestOutcome]], Doc("test results on each mutation, up to the first failure")]


@dataclass(frozen=True)
class ProveOutput:
    """What `prove` prints."""

    features: Annotated[list[ProvedFeature], Doc("one entry per feature and stack, in stack order")]
    problems: Annotated[
        Sequence[str],
        Doc("with `--all`: tests and mutations outside any feature's folder, as reported by the rule `left-over`"),
    ]


def prove_output(verdicts: Sequence[Verdict], orphans: Sequence[str]) -> ProveOutput:
    """Return the features, with the outcomes of tests that ran now."""
    features = []
    for v in verdicts:
        mutants = {name: run.outcomes for name, run in v.mutants.items()}
        head = (v.upstream, v.stack, v.feature, v.status, v.reasons, v.kept)
        features.append(ProvedFeature(*head, v.base.outcomes, v.patched.outcomes, mutants))
    return ProveOutput(features, orphans)


def verdict_text(verdict: Verdict, style: Style, trees: str | None) -> Iterator[str]:
    """Yield a line that sums up a feature, its problems, and how to run it again.

    `trees` is the folder of --trees; None if the trees are deleted when the run ends.
    """
    paints = {"proven": style.good, "met": style.good, "not proven": style.bad, "not met": style.bad}
    word = paints.get(verdict.status, style.note)(verdict.status)
    wanted = ("passed", "on green unpatched") if verdict.dropped else ("failed", "on red unpatched")
    shown = [
        _ratio(verdict.base, "on", *wanted),
        _ratio(verdict.base, "off", "passed", "off green unpatched"),
        *(_ratio(verdict.patched, mark, "passed", f"{mark} green patched") for mark in ("on", "off", "misuse")),
        _mutants(verdict),
        f"{verdict.skipped} skipped" if verdict.skipped else "",
        f"{verdict.kept} runs on record" if verdict.kept else "",
    ]
    yield f"{word}: {verdict.upstream}/{verdict.stack} {verdict.feature}: {', '.join(filter(None, shown)) or 'nothing ran'}"
    yield from (f"    {visible_line(reason)}" for reason in verdict.reasons)
    yield from (f"    output: {visible_line(str(one.log))}" for one in verdict.bad if one.log)
    again = [one.command for one in verdict.bad]
    if again and trees is None:
        stack = f"{verdict.upstream}/{verdict.stack}"
        kept = f"--trees {trees_of(stack)}    (keeps the trees for pytest)"
        again = [f"patchctl prove {verdict.feature} --stack {stack} {kept}"]
    yield from (f"    again: {visible_line(command)}" for command in again)


def _mutants(verdict: Verdict) -> str:
    red = [run.red.mark if run.red else None for run in verdict.mutants.values()]
    by_misuse = f", {count} by misuse tests" if (count := red.count("misuse")) else ""
    return f"{len(red) - red.count(None)}/{len(red)} mutants red{by_misuse}" if red else ""


def _ratio(run: PytestRun, mark: str, result: str, meaning: str) -> str:
    marked = [one for one in run.outcomes if one.mark == mark]
    return f"{sum(one.result == result for one in marked)}/{len(marked)} {meaning}" if marked else ""


def summary_text(verdicts: Sequence[Verdict], orphans: Sequence[str], style: Style) -> Iterator[str]:
    """Yield mutations without a feature, then the number of proven features."""
    yield from (style.bad(visible_line(orphan)) for orphan in orphans)
    counts = Counter(verdict.status for verdict in verdicts)
    yield ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "nothing to prove"


@dataclass(frozen=True)
class BisectOutput:
    """What `bisect` prints."""

    profile: Annotated[str, Doc("profile name")]
    release: Annotated[str | None, Doc("release of the profile; null if the profile names its stacks itself")]
    order: Annotated[
        list[list[str]], Doc("patches as FEATURE@UPSTREAM, in the order applied; those in one list require each other")
    ]
    tried: Annotated[tuple[BisectRun, ...], Doc("runs of the command")]
    broken: Annotated[
        list[list[str]], Doc("entries of `order` that break the command; several if the runs between them were skipped")
    ]
    reason: Annotated[
        str | None,
        Doc(
            "why no entry breaks it: `good` (succeeds with all patches), `base` (fails without any) or `untold` (cannot tell without any);"
            " null otherwise"
        ),
    ]


def bisect_output(found: Bisected, profile: Profile) -> BisectOutput:
    """Return the result, with the names of the patches."""
    order, broken = ([_unit(u) for u in units] for units in (found.order, found.broken))
    return BisectOutput(profile.name, profile.release, order, found.tried, broken, found.reason)


def _unit(unit: Unit) -> list[str]:
    return [f"{feature}@{upstream}" for upstream, feature in unit]


def step_text(step: BisectRun, units: int) -> str:
    """Return the line for a completed run."""
    return f"{step.applied} of {units} patches: {step.outcome} (exit code {step.code}, {step.seconds:.1f} s)"


def bisect_text(found: Bisected, style: Style) -> Iterator[str]:
    """Yield the patch, or why there is none."""
    if found.reason is not None:
        yield style.note(_REASONS[found.reason])
        return
    for unit in found.broken:
        yield f"{style.bad('broken by')} {visible_line(' and '.join(_unit(unit)))}"
    if len(found.broken) > 1:
        yield "runs between them were skipped: it is one of these"
    yield f"found in {len(found.tried)} runs over {len(found.order)} patches"


@dataclass(frozen=True)
class BlameOutput:
    """What `blame` prints."""

    lines: Annotated[list[Blamed], Doc("lines, in traceback order")]


def blame_text(found: Sequence[Blamed], style: Style) -> Iterator[str]:
    """Yield a line for each place, with the details of a patch below it."""
    for one in found:
        often = f"  ({one.place.count} times)" if one.place.count > 1 else ""
        place = visible_line(f"{one.place.file}:{one.place.line}") + often
        if one.owner is None:
            yield f"{place}  {style('not ours' if one.upstream is None else 'cannot tell', dim=True)}: {one_line(one.why or '')}"
            continue
        where = f"{one.upstream}/{one.stack}"
        owner = style.bad(one.owner) if one.patch else style.note(one.owner)
        yield f"{place}  {owner}  {visible_line(where)}" + (f"  ({one_line(one.why)})" if one.why else "")
        if one.text:
            yield f"    {one_line(one.text, 160)}"
        if one.patch:
            yield f"    patch {visible_line(one.patch)}"
            yield f"    switch {one_line(one.switch or 'none', 200)}"
        if one.page:
            yield f"    page {visible_line(one.page)}"
