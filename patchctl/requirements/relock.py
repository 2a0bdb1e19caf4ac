"""Recreates the locks of requirements, or reports how they would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS, Platform
from patchctl.requirements.declared import FILE, Declared, collect, read_declared, render, stale
from patchctl.requirements.inputs import inputs_of
from patchctl.requirements.lockfile import RequirementsLock, lock_path, read_lock
from patchctl.requirements.lockfile import render as render_lock
from patchctl.requirements.resolver import resolve_inputs
from patchctl.requirements.sets import NamedSet, all_sets, read_set
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress


@dataclass(frozen=True)
class LockedSet:
    """The lock of a requirement set on a platform."""

    name: Annotated[str, Doc("release name")]
    platform: Annotated[Platform, Doc("`x86_64` or `aarch64`")]
    file: Annotated[str, Doc("path of the lock")]
    packages: Annotated[int, Doc("number of packages")]
    elsewhere: Annotated[int, Doc("number of these from another index, without digests")]
    differences: Annotated[tuple[str, ...], Doc("differences from the existing lock")]
    written: Annotated[bool, Doc("true if the lock was written")]


def relock(
    dist: Distribution, options: SourceOptions, progress: Progress, *, check: bool, only: str | None = None
) -> list[LockedSet]:
    """Resolve every set used by a profile, or `only` one, for every platform, keeping locked versions where allowed.

    Writes the locks unless `check`. Sources are read only if declared.txt is outdated. Raises NoSolution,
    SourceUnavailable and WrongUse like `resolve_inputs` and `collect`; then nothing of that set is written.
    """
    chosen = [read_set(dist, only)] if only else all_sets(dist)
    return [row for named in chosen for row in _set(dist, named, options, progress, check=check)]


def _set(
    dist: Distribution, named: NamedSet, options: SourceOptions, progress: Progress, *, check: bool
) -> Iterator[LockedSet]:
    declared = _declared(dist, named, options, progress)
    inputs = inputs_of(dist, named, declared)
    texts: dict[Path, str] = {named.folder / FILE: render(declared)}
    found = []
    for platform in PLATFORMS:
        progress.note(f"resolving {named.name} for {platform}")
        old = _there(named, platform)
        lock = resolve_inputs(inputs, platform, old if isinstance(old, RequirementsLock) else None)
        found.append((lock, tuple(_differences(old, lock))))
        if found[-1][1]:
            texts |= {lock_path(named, platform, elsewhere=e): text for e, text in render_lock(lock, named).items()}
    progress.finish()
    for path, text in texts.items() if not check else ():
        replace_file(path, text.encode())
    for lock, differences in found:
        elsewhere = sum(1 for p in lock.packages.values() if p.index is not None)
        file = str(lock_path(named, lock.platform))
        written = bool(differences) and not check
        yield LockedSet(named.name, lock.platform, file, len(lock.packages), elsewhere, differences, written)


def _declared(dist: Distribution, named: NamedSet, options: SourceOptions, progress: Progress) -> list[Declared]:
    """Return declared.txt if it is current, else what the sources declare."""
    try:
        there = read_declared(named)
    except BadManifest:
        there = []
    return there if there and not list(stale(dist, named, there)) else collect(dist, named, there, options, progress)


def _there(named: NamedSet, platform: Platform) -> RequirementsLock | str:
    """Return the existing lock, or why it cannot be read."""
    try:
        return read_lock(named, platform)
    except BadManifest as error:
        return error.what


def _differences(old: RequirementsLock | str, lock: RequirementsLock) -> Iterator[str]:
    """Yield how the new lock differs from the existing one, ignoring the resolver's version."""
    if isinstance(old, str):
        yield old
        return
    if old.input != lock.input:
        yield "it was resolved from other inputs"
    for name in sorted(old.packages.keys() | lock.packages.keys()):
        before, after = old.packages.get(name), lock.packages.get(name)
        if before is None or after is None:
            yield f"{name} was {'added' if after else 'removed'}"
        elif before.version != after.version:
            yield f"{name} {before.version} became {after.version}"
        elif before != after:
            yield f"{name} {after.version} has other {'digests' if before.hashes != after.hashes else 'reasons'}"
