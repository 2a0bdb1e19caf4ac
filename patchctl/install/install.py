"""Installs a workspace: checks and builds everything, calls pip once, then checks what Python imports.

The target environment: its packages, what would shadow the installed ones, and pip.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packaging.utils import canonicalize_name

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import MachineFailed, WrongUse
from patchctl.install.installable import InstallTree, Submodule, install_trees, submodules, write_files
from patchctl.install.wheel import (
    Metadata,
    build_tools,
    check_tools,
    complete_wheel,
    machine_failed,
    native_wheel,
    read_metadata,
    without_settings,
    write_wheel,
)
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile
from patchctl.process_group import ask, find_program
from patchctl.python_probe import PythonProbeFailed, ask_python
from patchctl.requirements.interpreter import PackageDifference, differences
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line
from patchctl.workspace.imports import Import, find_imports
from patchctl.workspace.state import load_state

_PIP_SECONDS = 600
_PROBE_SECONDS = 60
_HINT = "name an interpreter with --python, for example .venv/bin/python"
_KILLED = "run the same `patchctl install` again: it replaces what was half installed"
# Runs in the user's interpreter. What is first on the path is what imports see.
_PROBE = """
import sys
if not sys.path[0]:
    del sys.path[0]  # the current folder, which -c puts first
import importlib.metadata, json, re, sysconfig

def told(text):
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}

found = {}
for there in importlib.metadata.distributions():
    name = re.sub(r"[-_.]+", "-", there.metadata["Name"] or "").lower()
    if not name or name in found:
        continue
    url, own = told(there.read_text("direct_url.json")), told(there.read_text("patchctl.json"))
    editable = own.get("folder") if own.get("editable") else None
    if url.get("dir_info", {}).get("editable") and url["url"].startswith("file://"):
        from urllib.request import url2pathname
        editable = url2pathname(url["url"][len("file://"):])
    found[name] = [there.version, str(there.locate_file("")), editable]
paths = sysconfig.get_paths()
site = [paths["purelib"], paths["platlib"]]
print(json.dumps({"path": sys.path, "site": site, "scripts": paths["scripts"], "found": found}))
"""


@dataclass(frozen=True)
class Installed:
    """An installed distribution: its version, its folder, and for an editable one the tree."""

    version: str
    folder: Path
    editable: Path | None


@dataclass(frozen=True)
class PythonEnvironment:
    """An interpreter: its import path, where pip installs packages and commands to, and its distributions by normalised name."""

    python: str
    path: tuple[Path, ...]
    site: tuple[Path, ...]
    scripts: Path
    found: Mapping[str, Installed]

    def version(self, name: str) -> str | None:
        """Return the version of a distribution that imports see, or None."""
        there = self.found.get(canonicalize_name(name))
        return there.version if there is not None else None

    def replaced(self, name: str) -> Installed | None:
        """Return the distribution that pip would replace: one in the environment itself."""
        there = self.found.get(canonicalize_name(name))
        return there if there is not None and there.folder in self.site else None


def interpreter(named: str) -> str:
    """Return the absolute path of an interpreter, given by path or found on PATH (`find_program`). Keeps symlinks, which venvs use."""
    return os.path.abspath(named) if os.sep in named else find_program(named) or named


def read_environment(python: str) -> PythonEnvironment:
    """Ask an interpreter. Raises WrongUse if that fails or it has no pip."""
    try:
        told = ask_python(python, _PROBE, seconds=_PROBE_SECONDS, cwd=None)
        site = tuple(dict.fromkeys(Path(p).resolve() for p in told["site"]))
        # `-m pip` would import a folder named pip from the current one.
        done = ask([python, "-m", "pip", "--version"], _PROBE_SECONDS, cwd=os.sep)
    except (PythonProbeFailed, OSError, subprocess.SubprocessError, TypeError, KeyError) as error:
        raise WrongUse(f"--python {python} cannot be asked: {one_line(str(error))}", hint=_HINT) from error
    if done.returncode:
        if "No module named pip" not in done.stderr:
            raise WrongUse(f"--python {python} cannot run pip: {one_line(done.stderr) or 'no output'}", hint=_HINT)
        hint = f"`{shlex.quote(python)} -m ensurepip` installs it; with uv, use `uv venv --seed`"
        raise WrongUse(f"{python} has no pip", hint=hint)
    found = {
        name: Installed(version, Path(folder).resolve(), Path(editable).resolve() if editable else None)
        for name, (version, folder, editable) in told["found"].items()
    }
    return PythonEnvironment(python, tuple(Path(p).resolve() for p in told["path"]), site, Path(told["scripts"]), found)


def check_shadows(environment: PythonEnvironment, metadata: Metadata, now: Sequence[Import]) -> None:
    """Raise WrongUse if one of the tree's packages is imported from a place that precedes the installed one."""
    old = environment.replaced(metadata.name)
    for package in now:
        if package.place is None or package.ours:
            continue
        place = Path(package.place).resolve()
        if old is not None and any(place.is_relative_to(p) for p in (old.folder, old.editable) if p is not None):
            continue  # pip replaces it
        if _stays_before(environment, place):
            what = (
                f"{environment.python} imports {package.package} from {place}, which would shadow the installed package"
            )
            hint = "remove it from PYTHONPATH, or uninstall or delete it there"
            raise WrongUse(what, hint=hint)


def _stays_before(environment: PythonEnvironment, place: Path) -> bool:
    """Whether imports look there before, or in, pip's target folder. Import hooks' places are on no path."""
    path = environment.path
    holders = [n for n, folder in enumerate(path) if place.is_relative_to(folder)]
    if not holders:
        return True
    at = max(holders, key=lambda n: len(path[n].parts))  # site-packages is below a folder that may be on the path, too
    own = next((n for n, folder in enumerate(path) if folder in environment.site), len(path))
    return at <= own


def pip_install(environment: PythonEnvironment, wheels: Sequence[Path]) -> None:
    """Install wheels over packages of the same name, without dependencies. Raises WrongUse with pip's message."""
    command = [
        environment.python,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        "--no-cache-dir",
        "--disable-pip-version-check",
        *map(str, wheels),
    ]
    try:
        done = ask(command, _PIP_SECONDS, env=without_settings(), cwd=os.sep)
    except subprocess.TimeoutExpired as error:
        raise MachineFailed(
            f"pip did not finish within {error.timeout:g} seconds and was stopped", hint=_KILLED
        ) from error
    if done.returncode < 0:
        raise MachineFailed(f"pip was killed by signal {-done.returncode}", hint=_KILLED)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = [line for line in lines if line.lower().startswith("error")] or lines[-3:]
        if said == ["ERROR: Exception:"]:  # the reason is the last line of a traceback
            said = lines[-1:]
        failed = MachineFailed if machine_failed(done.stderr) else WrongUse
        raise failed(f"pip failed: {one_line('; '.join(said))}", hint=_pip_hint(done.stderr))
    for wheel in wheels:
        _forget_address(environment, "-".join(wheel.name.split("-")[:2]) + ".dist-info")
        _delete_set_aside(environment, wheel)


def _delete_set_aside(environment: PythonEnvironment, wheel: Path) -> None:
    """Delete leftovers of a killed pip, which renames `package` to `~ackage` and deletes that at the end."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    for site in environment.site:
        for top in tops:
            pattern = f"{top.partition('-')[0]}-*.dist-info" if top.endswith(".dist-info") else top
            for aside in site.glob(f"~{pattern[1:]}"):
                shutil.rmtree(aside)


def _forget_address(environment: PythonEnvironment, name: str) -> None:
    """Delete direct_url.json (PEP 610) and its line in RECORD: it points to this run's temporary folder."""
    for folder in (site / name for site in environment.site if (site / name / "direct_url.json").is_file()):
        record = folder / "RECORD"
        lines = record.read_bytes().splitlines(keepends=True)
        replace_file(record, b"".join(n for n in lines if not n.startswith(f"{name}/direct_url.json,".encode())))
        (folder / "direct_url.json").unlink()


def _pip_hint(said: str) -> str | None:
    if "externally-managed" in said:
        return "this Python belongs to the system: create an environment with `python3 -m venv`, or set PIP_BREAK_SYSTEM_PACKAGES=1"
    if "no-record-file" in said or "RECORD file not found" in said:
        return "a killed pip left it behind: delete its .dist-info folder (see `pip show NAME`) and install again"
    if "Permission denied" in said:
        return "you may not write to the environment: use one of your own"
    return None


@dataclass(frozen=True)
class InstallOptions:
    """How to install. With `isolated`, requirements of setup.py come from the package indexes, for this run only."""

    python: Annotated[str, Doc("absolute path of the interpreter")]
    editable: Annotated[bool, Doc("true for an editable install, which imports from the trees")] = False
    native: Annotated[bool, Doc("true if extensions are compiled by upstream's build", key="build_native")] = False
    isolated: bool = True
    dry_run: Annotated[bool, Doc("true if nothing was installed")] = False


@dataclass(frozen=True)
class InstalledTree:
    """A tree installed as a package."""

    upstream: Annotated[str, Doc("upstream name")]
    distribution: Annotated[str, Doc("distribution name, as pip lists it")]
    version: Annotated[str, Doc("installed version")]
    replaced: Annotated[str | None, Doc("version that was installed before; null if none")]
    tip_commit: Annotated[str, Doc("commit of the installed tree")]
    imports: Annotated[tuple[Import, ...], Doc("how Python resolves the packages; in a dry run, before the install")]


@dataclass(frozen=True)
class Installation:
    """What an install did, or would do in a dry run."""

    trees: Annotated[tuple[InstalledTree, ...], Doc("trees, sorted by name")]
    passed_by: Annotated[Mapping[str, str], Doc("upstreams not installed, with the reason")]
    profile: Profile | None = None
    packages: Annotated[
        tuple[PackageDifference, ...] | None,
        Doc("differences between the environment and the lock of the profile's requirements; null if there is no lock"),
    ] = None


@dataclass(frozen=True)
class _Built:
    item: InstallTree
    metadata: Metadata
    wheel: Path


def install(workspace: Path, dist: Distribution, options: InstallOptions, progress: Progress) -> Installation:
    """Install the trees of a workspace into an environment.

    Raises LocalEdits or WrongUse for a workspace that is not as applied, WrongUse if another place would shadow a
    package, SourceUnavailable without setuptools.
    """
    if options.native and options.editable:
        what = "--build-native compiles a copy of the tree, but --editable uses the tree itself"
        raise WrongUse(what, hint="use only one of them")
    items, passed_by = install_trees(workspace, dist)
    environment = read_environment(options.python)
    for folder in (*environment.site, environment.scripts):
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):  # pip finds out when half of it is gone
            raise WrongUse(f"{folder} cannot be written", hint="use an environment of your own, or make it writable")
    profile, others = _packages(workspace, dist, environment)
    modules = {item.upstream: submodules(item, dist) for item in items} if options.native else {}
    with tempfile.TemporaryDirectory(prefix="patchctl-install-") as name:
        built = list(_build_all(items, modules, environment, options, Path(name), progress))
        before = {b.item.upstream: _imports(b.item, dist, options.python) for b in built}
        for one in built:
            check_shadows(environment, one.metadata, before[one.item.upstream])
        if not options.dry_run:
            progress.note("pip install")
            pip_install(environment, [b.wheel for b in built])
    progress.finish()
    after = before if options.dry_run else _proven(built, dist, options.python)
    trees = tuple(_result(b, environment, after[b.item.upstream]) for b in built)
    return Installation(trees, passed_by, profile, others)


def _packages(
    workspace: Path, dist: Distribution, environment: PythonEnvironment
) -> tuple[Profile | None, tuple[PackageDifference, ...] | None]:
    """Return the workspace's profile and how the environment differs from its lock; `install` changes neither."""
    state = load_state(workspace)
    profile = dist.held(state.profile, state.release) if state is not None else None
    if profile is None:
        return None, None
    found = differences(dist, profile, {n: i.version for n, i in environment.found.items()})
    return profile, None if found is None else tuple(found)


def _build_all(
    items: Sequence[InstallTree],
    modules: Mapping[str, Sequence[Submodule]],
    environment: PythonEnvironment,
    options: InstallOptions,
    folder: Path,
    progress: Progress,
) -> Iterator[_Built]:
    tools = None
    if options.native or not options.isolated:
        installed = {n: i.version for n, i in environment.found.items()}
        check_tools(options.python, installed, native=options.native)
    else:
        progress.note("fetching what setup.py needs")
        tools = build_tools(options.python, folder / "tools")
    for item in items:
        progress.note(f"building {item.upstream}")
        own = folder / item.upstream
        own.mkdir(exist_ok=True)
        with _source(item, own / "tree") as copy:
            metadata = read_metadata(item, copy, options.python, tools, own / "metadata")
        (own / "wheel").mkdir()
        if options.native:
            with _source(item, own / "native") as copy:
                for module in modules[item.upstream]:
                    write_files(module.files(), copy / module.path)
                (own / "built").mkdir()
                wheel = complete_wheel(item, native_wheel(item, copy, options.python, own / "built"), own / "wheel")
        else:
            wheel = write_wheel(item, metadata, own / "wheel", editable=options.editable)
        yield _Built(item, metadata, wheel)


@contextmanager
def _source(item: InstallTree, folder: Path) -> Iterator[Path]:
    """Yield a copy for one use, since setup.py writes into it."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name) as name:
        yield write_files(item.files(), Path(name))


def _imports(item: InstallTree, dist: Distribution, python: str) -> tuple[Import, ...]:
    return find_imports(python, item.upstream, item.folder, dist, lambda: item.tree.files(item.state.tip_commit))


def _proven(built: Sequence[_Built], dist: Distribution, python: str) -> dict[str, tuple[Import, ...]]:
    """Return what Python imports now. Raises WrongUse if that is not what was installed."""
    environment = read_environment(python)
    found = {b.item.upstream: _imports(b.item, dist, python) for b in built}
    for one in built:
        version = environment.version(one.metadata.name)
        if version != one.metadata.version:
            what = f"pip succeeded, but {python} has {one.metadata.name} {version or 'nowhere'}"
            raise WrongUse(
                f"{what}; {one.metadata.version} was installed", hint="another copy precedes it on the import path"
            )
        for package in found[one.item.upstream]:
            if not package.ours:
                what = f"pip succeeded, but {python} imports {package.package} from {package.place or 'nowhere'}"
                raise WrongUse(what, hint=package.error or "remove that place from its path and install again")
    return found


def _result(built: _Built, environment: PythonEnvironment, imports: tuple[Import, ...]) -> InstalledTree:
    old = environment.replaced(built.metadata.name)
    item, metadata = built.item, built.metadata
    version = old.version if old is not None else None
    return InstalledTree(item.upstream, metadata.name, metadata.version, version, item.state.tip_commit, imports)
