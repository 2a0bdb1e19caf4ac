"""Checks what behaviour tests and patched frameworks need. Not needed to fetch, apply or verify."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.errors import WrongUse
from patchctl.findings import Finding, Level, looked_at
from patchctl.language import message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Requirement
from patchctl.process_group import find_program
from patchctl.python_probe import PythonProbeFailed, ask_python
from patchctl.terminal.text import one_line

if TYPE_CHECKING:
    from patchctl.requirements.interpreter import PackageDifference

TORCH_PYTHON = "PATCHCTL_TORCH_PYTHON"
_TIMEOUT_SECONDS = 60
_SHOWN = 8
# Runs in the interpreter in question, without importing the packages: torch_npu fails without a driver, and the
# metadata already tells the build.
_PROBE = """
import importlib.metadata, json, platform, sys
found = {}
for name in sys.argv[1:]:
    try:
        there = importlib.metadata.distribution(name)
        needs = [r.split(";")[0].strip() for r in there.requires or [] if r.startswith("nvidia-")]
        found[name] = [there.version, needs]
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": platform.python_version(), "found": found}))
"""


class Interpreter:
    """A Python and its distributions. `problem` says why it could not be asked."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path = path
        self.version: str | None = None
        self.problem: str | None = None
        self._found: dict[str, list[Any]] = {}
        try:
            told = ask_python(path, _PROBE, *names, seconds=_TIMEOUT_SECONDS)
            self.version, self._found = told["python"], told["found"]
        except (PythonProbeFailed, KeyError) as error:  # a KeyError where it is JSON of something else
            self.problem = error.what if isinstance(error, PythonProbeFailed) else one_line(str(error))

    def installed(self, name: str) -> str | None:
        """Return the version of a distribution, or None."""
        return self._found[name][0] if name in self._found else None

    def nvidia(self, name: str) -> list[str]:
        """Return the nvidia-* distributions that one requires."""
        return self._found[name][1] if name in self._found else []


def training_python(named: str | None) -> str:
    """Return the interpreter to check: the given one, that of the behaviour tests, or our own."""
    chosen = named or os.environ.get(TORCH_PYTHON) or sys.executable
    return os.path.abspath(chosen) if os.sep in chosen else chosen  # it is asked in another folder


def check_torch(named: str | None) -> Finding:
    """Check for a torch for the behaviour tests: any CPU build that pulls in no nvidia-* packages."""
    python = Interpreter(training_python(named), ["torch"])
    todo = message(
        "set {variable} to a Python 3.11 with a CPU build of torch; without one the behaviour tests are skipped",
        variable=TORCH_PYTHON,
    )
    if python.problem is not None:
        what = message("{path} cannot be asked: {problem}", path=python.path, problem=python.problem)
        return looked_at("tests", "torch", "warning", what, todo, needed=False)
    version = python.installed("torch")
    if version is None:
        return looked_at("tests", "torch", "warning", message("none in {path}", path=python.path), todo, needed=False)
    drags = python.nvidia("torch")
    if drags:
        what = message(
            "{version} in {path} requires {package} and {more} more of nvidia-*",
            version=version,
            path=python.path,
            package=drags[0],
            more=len(drags) - 1,
        )
        return looked_at("tests", "torch", "warning", what, todo, needed=False)
    what = message("{version} in {path}", version=version, path=python.path)
    return looked_at("tests", "torch", "ok", what, needed=False)


def check_runtime(
    requirements: Mapping[str, Requirement], wanted: Mapping[str, str], named: str | None, root: Path = Path("/")
) -> Iterator[Finding]:
    """Compare a profile's runtime with this machine. System paths start at `root`."""
    names = {n: r.distribution or n for n, r in requirements.items() if r.kind == "python"}
    python = Interpreter(training_python(named), list(names.values()))
    for name, version in wanted.items():
        if name in names:
            found, where = python.installed(names[name]), python.path
        elif name == "python":
            found, where = python.version, python.path
        elif name in SYSTEM:
            found, where = SYSTEM[name](root)
        else:
            what = message("{version} is wanted, but cannot be checked", version=version)
            yield looked_at("runtime", name, "warning", what, needed=False)
            continue
        yield _compared(name, version, found, where)
    tool = find_program("npu-smi")
    if tool:
        yield looked_at("runtime", "npu-smi", "ok", message("at {path}", path=tool), needed=False)
    else:
        what = message("not on PATH: no NPU driver is installed")
        yield looked_at("runtime", "npu-smi", "error", what, needed=False)


def check_packages(dist: Distribution, profile: Profile, named: str | None) -> Iterator[Finding]:
    """Compare the other installed packages with the lock of the profile's requirements."""
    from packaging.utils import canonicalize_name  # not at the top: cluster nodes only have the standard library

    from patchctl.requirements.interpreter import differences, installed_in

    python = training_python(named)
    try:
        found = differences(dist, profile, installed_in(python))
    except WrongUse as error:
        todo = message("choose another interpreter with --python")
        yield looked_at("runtime", "packages", "warning", error.what, todo, needed=False)
        return
    if found is None:
        return
    own = {dist.requirements[name].distribution or name for name in profile.runtime}
    rest = [d for d in found if canonicalize_name(d.name) not in {canonicalize_name(name) for name in own}]
    yield from package_findings(rest, python, profile)


def package_findings(found: Sequence[PackageDifference], python: str, profile: Profile) -> Iterator[Finding]:
    """Report an interpreter's differences from a profile's lock: important ones each, the rest together."""
    from patchctl.requirements.interpreter import summary

    todo = message("patchctl requirements {options} prints the lock, for pip install -r", options=profile.options)
    matter = [d for d in found if d.matters]
    for one in matter[:_SHOWN]:
        level: Level = "error" if one.kind == "missing" else "warning"
        yield looked_at("runtime", one.name, level, one.described(), todo, needed=False)
    others = [*matter[_SHOWN:], *(d for d in found if not d.matters)]
    if others:
        what = message("in {python}: {packages}", python=python, packages=summary(others))
        yield looked_at("runtime", "packages", "warning" if len(matter) > _SHOWN else "ok", what, todo, needed=False)
    elif not matter:
        what = message("{python} matches the lock", python=python)
        yield looked_at("runtime", "packages", "ok", what, needed=False)


def _compared(name: str, wanted: str, found: str | None, where: str) -> Finding:
    todo = message("install {name} {version} where training runs", name=name, version=wanted)
    if found is None:
        what = message("{wanted} is wanted; none in {path}", wanted=wanted, path=where)
        return looked_at("runtime", name, "error", what, todo, needed=False)
    what = message("{found} in {path}; {wanted} is wanted", found=found, path=where, wanted=wanted)
    if fits(found, wanted):
        return looked_at("runtime", name, "ok", what, needed=False)
    return looked_at("runtime", name, "warning", what, todo, needed=False)


def fits(found: str, wanted: str) -> bool:
    """Whether a version matches what a profile asks for: a version, a family (25.3.*) or limits.

    Versions that are not PEP 440 (8.2.RC1.alpha) match if equal, or if they start with the family.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    limits = wanted if re.match(r"[=<>!~]", wanted) else f"=={wanted}"
    try:
        return SpecifierSet(limits).contains(Version(found), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return found == wanted or (wanted.endswith(".*") and found.startswith(wanted[:-1]))


def cann_file(root: Path = Path("/")) -> Path | None:
    """Return the version file of CANN's toolkit, or None.

    <arch>-linux/ascend_toolkit_install.info, since 8.5 below cann/, before that below ascend-toolkit/latest/.
    set_env.sh puts the folder into ASCEND_HOME_PATH.
    """
    named = [Path(os.environ[key]) for key in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if os.environ.get(key)]
    for folder in (*named, root / "usr/local/Ascend/cann", root / "usr/local/Ascend/ascend-toolkit/latest"):
        for arch in dict.fromkeys((platform.machine(), "aarch64", "x86_64")):
            file = folder / f"{arch}-linux" / "ascend_toolkit_install.info"
            if _version_in(file) is not None:
                return file
    return None


def driver_file(root: Path = Path("/")) -> Path:
    """Return the version file of the host's driver, which is mounted into containers with it."""
    return root / "usr/local/Ascend/driver/version.info"


def _cann(root: Path) -> tuple[str | None, str]:
    file = cann_file(root)
    return (None, str(root / "usr/local/Ascend/cann")) if file is None else (_version_in(file), str(file.parent.parent))


def _driver(root: Path) -> tuple[str | None, str]:
    return _version_in(driver_file(root)), str(driver_file(root))


SYSTEM = {"cann": _cann, "driver": _driver}
"""How the version of each, and where it is told, is found below a root."""


def _version_in(file: Path) -> str | None:
    try:
        return info_version(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def info_version(text: str) -> str | None:
    """Return the value of `version=` in one of Ascend's .info files."""
    found = re.search(r"(?im)^\s*version\s*=\s*\[?([^\]\s]+)", text)
    return one_line(found[1]) if found else None
