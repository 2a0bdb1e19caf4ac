"""What is worse than an earlier run found: for a job that runs each morning and shall speak only of what is new."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchctl.errors import BadManifest, WrongUse
from patchctl.maintain.drift_types import ARRIVES, PatchDrift, StackDrift
from patchctl.values import dataclass

SCHEMA = "patchctl.drift/1"
_Seen = Mapping[str, tuple[bool, frozenset[str]]]


@dataclass(frozen=True)
class Broke:
    """A patch that arrived and does not any longer, or that calls something which was there and is not what it was."""

    upstream: str
    stack: str
    release: str
    feature: str
    why: str


class Earlier:
    """An earlier run, by stack: its releases in their order, each with what was found of every feature."""

    def __init__(self, file: Path) -> None:
        """Raises WrongUse where nothing is there, BadManifest for what no run of `drift --json` printed."""
        try:
            data = json.loads(file.read_bytes())
            if data["schema"] != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            self._stacks = {(s["upstream"], s["stack"]): _releases(s["releases"]) for s in data["stacks"]}
        except FileNotFoundError as error:
            hint = "the first time: `patchctl drift --matrix --json >FILE`"
            raise WrongUse(f"{file} is not there", hint=hint) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadManifest(f"this is not what `drift --json` printed: {error}", where=str(file)) from error

    def broke(self, stacks: Sequence[StackDrift]) -> list[Broke]:
        """What is worse now. A release that is new is held against the newest that was known then; a patch that is new, or a
        stack, against nothing."""
        found = []
        for stack in stacks:
            known = self._stacks.get((stack.upstream, stack.stack), {})
            newest = next(reversed(known.values()), {})
            for release in stack.releases:
                was = known.get(release.release, newest)
                for patch in release.patches:
                    if patch.feature in was and (why := _worse(patch, *was[patch.feature])):
                        found.append(Broke(stack.upstream, stack.stack, release.release, patch.feature, why))
        return found


def _worse(patch: PatchDrift, arrived: bool, names: frozenset[str]) -> str | None:
    if arrived and patch.state not in ARRIVES and not patch.clean:
        lost = [f.path for f in patch.files if f.state not in ARRIVES]
        return f"{patch.state}: {', '.join(lost)}"
    fresh = [c.name for c in patch.names if c.name not in names]
    return f"calls what has changed: {', '.join(fresh)}" if fresh else None


def _releases(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Seen]:
    return {
        str(r["release"]): {
            str(p["feature"]): (p["state"] in ARRIVES, frozenset(str(c["name"]) for c in p["names"]))
            for p in r["patches"]
        }
        for r in rows
    }  # fmt: skip
