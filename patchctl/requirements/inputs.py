"""The inputs of a lock, as text: the same here, in CI without a network, and where uv resolves them.

Requirements that the distribution's scripts declare in PEP 723 blocks, read without running them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from patchctl import extension
from patchctl.errors import BadManifest, Where
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import Platform, RequirementSet
from patchctl.manifest.types import Profile
from patchctl.requirements.declared import Declared, read_declared
from patchctl.requirements.sets import NamedSet

FOLDER = "scripts"
# The format of PEP 723; only dependencies, as a list of string literals. Python 3.10 has no tomllib.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_DEPENDENCIES = re.compile(r"(?ms)^dependencies\s*=\s*(\[.*?\])\s*$")


def declared_by_scripts(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of every script below scripts/ that declares some, by path below the root.

    Raises BadManifest for an unreadable block.
    """
    found: Mapping[str, tuple[str, ...]] = {
        file.relative_to(root).as_posix(): dependencies(file) for file in sorted((root / FOLDER).rglob("*.py"))
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

    def without(self, name: str) -> Inputs:
        """Return the inputs without a package's override."""
        kept = tuple(o for o in self.overrides if canonicalize_name(Requirement(o).name) != canonicalize_name(name))
        return replace(self, overrides=kept)


def inputs_of(dist: Distribution, named: NamedSet, declared: Sequence[Declared] | None = None) -> Inputs:
    """Return a set's inputs, from declared.txt unless `declared` is given.

    Raises InvalidManifest for unreadable recipes, BadManifest for an unreadable declared.txt or script.
    """
    found = read_declared(named) if declared is None else declared
    pins = runtime_pins(dist, named.profiles[0])
    by_origin = {d.title: d.requirements for d in found}
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
