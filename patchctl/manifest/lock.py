"""The lock: what every stack must give, generated and checked in, so that any difference is found before it trains.

One JSON file a stack, manifests/locks/<upstream>/<stack>.json. JSON and not YAML, since no person writes it and it is read
on every run. The blobs before and after each patch stand once; a record a form follows for each set of features left out
by some profile. A form that nobody could compute is "unknown".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.errors import BadManifest, Where
from patchctl.manifest.records import BadRecord, parse
from patchctl.manifest.types import Pattern, Pin, Stack

VERSION = 1
UNKNOWN = "unknown"


# Half of a surrogate pair is text to JSON and to Python, and no file can hold it.
Text = Annotated[str, Pattern(r"[^\ud800-\udfff]*", "a text")]


@dataclass(frozen=True)
class LockedFile:
    """A file that a patch touches: (mode in octal, blob id) before and after; None where it does not exist."""

    path: Text
    before: tuple[Text, Text] | None
    after: tuple[Text, Text] | None


@dataclass(frozen=True)
class LockedPatch:
    """A patch by its digest (patchctl.stack.patches), with its files; None when no form could be computed."""

    file: Text
    feature: Text
    digest: Text
    files: tuple[LockedFile, ...] | None


@dataclass(frozen=True)
class LockedForm:
    """What one form gives. `unavailable` names the features that cannot be had from it."""

    base_commit: Text
    base_tree: Text
    tip_commit: Text
    tip_tree: Text
    unavailable: tuple[Text, ...] = ()


@dataclass(frozen=True)
class LockedResult:
    """The results with the features `without` left out, by form; UNKNOWN where it was not computed."""

    without: tuple[Text, ...]
    forms: dict[Text, LockedForm | Text]


@dataclass(frozen=True)
class Lock:
    """One stack's lock file."""

    upstream: Text
    stack: Text
    pin: dict[Text, Text | None]
    patches: tuple[LockedPatch, ...]
    results: tuple[LockedResult, ...] = field(default_factory=tuple)

    def expected(self, form: str, without: frozenset[str]) -> LockedForm | None:
        """The record for this form with exactly these features left out, those unavailable from the form included."""
        for result in self.results:
            record = result.forms.get(form)
            if isinstance(record, LockedForm) and frozenset(result.without) | frozenset(record.unavailable) == without:
                return record
        return None


def lock_file(root: Path, upstream: str, stack: str) -> Path:
    """Where the lock of a stack lies."""
    return root / "manifests" / "locks" / upstream / f"{stack}.json"


def lock_digest(root: Path, stacks: Iterable[Stack]) -> str | None:
    """One sha256 for the locks of several stacks: of a line `UPSTREAM/STACK SHA256` each, in order; None if one has none."""
    lines = []
    for name, file in sorted((f"{s.upstream}/{s.name}", lock_file(root, s.upstream, s.name)) for s in stacks):
        if not file.is_file():
            return None
        lines.append(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def pin_record(pin: Pin) -> dict[str, str | None]:
    """The pin as the lock repeats it."""
    return {"commit": pin.commit, "tree": pin.tree, "sdist_sha256": pin.sdist.sha256 if pin.sdist else None}


class DamagedLock(BadManifest):
    """The file is no lock: cut off, empty, or with a merge's conflicts in it. Nothing can be taken from it."""


def read_lock(root: Path, stack: Stack) -> Lock | None:
    """The lock of a stack, or None when it has none. Raises DamagedLock, and BadManifest when it cannot be used."""
    file = lock_file(root, stack.upstream, stack.name)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadManifest(f"the lock cannot be read: {error}", where=Where(str(file))) from error
    except UnicodeDecodeError as error:
        raise _damaged(file, error) from error
    try:
        return parse(Lock, text, ("version", VERSION), others=True)
    except BadRecord as error:
        if error.version is None:
            raise _damaged(file, error) from error
        hint = "a newer patchctl may have written it"
        raise BadManifest(f"the lock cannot be used: {error}", where=Where(str(file)), hint=hint) from error


def _damaged(file: Path, error: Exception) -> DamagedLock:
    hint = "it is generated: `patchctl lock` writes it again"
    return DamagedLock(f"the lock cannot be used: {error}", where=Where(str(file)), hint=hint)


def render_lock(lock: Lock) -> str:
    """The file's text: the same lock gives the same bytes."""
    data = {"version": VERSION, **asdict(lock)}
    data["comment"] = "generated by `patchctl lock`; do not edit"
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
