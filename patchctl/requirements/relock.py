"""Recreates the locks of requirements, or reports how they would change.

`uv pip compile` resolves the inputs of a set for a platform, the only step that asks a package index. An index has wheels for
every platform and Python, about twenty per release, and pip installs one of them: of a release's files, those that the
platform and Python can install are selected by name.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import FINDINGS, BadManifest, PatchctlError, SourceUnavailable, Tried, WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS, Platform
from patchctl.process_group import ask, find_program
from patchctl.requirements.declared import FILE, Declared, collect, read_declared, render, stale
from patchctl.requirements.lockfile import (
    Inputs,
    Locked,
    RequirementsLock,
    inputs_of,
    lock_path,
    read_lock,
    write_inputs,
)
from patchctl.requirements.lockfile import render as render_lock
from patchctl.requirements.sets import FOLDER, NamedSet, all_sets, read_set
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

# glibc 2.28: openEuler 24.03 and Ubuntu 22.04, the bases of CANN's images, have newer ones. Up to 2.40, the newest
# that uv knows, a machine's own glibc decides which wheel pip prefers.
OLDEST_GLIBC, NEWEST_GLIBC = 28, 40
_LOCKED_PACKAGE = re.compile(r'(?m)^\[\[packages\]\]\nname = "([^"]+)"')
_FILE = re.compile(r'\b(?:url|path) = "([^"]+)"[^{}\n]*\bhashes = \{ sha256 = "([0-9a-f]{64})"')


def fitting(files: Iterable[str], platform: Platform, python: str) -> list[str]:
    """Return the wheels that Linux on the platform can install, whatever its glibc.

    Adds the source distribution if no wheel fits the oldest glibc, so that some machine has to build it.
    """
    wheels, sources, everywhere = list[str](), list[str](), False
    for file in files:
        if not file.endswith(".whl"):
            sources.append(file)
            continue
        try:
            tags = parse_wheel_filename(file)[3]
        except InvalidWheelFilename:
            wheels.append(file)  # kept: pip may still accept it
            continue
        if tags & _tags(platform, python, NEWEST_GLIBC):
            wheels.append(file)
            everywhere |= bool(tags & _tags(platform, python, OLDEST_GLIBC))
    return wheels if everywhere else [*wheels, *sources]


@cache
def _tags(platform: Platform, python: str, glibc: int) -> frozenset[Tag]:
    version = [int(part) for part in python.split(".")[:2]]
    name = "cp" + "".join(map(str, version))
    platforms = [f"manylinux_2_{minor}_{platform}" for minor in range(glibc, 4, -1)]
    platforms += [f"{older}_{platform}" for older in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    # Without a name, packaging would ask how the running Python was built.
    own = cpython_tags(version, [name], platforms)
    return frozenset([*own, *compatible_tags(version, name, platforms)])


def listed(text: str) -> dict[str, dict[str, str]]:
    """Return each package's digests by file name, from uv's pylock.toml, which has one file per line.

    By regular expression, since Python 3.10 has no TOML reader. Files without a digest are left out.
    """
    starts = [*_LOCKED_PACKAGE.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {
        canonicalize_name(match[1]): {
            unquote(place).rpartition("/")[2]: f"sha256:{digest}"
            for place, digest in _FILE.findall(text[match.start() : end])
        }
        for match, end in zip(starts, ends, strict=False)  # a lock of no package has an end alone
    }


_SECONDS = 900
_LONGEST = 1500
_PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s\\;]+)")
_ORIGIN = re.compile(r"-r (origin[0-9]{3}\.in)")


class NoSolution(PatchctlError):
    """The requirements contradict each other; `what` lists them."""

    code = FINDINGS
    kind = "no-solution"


def find_uv() -> list[str]:
    """Return the command for uv: the one installed beside patchctl, else on PATH. Raises WrongUse without one."""
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    path = find_program("uv")
    if path is None:
        raise WrongUse("uv, which resolves requirements, is not installed", hint=f"{sys.executable} -m pip install uv")
    return [path]


def resolve_inputs(inputs: Inputs, platform: Platform, keep: RequirementsLock | None = None) -> RequirementsLock:
    """Resolve the lock of a platform, keeping versions of `keep` if it has the same `exclude_newer` time.

    Without that, a resolution would change: indexes get releases with earlier publication times after a lock was
    made. Raises NoSolution for contradicting requirements, SourceUnavailable if uv could not ask the index, WrongUse
    without uv.
    """
    left_out = {name for one in inputs.value.left_out for name in one.packages}
    there = [one for one in inputs.value.elsewhere if one.platform == platform]
    given = {canonicalize_name(name): one for one in there if one.version for name in one.packages}
    excluded = {name for name in left_out if not name.endswith("*")} | given.keys()
    kept = keep.packages.values() if keep and keep.exclude_newer == inputs.value.exclude_newer else ()
    while True:
        packages = {p.name: p for p in _compiled(inputs, platform, excluded, kept)}
        # uv only excludes plain names: members of a family are known once something requires them.
        more = {name for name in packages if any(fnmatchcase(name, pattern) for pattern in left_out)}
        if not more:
            break
        excluded |= more
    packages = {p.name: p for p in _installable(inputs, platform, packages.values())}
    for name, one in given.items():
        packages[name] = Locked(name, one.version or "", (), _who_asks(inputs, name), one.index)
    for one in there:
        for name in map(canonicalize_name, one.packages if one.local else ()):
            if name in packages:
                found = packages[name]
                version = f"{found.version.partition('+')[0]}+{one.local}"
                packages[name] = replace(found, version=version, hashes=(), index=one.index)
    return RequirementsLock(
        platform, dict(sorted(packages.items())), inputs.digest(platform), _version(), inputs.value.exclude_newer
    )


def _who_asks(inputs: Inputs, name: str) -> tuple[str, ...]:
    asked = [
        who
        for who, lines in inputs.by_origin.items()
        if name in {canonicalize_name(Requirement(x).name) for x in lines}
    ]
    return tuple(sorted(asked))


def _version() -> str:
    said = subprocess.run([*find_uv(), "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return " ".join(said.split()[:2])


def _compiled(inputs: Inputs, platform: Platform, excluded: set[str], kept: Collection[Locked]) -> Iterator[Locked]:
    with tempfile.TemporaryDirectory(prefix="patchctl-lock-") as name:
        folder = Path(name)
        named = write_inputs(inputs, folder)
        (folder / "excluded.in").write_text("".join(f"{n}\n" for n in sorted(excluded)), encoding="utf-8")
        # uv prefers the versions in its existing output file.
        (folder / "lock.txt").write_text("".join(f"{p.name}=={p.version}\n" for p in kept), encoding="utf-8")
        form = ["--generate-hashes", "--annotation-style", "split", "--output-file", "lock.txt"]
        limits = ["--override", "overrides.in", "--excludes", "excluded.in"]
        done = _compile(inputs, f"{platform}-manylinux_2_{OLDEST_GLIBC}", folder, [*form, *limits, *named])
        if done.returncode != 0:
            raise _failure(_with_titles(done.stderr, named), inputs, platform)
        text = (folder / "lock.txt").read_text(encoding="utf-8")
    yield from _packages(text, named)


def _installable(inputs: Inputs, platform: Platform, packages: Collection[Locked]) -> Iterator[Locked]:
    """Yield the packages with only the digests that the platform and Python can install.

    Keeps all digests if uv does not name the files.
    """
    with tempfile.TemporaryDirectory(prefix="patchctl-lock-") as name:
        folder = Path(name)
        (folder / "pins.in").write_text("".join(f"{p.name}=={p.version}\n" for p in packages), encoding="utf-8")
        form = ["--no-deps", "--format", "pylock.toml", "--output-file", "pylock.toml"]
        done = _compile(inputs, f"{platform}-manylinux_2_{NEWEST_GLIBC}", folder, [*form, "pins.in"])
        if done.returncode != 0:
            raise _failure(done.stderr, inputs, platform)
        files = listed((folder / "pylock.toml").read_text(encoding="utf-8"))
    for one in packages:
        digests = files.get(one.name, {})
        kept = {digests[file] for file in fitting(digests, platform, inputs.value.python)} & {*one.hashes}
        yield replace(one, hashes=tuple(sorted(kept or one.hashes)))


def _compile(
    inputs: Inputs, platform: str, folder: Path, arguments: Collection[str]
) -> subprocess.CompletedProcess[str]:
    command = [
        *find_uv(),
        "pip",
        "compile",
        "--quiet",
        "--no-config",
        "--no-header",
        "--no-progress",
        "--no-python-downloads",  # it would fetch an interpreter from GitHub for builds, or wait for it in vain
        "--python-version",
        inputs.value.python,
        "--python-platform",
        platform,
        "--exclude-newer",
        inputs.value.exclude_newer,
        *arguments,
    ]
    try:
        return ask(command, _SECONDS, cwd=folder)
    except subprocess.TimeoutExpired as error:
        tried = [Tried("the package index", f"uv did not finish within {error.timeout:g} seconds")]
        raise SourceUnavailable("requirements not resolved", tried) from error


def _failure(said: str, inputs: Inputs, platform: Platform) -> PatchctlError:
    text = one_line(re.sub(r"\s+", " ", said), _LONGEST)
    if "No solution found" not in said:
        return SourceUnavailable(f"{platform}: requirements not resolved", [Tried("uv", text)])
    mentioned = set(re.findall(r"[a-z0-9][a-z0-9-]*[a-z0-9]", said.lower()))
    limits = [
        f"{title} wants {line}"
        for title, lines in inputs.by_origin.items()
        for line in lines
        if canonicalize_name(Requirement(line).name) in mentioned and Requirement(line).specifier
    ]
    what = f"{platform}: the requirements contradict each other: {'; '.join(limits) or text}"
    file = FOLDER / inputs.value.name / "set.yaml"
    hint = "add an override there that says which one wins, and why; or `exclude_newer` is older than what is asked"
    return NoSolution(what, where=str(file), hint=hint)


def _packages(text: str, named: Mapping[str, str]) -> Iterator[Locked]:
    """Parse uv's output: each package, its digests and who requires it, on lines of their own."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if _PACKAGE.match(line):
            blocks.append([line])
        elif blocks and line.strip():
            blocks[-1].append(line)
    for first, *rest in blocks:
        package = _PACKAGE.match(first)
        assert package is not None
        hashes = sorted(h for line in rest for h in re.findall(r"--hash=(sha256:[0-9a-f]{64})", line))
        asked = [re.sub(r"^\s*#\s*(via\s*)?", "", line).strip() for line in rest if line.lstrip().startswith("#")]
        via = sorted(_with_titles(one, named) for one in asked if one and not one.startswith("--override"))
        yield Locked(canonicalize_name(package["name"]), package["version"], tuple(hashes), tuple(via))


def _with_titles(text: str, named: Mapping[str, str]) -> str:
    """Replace uv's input file names with the origins."""
    return _ORIGIN.sub(lambda match: named.get(match[1], match[1]), text)


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
    if options.offline:
        what = f"{named.name}: requirements are resolved on a package index"
        raise SourceUnavailable(what, [Tried("package index", "the run is offline")], hint="leave --offline out")
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
