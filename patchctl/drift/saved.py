"""Files that `drift` writes: the output of `drift --json`, as a whole run for display or an earlier run to report regressions,
and plans, which `rebase --plan` checks before it starts.

A key of `drift --json` that is missing or has another type is an error; unknown keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.drift.api_diff import ApiChange
from patchctl.drift.drift import Drifting
from patchctl.drift.types import ARRIVES, PatchDrift, ReleaseDrift, StackDrift
from patchctl.errors import BadManifest, WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import BadRecord, parse
from patchctl.os_errors import named_file
from patchctl.source.types import SourceOptions
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

SCHEMA, PLAN_SCHEMA = "patchctl.drift/1", "patchctl.plan/1"
_NO_RUN = "patchctl.error/1"
_T = TypeVar("_T")


@dataclass(frozen=True)
class SavedDrift:
    """A run of `drift`: its stacks, or why it failed."""

    stacks: tuple[StackDrift, ...]
    problem: str | None = None


@dataclass(frozen=True)
class _Failure:
    what: str


@dataclass(frozen=True)
class _NoRun:
    error: _Failure


def read_drift(file: Path) -> SavedDrift:
    """Read a run, even one that ended with an error. Raises WrongUse if there is no file, BadManifest if it is not drift output."""
    return _read(file, _run_or_failure, _NOT_PRINTED, "`patchctl drift --matrix --json >FILE` makes it")


_NOT_PRINTED = "this is not what `drift --json` printed"


def _read(file: Path, read: Callable[[bytes], _T], fault: str, hint: str) -> _T:
    try:
        return read(named_file(file))
    except FileNotFoundError as error:
        raise WrongUse(f"{file} is not there", hint=hint) from error
    except (OSError, ValueError) as error:
        raise BadManifest(f"{fault}: {error}", where=str(file)) from error


def _run(data: bytes) -> SavedDrift:
    return parse(SavedDrift, data, ("schema", SCHEMA), others=True)


def _run_or_failure(data: bytes) -> SavedDrift:
    try:
        return _run(data)
    except BadRecord as error:
        if error.version != _NO_RUN:
            raise
    return SavedDrift((), parse(_NoRun, data, ("schema", _NO_RUN), others=True).error.what)


@dataclass(frozen=True)
class Broke:
    """A patch that no longer arrives, or that uses an upstream name that changed since."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    release: Annotated[str, Doc("upstream release")]
    feature: Annotated[str, Doc("feature name; FEATURE@UPSTREAM for a patch of another upstream")]
    why: Annotated[str, Doc("lost files or changed names")]


@dataclass(frozen=True)
class Appeared:
    """A release missing from the earlier run, or a branch that has moved, with the number of patches that arrive on it."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    release: Annotated[str, Doc("upstream release")]
    arrive: Annotated[int, Doc("number of the stack's patches that arrive on the release or are not needed there")]
    patches: Annotated[int, Doc("number of patches in the stack")]


@dataclass(frozen=True)
class News:
    """What changed since the earlier run."""

    broke: tuple[Broke, ...]
    appeared: tuple[Appeared, ...]


class Earlier:
    """An earlier run, by stack."""

    def __init__(self, file: Path) -> None:
        """Raises WrongUse if there is no file, BadManifest for one that `drift --json` did not print."""
        saved = _read(file, _run, _NOT_PRINTED, "the first time: `patchctl drift --matrix --json >FILE`")
        self._stacks = {(s.upstream, s.stack): s.releases for s in saved.stacks}

    def news(self, stacks: Sequence[StackDrift]) -> News:
        """Return what newly broke, and the new releases. A stack that the earlier run lacks has no news."""
        return News(tuple(self._broke(stacks)), tuple(self._appeared(stacks)))

    def _appeared(self, stacks: Sequence[StackDrift]) -> Iterator[Appeared]:
        for stack in stacks:
            if (known := self._stacks.get((stack.upstream, stack.stack))) is None:
                continue
            forms = {r.release: r.form for r in known}
            seen = {(r.release, r.form, r.commit) for r in known}
            for release in stack.releases:
                is_new = (release.release, release.form, release.commit) not in seen
                if is_new and forms.get(release.release) in (None, release.form):
                    arrive = sum(p.state in ARRIVES or p.clean for p in release.patches)
                    yield Appeared(stack.upstream, stack.stack, release.release, arrive, len(release.patches))

    def _broke(self, stacks: Sequence[StackDrift]) -> Iterator[Broke]:
        """Yield regressions. A new release is compared with the newest one of the earlier run; a new patch or stack
        with nothing.
        """
        for stack in stacks:
            known = {r.release: r for r in self._stacks.get((stack.upstream, stack.stack), ())}
            newest = next(reversed(known.values()), None)
            for release in stack.releases:
                if was := known.get(release.release, newest):
                    rows = _regressions(was, release)
                    yield from (Broke(stack.upstream, stack.stack, release.release, *row) for row in rows)


def _regressions(was: ReleaseDrift, now: ReleaseDrift) -> Iterator[tuple[str, str]]:
    """Yield what is worse than it was, and why: patches, then callers."""
    patches = {p.feature: p for p in was.patches}
    for patch in now.patches:
        if (old := patches.get(patch.feature)) and (why := _worse(patch, old)):
            yield patch.feature, why
    callers = {c.name: c.names for c in was.callers}
    for caller in now.callers:
        if why := _fresh(caller.names, callers.get(caller.name, ())):
            yield caller.name, why


def _worse(patch: PatchDrift, was: PatchDrift) -> str | None:
    if was.state in ARRIVES and patch.state not in ARRIVES and not patch.clean:
        lost = [f.path for f in patch.files if f.state not in ARRIVES]
        return f"{patch.state}: {', '.join(lost)}"
    return _fresh(patch.names, was.names)


def _fresh(changed: Iterable[ApiChange], before: Iterable[ApiChange]) -> str | None:
    known = {c.name for c in before}
    fresh = [c.name for c in changed if c.name not in known]
    return f"calls what has changed: {', '.join(fresh)}" if fresh else None


@dataclass(frozen=True)
class PlannedPatch:
    """A patch, the digest of its bytes and carried files, and drift's verdict."""

    feature: str
    digest: str
    state: str
    clean: bool


@dataclass(frozen=True)
class DriftPlan:
    """A stack at its pin and the revision it was compared with; in form sdist patchctl makes `commit` of the archive."""

    upstream: str
    stack: str
    pin: str
    release: str
    form: str
    commit: str
    patches: list[PlannedPatch]

    @property
    def again(self) -> str:
        return f"patchctl drift {self.upstream}/{self.stack} --against {self.release} --save-plan FILE"


def plan_of(dist: Distribution, found: Sequence[StackDrift]) -> DriftPlan:
    """The plan for one stack on one revision. Raises WrongUse for more."""
    if len(found) != 1 or len(found[0].releases) != 1:
        raise WrongUse(
            "a plan covers one stack on one revision", hint="drift UPSTREAM/STACK --against REVISION --save-plan FILE"
        )
    (drift,) = found
    (row,) = drift.releases
    stack = dist.stack(drift.upstream, drift.stack)
    patches = zip(load_patches(dist, stack), row.patches, strict=True)
    planned = [PlannedPatch(p.feature, p.digest, d.state, d.clean) for p, d in patches]
    return DriftPlan(drift.upstream, drift.stack, stack.pin.identity, row.release, row.form, row.commit, planned)


def check_place(file: Path) -> None:
    """Refuse to overwrite a file that is not a drift plan. Raises WrongUse."""
    if file.exists():
        try:
            read_plan(file)
        except BadManifest as error:
            raise WrongUse(f"{file} is there, and is no plan", hint="name another file") from error


def save_plan(file: Path, plan: DriftPlan) -> None:
    """Write the plan, whole or not at all."""
    replace_file(file, json.dumps({"schema": PLAN_SCHEMA, **asdict(plan)}, indent=1).encode() + b"\n")


def read_plan(file: Path) -> DriftPlan:
    """Read a plan. Raises WrongUse if there is no file, BadManifest for one that `drift --save-plan` did not write."""

    def read(data: bytes) -> DriftPlan:
        return parse(DriftPlan, data, ("schema", PLAN_SCHEMA))

    hint = "patchctl drift STACK --against REVISION --save-plan FILE"
    return _read(file, read, "this is no plan that `drift --save-plan` wrote", hint)


def check_plan(dist: Distribution, plan: DriftPlan, options: SourceOptions, progress: Progress) -> None:
    """Run drift again and compare. Raises WrongUse with everything that changed, SourceUnavailable."""
    stack = dist.stacks.get((plan.upstream, plan.stack))
    if stack is None:
        changed = [f"there is no stack {plan.upstream}/{plan.stack} any more"]
    else:
        changed = list(_changes(plan, plan_of(dist, [Drifting(dist, options, progress).stack(stack, [plan.release])])))
    if changed:
        what = "the plan is of another state:\n  " + "\n  ".join(map(one_line, changed))
        raise WrongUse(what, hint=f"look again, and make another: {plan.again}")


def _changes(plan: DriftPlan, now: DriftPlan) -> Iterator[str]:
    if plan.pin != now.pin:
        yield f"{plan.stack} is pinned to {now.pin}, and was to {plan.pin}"
    if plan.form != now.form:
        yield f"{plan.release} is had as {now.form} now, and was as {plan.form}"
    elif plan.commit != now.commit:
        yield f"{plan.release} is commit {now.commit} now, and was {plan.commit}"
    was, there = ({p.feature: p for p in one.patches} for one in (plan, now))
    for feature in dict.fromkeys([*was, *there]):
        old, new = was.get(feature), there.get(feature)
        if old is None or new is None:
            yield f"{feature} is {'new' if old is None else 'gone'}"
        elif old.digest != new.digest:
            yield f"{feature} has changed"
        elif (old.state, old.clean) != (new.state, new.clean):
            yield f"{feature} was {_said(old)}, and is {_said(new)}"
    if list(was) != list(there) and was.keys() == there.keys():
        yield "the patches have another order"


def _said(patch: PlannedPatch) -> str:
    return f"{patch.state} ({'nobody has to work' if patch.clean else 'someone has to work'})"
