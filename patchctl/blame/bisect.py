"""Finds the patch of a profile that breaks a command, by bisecting the patches of all its stacks.

The patches are put in one order across upstreams that preserves stack order and puts requirements first, so that any
prefix applies. Patches that require each other stay together. Each step builds new trees in a temporary folder: files
that the command leaves behind do not affect later steps, and no workspace changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from patchctl import process_group
from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile
from patchctl.scratch import scratch
from patchctl.source.types import SourceOptions
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import Selection, make_plan, select
from patchctl.terminal.progress import Progress
from patchctl.workspace.apply import apply_plan

# `git bisect run` skips on 125; a shell exits with 126 or 127 if it cannot run a command, and with 130 on an interrupt.
_SKIP, _CANNOT, _INTERRUPTED = 125, (126, 127), 130
Outcome = Literal["good", "bad", "skipped"]


Unit = tuple[tuple[str, str], ...]
"""Patches applied together, as (upstream, feature): one, or several that require each other."""


@dataclass(frozen=True)
class BisectRun:
    """A run of the command."""

    applied: Annotated[int, Doc("number of entries of `order` applied")]
    outcome: Annotated[Outcome, Doc("`good`, `bad` or `skipped`")]
    code: Annotated[int, Doc("exit code of the command; negative if a signal killed it")]
    seconds: Annotated[float, Doc("run time of the command, without building the trees")]


@dataclass(frozen=True)
class Bisected:
    """The order, the runs, and the units that may break the command.

    Usually one unit is broken; more if runs were skipped. None if the command fails without any patch (`reason` base), cannot tell
    without any (`untold`), or succeeds with all of them (`good`).
    """

    order: tuple[Unit, ...]
    tried: tuple[BisectRun, ...]
    broken: tuple[Unit, ...] = ()
    reason: str | None = None


def in_order(patches: Mapping[str, Sequence[StackPatch]]) -> list[Unit]:
    """Return all patches, each after those it requires and after its predecessors in the stack."""
    needed = dict(_needs(patches))
    done: set[tuple[str, str]] = set()
    units: list[Unit] = []
    while len(done) < len(needed):
        closures = (_closure(key, needed, done) for key in needed if key not in done)
        smallest = min(closures, key=len)  # one, unless patches require each other
        units.append(tuple(smallest))
        done |= set(smallest)
    return units


def _needs(patches: Mapping[str, Sequence[StackPatch]]) -> Iterator[tuple[tuple[str, str], list[tuple[str, str]]]]:
    for upstream, series in patches.items():
        before: list[tuple[str, str]] = []
        for patch in series:
            required = [(other or upstream, feature) for feature, other in patch.requires]
            yield (upstream, patch.feature), [*before[-1:], *required]
            before.append((upstream, patch.feature))


def _closure(
    key: tuple[str, str], needed: Mapping[tuple[str, str], Sequence[tuple[str, str]]], done: set[tuple[str, str]]
) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    waiting = [key]
    while waiting:
        one = waiting.pop()
        if one not in done and one not in found and one in needed:
            found[one] = None
            waiting += needed[one]
    return [one for one in needed if one in found]


class Bisection:
    """One search. `tell` is called after every run."""

    def __init__(
        self,
        dist: Distribution,
        profile: Profile,
        without: Sequence[str],
        options: SourceOptions,
        progress: Progress,
        tell: Callable[[BisectRun, int], None],
    ) -> None:
        self._dist, self._profile, self._without = dist, profile, tuple(without)
        self._options, self._progress, self._tell = options, progress, tell
        chosen = select(dist, profile, self._without)
        out = {id(o.patch) for o in chosen.omitted}
        kept = {u: [p for p in series if id(p) not in out] for u, series in chosen.patches.items()}
        self.order = in_order(kept)
        self._tried: list[BisectRun] = []

    def search(self, command: Sequence[str]) -> Bisected:
        """Run the command with all patches, with none, then with halves.

        Raises WrongUse if it cannot be run, KeyboardInterrupt, SourceUnavailable.
        """
        low, high = 0, len(self.order)
        if self._run(command, high) != "bad":
            return self._result("good")
        if (without := self._run(command, low)) != "good":
            return self._result("base" if without == "bad" else "untold")
        skipped: set[int] = set()
        while left := [n for n in range(low + 1, high) if n not in skipped]:
            middle = min(left, key=lambda n: abs(2 * n - low - high))
            outcome = self._run(command, middle)
            if outcome == "good":
                low = middle
            elif outcome == "bad":
                high = middle
            else:
                skipped.add(middle)
        return Bisected(tuple(self.order), tuple(self._tried), tuple(self.order[low:high]))

    def _result(self, reason: str) -> Bisected:
        return Bisected(tuple(self.order), tuple(self._tried), reason=reason)

    def _run(self, command: Sequence[str], applied: int) -> Outcome:
        with scratch("patchctl-bisect-") as folder:
            workspace = folder / "workspace"
            later = [f"{feature}@{u}" for unit in self.order[applied:] for u, feature in unit]
            selection = select(self._dist, self._profile, (*self._without, *later))
            plan = make_plan(self._dist, selection, self._options, self._progress, without=later)
            self._progress.finish()
            apply_plan(workspace, plan, self._dist.root, {}, stash=False)
            self._progress.rest()  # the command has the terminal
            began = time.monotonic()
            code = _ended(command, workspace, self._environment(selection, workspace))
            done = BisectRun(applied, _outcome(command, code), code, round(time.monotonic() - began, 3))
        self._tried.append(done)
        self._tell(done, len(self.order))
        return done.outcome

    def _environment(self, selection: Selection, workspace: Path) -> dict[str, str]:
        """Return the command's environment: the trees come first on Python's path, and their locations are named."""
        packages = {(u, path) for u in selection.stacks for path in self._dist.upstream(u).packages.items()}
        tops = {
            str(workspace / u / path.removesuffix(name.replace(".", "/"))).rstrip("/") for u, (name, path) in packages
        }
        before = os.environ.get("PYTHONPATH")
        python = os.pathsep.join([*sorted(tops), *([before] if before else [])])
        return {
            **os.environ,
            "PATCHCTL_WORKSPACE": str(workspace),
            "PYTHONPATH": python,
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _ended(command: Sequence[str], workspace: Path, env: Mapping[str, str]) -> int:
    """Run the command to its end and return its exit code; its output goes to standard error."""
    try:
        done = process_group.run(
            list(command), cwd=workspace, env=dict(env), stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno()
        )
    except OSError as error:
        raise WrongUse(f"{command[0]} cannot be run: {error.strerror}") from error
    return done.returncode


def _outcome(command: Sequence[str], code: int) -> Outcome:
    """Exit codes as in `git bisect run`; 126 and 127 mean that the command did not run."""
    if code in _CANNOT:
        raise WrongUse(f"{command[0]} ended with {code}: a shell says so where a command cannot be run")
    if code in (_INTERRUPTED, -2):
        raise KeyboardInterrupt
    return "good" if code == 0 else "skipped" if code == _SKIP else "bad"
