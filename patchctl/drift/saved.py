"""Files that `drift` writes: the output of `drift --json`, as a whole run for display or an earlier run to report regressions,
and plans, which `rebase --plan` checks before it starts.

A key of `drift --json` that is missing or has another type is an error; unknown keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.drift.api_diff import ApiChange
from patchctl.drift.drift import Drifting
from patchctl.drift.types import ARRIVES, PatchDrift, StackDrift
from patchctl.errors import BadManifest, WrongUse
from patchctl.given import named_file
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import Shape, build, fields_of, shape_of
from patchctl.source.types import SourceOptions
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

SCHEMA = "patchctl.drift/1"
_NO_RUN = "patchctl.error/1"
_T = TypeVar("_T")


@dataclass(frozen=True)
class SavedName:
    """An upstream name that a patch uses and that changed."""

    name: str
    was: str
    now: str | None


@dataclass(frozen=True)
class SavedFile:
    """A file of a patch on a release."""

    path: str
    state: str
    target: str | None


@dataclass(frozen=True)
class SavedPatch:
    """A patch on a release, in the terms of drift.types."""

    feature: str
    state: str
    files: list[SavedFile]
    names: list[SavedName]
    taken: str | None
    proof: str | None
    stale: bool
    clean: bool


@dataclass(frozen=True)
class SavedCaller:
    """A patch of another upstream that uses changed names."""

    upstream: str
    feature: str
    names: list[SavedName]
    proof: str | None

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class SavedRelease:
    """A stack on a release. Earlier versions of patchctl wrote no callers."""

    release: str
    form: str
    commit: str
    patches: list[SavedPatch]
    callers: list[SavedCaller] = field(default_factory=list)


@dataclass(frozen=True)
class SavedStack:
    """A stack on all releases of the run."""

    upstream: str
    stack: str
    releases: list[SavedRelease]


_STACKS = list[SavedStack]


@dataclass(frozen=True)
class SavedDrift:
    """A run of `drift`: its stacks, or why it failed."""

    stacks: tuple[SavedStack, ...]
    problem: str | None = None


def read_drift(file: Path) -> SavedDrift:
    """Read a run, even one that ended with an error. Raises WrongUse if there is no file, BadManifest if it is not drift output."""
    return _from_json(file, _saved, "`patchctl drift --matrix --json >FILE` makes it")


def _from_json(file: Path, read: Callable[[Any], _T], hint: str) -> _T:
    try:
        return read(json.loads(named_file(file)))
    except FileNotFoundError as error:
        raise WrongUse(f"{file} is not there", hint=hint) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"this is not what `drift --json` printed: {error}", where=str(file)) from error


def _stacks_in(data: Any) -> Any:
    if data["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    return data["stacks"]


def _saved(data: Any) -> SavedDrift:
    if data["schema"] == _NO_RUN:
        what = data["error"]["what"]
        return SavedDrift((), what if isinstance(what, str) else "")
    stacks: list[SavedStack] = build(_STACKS, _known(shape_of(_STACKS), _stacks_in(data)))
    return SavedDrift(tuple(stacks))


def _known(shape: Shape, data: Any) -> Any:
    """Return the data without keys unknown to the classes."""
    if shape.is_record and isinstance(data, Mapping):
        fields = fields_of(shape.base).items()
        return {name: _known(one.shape, data[name]) for name, one in fields if one.required or name in data}
    if shape.origin is list and isinstance(data, list):
        return [_known(shape_of(shape.args[0]), item) for item in data]
    return data


_Seen = dict[str, tuple[bool, frozenset[str]]]
_NONE: tuple[bool, frozenset[str]] = (True, frozenset())
_CALLERS = "@"  # not a feature name


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
    """An earlier run, by stack: its releases in order, each with the verdict on every feature."""

    def __init__(self, file: Path) -> None:
        """Raises WrongUse if there is no file, BadManifest for one that `drift --json` did not print."""
        self._stacks, self._heads = _from_json(file, _earlier, "the first time: `patchctl drift --matrix --json >FILE`")

    def news(self, stacks: Sequence[StackDrift]) -> News:
        """Return what newly broke, and the new releases. A stack that the earlier run lacks has no news."""
        return News(tuple(self._broke(stacks)), tuple(self._appeared(stacks)))

    def _appeared(self, stacks: Sequence[StackDrift]) -> Iterator[Appeared]:
        for stack in stacks:
            if (known := self._heads.get((stack.upstream, stack.stack))) is None:
                continue
            forms = {name: form for name, form, _ in known}
            for release in stack.releases:
                seen = release.release, release.form, release.commit
                if seen not in known and forms.get(release.release) in (None, release.form):
                    arrive = sum(p.state in ARRIVES or p.clean for p in release.patches)
                    yield Appeared(stack.upstream, stack.stack, release.release, arrive, len(release.patches))

    def _broke(self, stacks: Sequence[StackDrift]) -> list[Broke]:
        """Return regressions. A new release is compared with the newest one of the earlier run; a new patch or stack
        with nothing.
        """
        found = []
        for stack in stacks:
            known = self._stacks.get((stack.upstream, stack.stack), {})
            newest = next(reversed(known.values()), {})
            for release in stack.releases:
                was = known.get(release.release, newest)
                worse = [(p.feature, _worse(p, *was[p.feature])) for p in release.patches if p.feature in was]
                if _CALLERS in was:  # otherwise that run did not check them
                    worse += [(c.name, _fresh(c.names, was.get(c.name, _NONE)[1])) for c in release.callers]
                rows = ((feature, why) for feature, why in worse if why)
                found += [Broke(stack.upstream, stack.stack, release.release, *row) for row in rows]
        return found


def _worse(patch: PatchDrift, arrived: bool, names: frozenset[str]) -> str | None:
    if arrived and patch.state not in ARRIVES and not patch.clean:
        lost = [f.path for f in patch.files if f.state not in ARRIVES]
        return f"{patch.state}: {', '.join(lost)}"
    return _fresh(patch.names, names)


def _fresh(changed: Iterable[ApiChange], names: frozenset[str]) -> str | None:
    fresh = [c.name for c in changed if c.name not in names]
    return f"calls what has changed: {', '.join(fresh)}" if fresh else None


_Heads = dict[tuple[str, str], set[tuple[str, str, str]]]


def _earlier(data: Any) -> tuple[dict[tuple[str, str], dict[str, _Seen]], _Heads]:
    """Return the verdicts of each stack by release, and its releases with their forms and commits."""
    stacks = _stacks_in(data)
    heads = {
        (s["upstream"], s["stack"]): {(str(r["release"]), str(r["form"]), str(r["commit"])) for r in s["releases"]}
        for s in stacks
    }
    return {(s["upstream"], s["stack"]): _releases(s["releases"]) for s in stacks}, heads


def _releases(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Seen]:
    return {str(r["release"]): _seen(r) for r in rows}


def _seen(release: Mapping[str, Any]) -> _Seen:
    """Return the verdicts by feature for patches, and by FEATURE@UPSTREAM for callers."""
    found = {str(p["feature"]): (p["state"] in ARRIVES, _called(p)) for p in release["patches"]}
    if "callers" in release:
        found |= {_CALLERS: _NONE} | {f"{c['feature']}@{c['upstream']}": (True, _called(c)) for c in release["callers"]}
    return found


def _called(row: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(c["name"]) for c in row["names"])


PLAN_SCHEMA = "patchctl.plan/1"


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
    replace_file(file, json.dumps({"schema": PLAN_SCHEMA, **asdict(plan)}, indent=1).encode() + b"\n")


def read_plan(file: Path) -> DriftPlan:
    """Read a plan. Raises WrongUse if there is no file, BadManifest for one that `drift --save-plan` did not write."""
    try:
        data = json.loads(named_file(file))
        if data.pop("schema") != PLAN_SCHEMA:
            raise ValueError(f"its schema is not {PLAN_SCHEMA}")
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
