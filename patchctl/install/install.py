"""Installs a workspace: checks and builds everything, calls pip once, then checks what Python imports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.install.environment import PythonEnvironment, check_shadows, pip_install, read_environment
from patchctl.install.installable import InstallTree, Submodule, install_trees, submodules, write_submodules
from patchctl.install.wheel import (
    Metadata,
    build_tools,
    check_tools,
    complete_wheel,
    native_wheel,
    read_metadata,
    write_copy,
    write_wheel,
)
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile
from patchctl.requirements.interpreter import differences
from patchctl.requirements.package_differences import PackageDifference
from patchctl.terminal.progress import Progress
from patchctl.workspace.imports import Import, find_imports
from patchctl.workspace.state import load_state


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
    profile, others = _packages(workspace, dist, environment)
    modules = {item.upstream: submodules(item, dist) for item in items} if options.native else {}
    with tempfile.TemporaryDirectory(prefix="patchctl-install-") as name:
        built = list(_build_all(items, modules, environment, options, Path(name), progress))
        before = {b.item.upstream: _imports(b.item, dist, options.python) for b in built}
        for one in built:
            check_shadows(environment, one.item, one.metadata, before[one.item.upstream])
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
        with _source(item, own / "tree") as copy:
            metadata = read_metadata(item, copy, options.python, tools, own / "metadata")
        (own / "wheel").mkdir()
        if options.native:
            with _source(item, own / "native") as copy:
                write_submodules(modules[item.upstream], copy)
                (own / "built").mkdir()
                wheel = complete_wheel(item, native_wheel(item, copy, options.python, own / "built"), own / "wheel")
        else:
            wheel = write_wheel(item, metadata, own / "wheel", editable=options.editable)
        yield _Built(item, metadata, wheel)


@contextmanager
def _source(item: InstallTree, folder: Path) -> Iterator[Path]:
    """Yield a copy for one use, since setup.py writes into it."""
    with tempfile.TemporaryDirectory(dir=_made(folder.parent), prefix=folder.name) as name:
        yield write_copy(item, Path(name))


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


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
