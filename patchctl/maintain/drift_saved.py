"""Reads what `drift --json` printed, for a reader that shows it: what it has not, or of another type, is an error; what it has
more is passed over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchctl.errors import BadManifest, WrongUse
from patchctl.given import named_file
from patchctl.maintain.drift_since import SCHEMA
from patchctl.manifest.shape import Shape, build, fields_of, shape_of

_NO_RUN = "patchctl.error/1"


@dataclass(frozen=True)
class SavedName:
    """A name of upstream's that a patch uses, and that changed."""

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
    """A patch on a release; the words are those of drift_types."""

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
    """A patch of another upstream that calls what changed."""

    upstream: str
    feature: str
    names: list[SavedName]
    proof: str | None

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class SavedRelease:
    """A stack on a release. Runs of earlier patchctls have no callers."""

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
    """A run of `drift`: its stacks, or why it came to nothing."""

    stacks: tuple[SavedStack, ...]
    problem: str | None = None


def read_drift(file: Path) -> SavedDrift:
    """A run that ended with an error is one too. Raises WrongUse where no file is, BadManifest for what `drift` did not print."""
    try:
        data = json.loads(named_file(file))
        if data["schema"] == _NO_RUN:
            what = data["error"]["what"]
            return SavedDrift((), what if isinstance(what, str) else "")
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        stacks: list[SavedStack] = build(_STACKS, _known(shape_of(_STACKS), data["stacks"]))
    except FileNotFoundError as error:
        raise WrongUse(f"{file} is not there", hint="`patchctl drift --matrix --json >FILE` makes it") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"this is not what `drift --json` printed: {error}", where=str(file)) from error
    return SavedDrift(tuple(stacks))


def _known(shape: Shape, data: Any) -> Any:
    """The data without keys that the classes do not have."""
    if shape.is_record and isinstance(data, Mapping):
        fields = fields_of(shape.base).items()
        return {name: _known(one.shape, data[name]) for name, one in fields if one.required or name in data}
    if shape.origin is list and isinstance(data, list):
        return [_known(shape_of(shape.args[0]), item) for item in data]
    return data
