"""Locks in pip's format, `pip install --no-deps --require-hashes -r PLATFORM.txt`, and their inputs as text: the same here, in CI
without a network, and where uv resolves them.

Packages of another index are in PLATFORM-elsewhere.txt, without digests: in one run, pip requires digests for all
lines or for none. The requirements that the distribution's scripts declare in PEP 723 blocks are read without running them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform as python_platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from patchctl import extension
from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where, WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS, Elsewhere, Platform, RequirementSet
from patchctl.manifest.types import Profile
from patchctl.requirements.declared import Declared, read_declared
from patchctl.requirements.sets import FOLDER, NamedSet

# The format of PEP 723; only dependencies, as a list of string literals. Python 3.10 has no tomllib.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_DEPENDENCIES = re.compile(r"(?ms)^dependencies\s*=\s*(\[.*?\])\s*$")


def declared_by_scripts(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of every script below scripts/ that declares some, by path below the root.

    Raises BadManifest for an unreadable block.
    """
    found: Mapping[str, tuple[str, ...]] = {
        file.relative_to(root).as_posix(): dependencies(file) for file in sorted((root / "scripts").rglob("*.py"))
    }
    return {path: needs for path, needs in found.items() if needs}


def dependencies(file: Path) -> tuple[str, ...]:
    """Return the dependencies of one script, normalised; empty without a block."""
    text = file.read_text(encoding="utf-8")
    block = _BLOCK.search(text)
    if block is None:
        return ()
    where = Where(str(file), text.count("\n", 0, block.start()) + 1)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    listed = _DEPENDENCIES.search(content)
    try:
        return tuple(str(Requirement(text)) for text in ast.literal_eval(listed[1])) if listed else ()
    except (ValueError, SyntaxError, TypeError, InvalidRequirement) as error:
        reason = (
            str(error).partition("\n")[0].partition(": <ast.")[0]
        )  # literal_eval's message contains an object's address
        what = f"cannot read the script's dependencies: {reason}"
        raise BadManifest(what, where=where, hint='write dependencies = ["NAME", "NAME>=1"] (PEP 723)') from error


def imported(file: Path) -> set[str]:
    """Return top-level packages a script imports that are neither in Python nor in its own folder."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    beside = {path.stem for path in file.parent.glob("*.py")}
    return names - set(sys.stdlib_module_names) - beside - {"__future__"}


PROFILE = "profile"
"""The origin of the profile's own versions."""
Source = Callable[[Distribution, NamedSet], dict[str, tuple[str, ...]]]
"""An extension's inputs: requirement lines by origin."""


@dataclass(frozen=True)
class Inputs:
    """Requirement lines by origin, the overrides, and the set with what is left out."""

    value: RequirementSet
    by_origin: Mapping[str, tuple[str, ...]]
    overrides: tuple[str, ...]

    def digest(self, platform: Platform) -> str:
        """Return the sha256 of everything that determines a platform's lock."""
        left_out = sorted(name for one in self.value.left_out for name in one.packages)
        elsewhere = sorted(
            [name, one.local or one.version, one.index]
            for one in self.value.elsewhere
            if one.platform == platform
            for name in one.packages
        )
        data = [
            platform,
            self.value.python,
            self.value.exclude_newer,
            sorted(self.by_origin.items()),
            sorted(self.overrides),
            left_out,
            elsewhere,
        ]
        return hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest()


def inputs_of(dist: Distribution, named: NamedSet, declared: Sequence[Declared] | None = None) -> Inputs:
    """Return a set's inputs, from declared.txt unless `declared` is given.

    Raises InvalidManifest for unreadable recipes, BadManifest for an unreadable declared.txt or script.
    """
    found = read_declared(named) if declared is None else declared
    pins = runtime_pins(dist, named.profiles[0])
    limits = {(d.upstream, d.name) for d in named.value.declared if d.limits is not None}
    by_origin = {d.title: d.requirements for d in found if (d.upstream, d.file) not in limits}
    by_origin[PROFILE] = tuple(pins)
    for name in (name for other in extension.registered() for name in other.requirements):
        source: Source = extension.load(name)
        by_origin |= source(dist, named)
    by_origin |= declared_by_scripts(dist.root)
    overrides = {canonicalize_name(Requirement(text).name): text for text in pins}
    overrides |= {canonicalize_name(Requirement(o.requirement).name): o.requirement for o in named.value.overrides}
    return Inputs(named.value, by_origin, tuple(str(Requirement(text)) for text in overrides.values()))


def runtime_pins(dist: Distribution, profile: Profile) -> list[str]:
    """Return the profile's versions of Python packages as requirement lines."""
    found = []
    for name, version in profile.runtime.items():
        requirement = dist.requirements[name]
        if requirement.kind == "python" and requirement.distribution:
            limits = f"=={version}" if version[0].isdigit() else version
            found.append(str(Requirement(f"{requirement.distribution}{limits}")))
    return found


def write_inputs(inputs: Inputs, folder: Path) -> dict[str, str]:
    """Write a requirements file per origin and overrides.in; return the origins by file name."""
    named = {}
    for number, (title, lines) in enumerate(inputs.by_origin.items()):
        named[f"origin{number:03}.in"] = title
        (folder / f"origin{number:03}.in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "overrides.in").write_text("".join(f"{line}\n" for line in inputs.overrides), encoding="utf-8")
    return named


_PACKAGE = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>\S+)(?: \\)?")
_HASH = re.compile(r"    --hash=(?P<hash>sha256:[0-9a-f]{64})(?: \\)?")
_VIA = re.compile(r"    # via (?P<via>.+)")
_INPUT = re.compile(r"(?m)^# input sha256 ([0-9a-f]{64})$")
_RESOLVED = re.compile(r"(?m)^# resolved by (.+?), with nothing published after (\S+)$")
_CONTENT = re.compile(r"(?m)^# content sha256 ([0-9a-f]{64})$")
_HINT = "it is generated: `patchctl lock --requirements` recreates it"


@dataclass(frozen=True)
class Locked:
    """A locked package."""

    name: Annotated[str, Doc("package name")]
    version: Annotated[str, Doc("locked version")]
    hashes: Annotated[tuple[str, ...], Doc("sha256 of each file; empty for a package from another index")]
    via: Annotated[tuple[str, ...], Doc("what requires the package: packages, files of trees, recipes, scripts")]
    index: Annotated[str | None, Doc("URL of the other index; null for the package index")] = None


@dataclass(frozen=True)
class RequirementsLock:
    """The packages to install on a platform, by name.

    `input` is the digest of what it was resolved from; anything published after `exclude_newer` was ignored.
    """

    platform: Platform
    packages: Mapping[str, Locked]
    input: str
    resolver: str
    exclude_newer: str


def lock_path(named: NamedSet, platform: Platform, *, elsewhere: bool = False) -> Path:
    """Return the path of a platform's lock; with `elsewhere`, of the part without digests."""
    return named.folder / f"{platform}{'-elsewhere' if elsewhere else ''}.txt"


def this_platform(machine: str | None = None) -> Platform:
    """Return the platform of a machine name as in uname, else of this machine. Raises WrongUse without locks for it."""
    name = machine or python_platform.machine()
    name = {"arm64": "aarch64", "amd64": "x86_64", "AMD64": "x86_64"}.get(name, name)
    for known in PLATFORMS:
        if known == name:
            return known
    raise WrongUse(f"no lock for {name}", hint=f"--platform takes {' or '.join(PLATFORMS)}")


def render(lock: RequirementsLock, named: NamedSet) -> dict[bool, str]:
    """Return the texts of a lock: with digests (False), and from elsewhere (True) if there are such packages."""
    hashed = _body(p for p in lock.packages.values() if p.index is None)
    path = f"{FOLDER.as_posix()}/{named.name}/{lock.platform}.txt"
    value = named.value
    head = [
        f"What profiles with the requirements {named.name} run on: {lock.platform}, Python {value.python}.",
        "Generated by `patchctl lock --requirements`; do not edit.",
        f"    pip install --no-deps --require-hashes -r {path}",
        f"resolved by {lock.resolver}, with nothing published after {lock.exclude_newer}",
        f"input sha256 {lock.input}",
        f"content sha256 {_digest(hashed)}",
    ]
    texts = {False: "".join(f"# {line}\n" for line in head) + hashed}
    others = [p for p in lock.packages.values() if p.index is not None]
    if others:
        texts[True] = _elsewhere(lock, others, named)
    return texts


def _elsewhere(lock: RequirementsLock, packages: list[Locked], named: NamedSet) -> str:
    text = (
        f"# The packages of {lock.platform}.txt's resolution that another index has; nobody here knows their digests.\n"
    )
    for one in _of_platform(named, lock.platform):
        text += f"# {one.reason}\n#     pip install --no-deps --extra-index-url {one.index} -r this file\n"
    return text + _body(packages)


def _body(packages: Iterable[Locked]) -> str:
    text = ""
    for one in sorted(packages, key=lambda p: p.name):
        lines = [f"{one.name}=={one.version}", *(f"    --hash={h}" for h in one.hashes)]
        text += " \\\n".join(lines) + f"\n    # via {', '.join(one.via)}\n"
    return text


def read_lock(named: NamedSet, platform: Platform) -> RequirementsLock:
    """Read a lock. Raises BadManifest if it is missing, not as generated, or edited."""
    file = lock_path(named, platform)
    text = _text(file)
    found, content, inner = _INPUT.search(text), _CONTENT.search(text), re.sub(r"(?m)\A(#.*\n)+", "", text)
    if found is None or content is None:
        raise BadManifest("not a lock of requirements", where=Where(str(file), 1), hint=_HINT)
    if content[1] != _digest(inner):
        raise BadManifest(
            "the lock was edited: its content does not match its digest", where=Where(str(file)), hint=_HINT
        )
    packages = dict(_parsed(text, file, None))
    for one in _of_platform(named, platform):
        other = lock_path(named, platform, elsewhere=True)
        wanted = {canonicalize_name(name) for name in one.packages}
        packages |= {n: p for n, p in _parsed(_text(other), other, one.index) if n in wanted}
    resolved = _RESOLVED.search(text)
    return RequirementsLock(platform, packages, found[1], *(resolved.groups() if resolved else ("", "")))


def _of_platform(named: NamedSet, platform: Platform) -> list[Elsewhere]:
    return [one for one in named.value.elsewhere if one.platform == platform]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadManifest(f"cannot read the lock: {reason}", where=Where(str(file)), hint=_HINT) from error


def _parsed(text: str, file: Path, index: str | None) -> Iterable[tuple[str, Locked]]:
    found: list[tuple[str, str, list[str], tuple[str, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if package := _PACKAGE.fullmatch(line):
            found.append((package["name"], package["version"], [], ()))
        elif found and (digest := _HASH.fullmatch(line)):
            found[-1][2].append(digest["hash"])
        elif found and (via := _VIA.fullmatch(line)):
            name, version, hashes, _ = found[-1]
            found[-1] = (name, version, hashes, tuple(via["via"].split(", ")))
        elif line and not line.startswith("#"):
            raise BadManifest("not a line of a lock", where=Where(str(file), number), hint=_HINT)
    for name, version, hashes, asked in found:
        if not hashes and index is None:
            raise BadManifest(f"{name} has no digest", where=Where(str(file)), hint=_HINT)
        yield name, Locked(name, version, tuple(hashes), asked, index)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
