"""Saves what `drift` found of one stack on one revision; `rebase --plan` checks that it still holds before it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.drift.drift import Drifting
from patchctl.drift.types import StackDrift
from patchctl.errors import BadManifest, WrongUse
from patchctl.given import named_file
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import build
from patchctl.source.types import SourceOptions
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

SCHEMA = "patchctl.plan/1"


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
            "a plan is of one stack on one revision", hint="drift UPSTREAM/STACK --against REVISION --save-plan FILE"
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
    replace_file(file, json.dumps({"schema": SCHEMA, **asdict(plan)}, indent=1).encode() + b"\n")


def read_plan(file: Path) -> DriftPlan:
    """Read a plan. Raises WrongUse if there is no file, BadManifest for one that `drift --save-plan` did not write."""
    try:
        data = json.loads(named_file(file))
        if data.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        plan: DriftPlan = build(DriftPlan, data)
    except FileNotFoundError as error:
        raise WrongUse(
            f"{file} is not there", hint="patchctl drift STACK --against REVISION --save-plan FILE"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"this is no plan that `drift --save-plan` wrote: {error}", where=str(file)) from error
    return plan


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
    return f"{patch.state} ({'nobody has to work' if patch.clean else 'somebody has to work'})"
