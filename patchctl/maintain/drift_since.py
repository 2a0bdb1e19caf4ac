"""What is worse than an earlier run found: for a job that runs each morning and shall speak only of what is new."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchctl.errors import BadManifest, WrongUse
from patchctl.given import named_file
from patchctl.maintain.drift_types import ARRIVES, PatchDrift, StackDrift
from patchctl.maintain.tripwires import Changed

SCHEMA = "patchctl.drift/1"
_Seen = dict[str, tuple[bool, frozenset[str]]]
_NONE: tuple[bool, frozenset[str]] = (True, frozenset())
_CALLERS = "@"  # no name of a feature


@dataclass(frozen=True)
class Broke:
    """A patch that arrived and does not any longer, or that calls something which was there and is not what it was."""

    upstream: str
    stack: str
    release: str
    feature: str
    why: str


@dataclass(frozen=True)
class Appeared:
    """A release that the earlier run did not name, and how many of the stack's patches arrive on it."""

    upstream: str
    stack: str
    release: str
    arrive: int
    patches: int


@dataclass(frozen=True)
class News:
    """What a run found that the earlier one had not."""

    broke: tuple[Broke, ...]
    appeared: tuple[Appeared, ...]


class Earlier:
    """An earlier run, by stack: its releases in their order, each with what was found of every feature."""

    def __init__(self, file: Path) -> None:
        """Raises WrongUse where nothing is there, BadManifest for what no run of `drift --json` printed."""
        try:
            data = json.loads(named_file(file))
            if data["schema"] != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            self._stacks = {(s["upstream"], s["stack"]): _releases(s["releases"]) for s in data["stacks"]}
        except FileNotFoundError as error:
            hint = "the first time: `patchctl drift --matrix --json >FILE`"
            raise WrongUse(f"{file} is not there", hint=hint) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadManifest(f"this is not what `drift --json` printed: {error}", where=str(file)) from error

    def news(self, stacks: Sequence[StackDrift]) -> News:
        """What newly broke, and the releases that are new. Of a stack that the earlier run did not look at, nothing is news."""
        return News(tuple(self._broke(stacks)), tuple(self._appeared(stacks)))

    def _appeared(self, stacks: Sequence[StackDrift]) -> Iterator[Appeared]:
        for stack in stacks:
            if (known := self._stacks.get((stack.upstream, stack.stack))) is None:
                continue
            for release in stack.releases:
                if release.release not in known:
                    arrive = sum(p.state in ARRIVES or p.clean for p in release.patches)
                    yield Appeared(stack.upstream, stack.stack, release.release, arrive, len(release.patches))

    def _broke(self, stacks: Sequence[StackDrift]) -> list[Broke]:
        """What is worse now. A release that is new is held against the newest that was known then; a patch that is new, or a
        stack, against nothing."""
        found = []
        for stack in stacks:
            known = self._stacks.get((stack.upstream, stack.stack), {})
            newest = next(reversed(known.values()), {})
            for release in stack.releases:
                was = known.get(release.release, newest)
                worse = [(p.feature, _worse(p, *was[p.feature])) for p in release.patches if p.feature in was]
                if _CALLERS in was:  # else that run did not look at them
                    worse += [(c.name, _fresh(c.names, was.get(c.name, _NONE)[1])) for c in release.callers]
                rows = ((feature, why) for feature, why in worse if why)
                found += [Broke(stack.upstream, stack.stack, release.release, *row) for row in rows]
        return found


def _worse(patch: PatchDrift, arrived: bool, names: frozenset[str]) -> str | None:
    if arrived and patch.state not in ARRIVES and not patch.clean:
        lost = [f.path for f in patch.files if f.state not in ARRIVES]
        return f"{patch.state}: {', '.join(lost)}"
    return _fresh(patch.names, names)


def _fresh(changed: Iterable[Changed], names: frozenset[str]) -> str | None:
    fresh = [c.name for c in changed if c.name not in names]
    return f"calls what has changed: {', '.join(fresh)}" if fresh else None


def _releases(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Seen]:
    return {str(r["release"]): _seen(r) for r in rows}


def _seen(release: Mapping[str, Any]) -> _Seen:
    """By feature of a patch, and by FEATURE@UPSTREAM of a caller."""
    found = {str(p["feature"]): (p["state"] in ARRIVES, _called(p)) for p in release["patches"]}
    if "callers" in release:
        found |= {_CALLERS: _NONE} | {f"{c['feature']}@{c['upstream']}": (True, _called(c)) for c in release["callers"]}
    return found


def _called(row: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(c["name"]) for c in row["names"])
