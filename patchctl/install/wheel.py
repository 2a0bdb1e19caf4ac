"""Builds a tree's wheel (PEP 427): upstream's metadata, and its packages as they are or, if editable, a path to them.

Compiles nothing. Upstream's setup.py is run by setuptools' build backend in a copy of the tree, since it writes
there, and only for metadata (PEP 517, prepare_metadata_for_build_wheel), which runs no build step: no compiler, CANN
or torch is needed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from packaging.utils import canonicalize_name

from patchctl import __version__
from patchctl.errors import MachineFailed, SourceMismatch, SourceUnavailable, Tried, WrongUse
from patchctl.git.objects import EXECUTABLE, REGULAR
from patchctl.install.installable import InstallTree
from patchctl.process_group import ask
from patchctl.terminal.text import one_line

# What the five setup.py import at their pins, except torch. vllm's pyproject.toml has the narrowest limits.
REQUIREMENTS = ("setuptools>=77.0.3,<81", "setuptools-scm>=8", "wheel", "packaging>=24.2", "pybind11")
_SECONDS = 600
# Read by setup.py at the pins. vllm: no device of its own, since vllm-ascend provides it.
ENVIRONMENT = {"VLLM_TARGET_DEVICE": "empty"}
# vllm-ascend asks npu-smi for the chip unless it is named. Metadata does not depend on it, and the manifest sets
# _build_info.py; a native build uses the chip present.
_FOR_METADATA = {"SOC_VERSION": "910c"}

# Runs in the user's interpreter, in the copy. vllm's setup.py imports torch to detect CUDA or ROCm; for no device it
# uses neither, so this substitute without both gives the same metadata as any torch. From 0.23 on it also imports
# setuptools_rust, whose binary does not affect the metadata.
_DRIVER = """
import sys, types
if not sys.path[0]:
    del sys.path[0]
if sys.argv[3] == "torch stands in":
    from setuptools import Command
    torch, utils, extension = map(types.ModuleType, ("torch", "torch.utils", "torch.utils.cpp_extension"))
    torch.version = types.SimpleNamespace(cuda=None, hip=None)
    extension.CUDA_HOME = extension.ROCM_HOME = None
    torch.utils, utils.cpp_extension = utils, extension
    rust, build = map(types.ModuleType, ("setuptools_rust", "setuptools_rust.build"))
    rust.Binding, rust.RustExtension, build.build_rust = types.SimpleNamespace(Exec=None), lambda *args, **settings: None, Command
    sys.modules.update({m.__name__: m for m in (torch, utils, extension, rust, build)})
from setuptools import build_meta
backend = build_meta.__legacy__ if sys.argv[2] == "legacy" else build_meta
with open(sys.argv[1] + "/name", "w", encoding="utf-8") as out:
    out.write(backend.prepare_metadata_for_build_wheel(sys.argv[1]))
"""
RECORD_FILE = "patchctl.json"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: patchctl {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
Content = dict[str, tuple[int, bytes]]
"""A wheel's files by path: mode and bytes."""
_BACKEND = re.compile(r'(?m)^\s*build-backend\s*=\s*["\']([^"\']+)["\']')


@dataclass(frozen=True)
class Metadata:
    """A package's name and version, and the files of its .dist-info folder, named `folder`."""

    name: str
    version: str
    folder: str
    files: Mapping[str, bytes]


def in_environment() -> dict[str, str]:
    """Return the environment for pip, with user installs off.

    pip falls back to the user site if it may not write, and every environment of that Python would then see the
    packages.
    """
    return {**os.environ, "PIP_USER": "0"}


def without_settings() -> dict[str, str]:
    """Return the environment for a pip that installs wheels at hand: no setting sends them elsewhere, or asks more of them."""
    kept = ("PIP_USER", "PIP_BREAK_SYSTEM_PACKAGES")
    own = {name: value for name, value in in_environment().items() if not name.startswith("PIP_") or name in kept}
    return {**own, "PIP_CONFIG_FILE": os.devnull}


def machine_failed(said: str) -> bool:
    """Whether pip ended for want of space: ENOSPC, EDQUOT, EFBIG; or of a sound disk: EIO."""
    return re.search(r"\[Errno (?:28|122|27|5)\]", said) is not None


def build_tools(python: str, folder: Path) -> Path:
    """Install REQUIREMENTS into `folder` from pip's indexes, for this run only. Raises SourceUnavailable."""
    # In the current folder, where find-links may be, but not of a pip that lies there.
    run = "import sys; sys.path[0] or sys.path.pop(0); import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
    command = [python, "-c", run, "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    try:
        done = ask([*command, *REQUIREMENTS], _SECONDS, env=in_environment())
        lines = done.stderr.splitlines() if done.returncode != 0 else None
    except subprocess.TimeoutExpired as error:
        lines = [f"pip did not finish within {error.timeout:g} seconds"]
    if lines is not None:
        said = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        if machine_failed("\n".join(lines)):
            raise MachineFailed(f"pip failed: {one_line('; '.join(said) or lines[-1])}")
        tried = [Tried("the package indexes of pip's configuration", one_line("; ".join(said) or "no message"))]
        wanted = " ".join(f"'{r}'" for r in REQUIREMENTS)
        hint = f"`--no-build-isolation` uses the packages of {python}, which must have {wanted}"
        raise SourceUnavailable("cannot install what setup.py needs to run", tried, hint=hint)
    return folder


def check_tools(python: str, installed: Mapping[str, str], *, native: bool) -> None:
    """Raise WrongUse unless the environment has REQUIREMENTS. `installed` is versions by normalised name."""
    from packaging.requirements import Requirement

    missing = []
    for text in REQUIREMENTS:
        requirement = Requirement(text)
        version = installed.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"'{text}'" + (f" (it has {version})" if version else ""))
    if missing:
        wanted = " ".join(m.partition(" (")[0] for m in missing)
        other = "--build-native uses the environment's packages" if native else "or omit --no-build-isolation"
        hint = f"{shlex.quote(python)} -m pip install {wanted}; {other}"
        raise WrongUse(f"{python} lacks what setup.py needs to run: {', '.join(missing)}", hint=hint)


def build_environment(
    item: InstallTree, python: str, tools: Path | None, more: Mapping[str, str], *, native: bool = False
) -> dict[str, str]:
    """Return the environment for upstream's setup.py. The user's own values of ENVIRONMENT and `more` win.

    PYTHONPATH is dropped, as it may lead to this very tree; a native build keeps the rest of it, which has CANN's
    packages.
    """
    env = {**ENVIRONMENT, **more, **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    path = env.pop("PYTHONPATH", "")
    if native and (kept := _outside(path, item.folder)):
        env["PYTHONPATH"] = kept
    env["PATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(python)), env.get("PATH", os.defpath)])
    if tools is not None:
        env["PYTHONPATH"] = str(tools)
    if item.version is not None:
        # setup.py calls get_version() without a name, which reads the first; pyproject.toml's hook reads the second.
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = item.version
        env[f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{re.sub(r'[-_.]+', '_', item.upstream).upper()}"] = item.version
    return env


def _outside(path: str, folder: Path) -> str:
    """Return PYTHONPATH without entries in or below the folder."""
    inner = folder.resolve()
    return os.pathsep.join(p for p in path.split(os.pathsep) if p and not Path(p).resolve().is_relative_to(inner))


def read_metadata(item: InstallTree, copy: Path, python: str, tools: Path | None, folder: Path) -> Metadata:
    """Run a copy's setup.py for its metadata. Raises WrongUse with its error, SourceMismatch for another version."""
    folder.mkdir()
    project = copy / "pyproject.toml"
    named = _BACKEND.search(project.read_text(encoding="utf-8")) if project.is_file() else None
    if named is not None and named[1].partition(":")[0] != "setuptools.build_meta":
        raise WrongUse(
            f"{item.upstream} is built by {named[1]}, but only setuptools is supported", where=str(item.folder)
        )
    if named is None and not (project.is_file() or (copy / "setup.py").is_file()):
        raise WrongUse(f"{item.upstream} has neither pyproject.toml nor setup.py", where=str(item.folder))
    stands_in = "torch stands in" if (item.packages.keys() & {"vllm"}) else "no"
    command = [python, "-c", _DRIVER, str(folder), "build_meta" if named else "legacy", stands_in]
    try:
        done = ask(command, _SECONDS, cwd=copy, env=build_environment(item, python, tools, _FOR_METADATA))
    except (OSError, subprocess.SubprocessError) as error:
        raise WrongUse(f"setup.py of {item.upstream} cannot be run: {error}", where=str(item.folder)) from error
    if done.returncode != 0:
        raise WrongUse(f"setup.py of {item.upstream} failed: {_last(done.stderr)}", where=str(item.folder))
    return _checked(item, _read(folder))


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Traceback (")]
    return one_line("; ".join(lines[-3:])) or "no message"


def _read(folder: Path) -> Metadata:
    name = (folder / "name").read_text(encoding="utf-8")
    top = folder / name
    kept = (p for p in sorted(top.rglob("*")) if p.is_file() and p.name not in ("RECORD", "WHEEL"))
    files = {p.relative_to(top).as_posix(): p.read_bytes() for p in kept}
    head = message_from_bytes(files["METADATA"])
    return Metadata(head["Name"], head["Version"], name, files)


def _checked(item: InstallTree, metadata: Metadata) -> Metadata:
    from packaging.version import Version

    if item.version is not None and Version(metadata.version).public != Version(item.version).public:
        what = f"{item.upstream} calls itself {metadata.name} {metadata.version}, but {item.version} is pinned"
        raise SourceMismatch(what, where=str(item.folder))
    return metadata


def native_wheel(item: InstallTree, copy: Path, python: str, folder: Path) -> Path:
    """Build a copy with upstream's own build, extensions included, in the environment. Output goes to stderr.

    Raises WrongUse if it fails.
    """
    command: Sequence[str] = [
        python,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "-v",
        "--wheel-dir",
        str(folder),
        str(copy),
    ]
    done = subprocess.run(
        command,
        env=build_environment(item, python, None, {}, native=True),
        stdin=subprocess.DEVNULL,
        stdout=2,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        hint = "its output is above; without --build-native nothing is compiled"
        raise WrongUse(f"the build of {item.upstream} failed", where=str(item.folder), hint=hint)
    return wheels[0]


def write_wheel(item: InstallTree, metadata: Metadata, folder: Path, *, editable: bool) -> Path:
    """Write the wheel into `folder` and return its path. Raises WrongUse for a path that a .pth file cannot hold."""
    content = _pointer(item, metadata) if editable else _packages(item, generated=True)
    content |= {f"{metadata.folder}/{path}": (REGULAR, data) for path, data in metadata.files.items()}
    content[f"{metadata.folder}/WHEEL"] = (REGULAR, _WHEEL.encode("ascii"))
    name = canonicalize_name(metadata.name).replace("-", "_")
    target = folder / f"{name}-{metadata.version}-py3-none-any.whl"
    return _write(target, content, item, metadata.folder, editable)


def complete_wheel(item: InstallTree, built: Path, folder: Path) -> Path:
    """Add every file of the packages to upstream's own wheel, which may leave some out.

    Files made by the build (extensions, version files) stay as built.
    """
    with zipfile.ZipFile(built) as archive:
        names = [info for info in archive.infolist() if not info.is_dir()]
        runs = {i.filename: EXECUTABLE if i.external_attr >> 16 & 0o100 else REGULAR for i in names}
        content = {i.filename: (runs[i.filename], archive.read(i)) for i in names}
    record = next(name for name in content if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
    del content[record]
    content |= _packages(item, generated=False)
    return _write(folder / built.name, content, item, record.partition("/")[0], editable=False)


def _write(target: Path, content: Content, item: InstallTree, folder: str, editable: bool) -> Path:
    record = f"{folder}/RECORD"
    content[f"{folder}/{RECORD_FILE}"] = (REGULAR, _origin(item, editable))
    content[record] = (REGULAR, _record(content, record))
    # pip writes files in this order and uninstalls by RECORD. With RECORD last (pip's own order), a killed pip leaves
    # a package that no pip can replace (uninstall-no-record-file); with RECORD first the next install can.
    order = sorted(content, key=lambda path: (path != record, path != f"{folder}/METADATA"))
    with zipfile.ZipFile(target, "w") as out:
        for path, (mode, data) in ((path, content[path]) for path in order):
            info = zipfile.ZipInfo(path, _EPOCH)
            info.external_attr = (0o100755 if mode == EXECUTABLE else 0o100644) << 16
            out.writestr(info, data)
    return target


def _packages(item: InstallTree, *, generated: bool) -> Content:
    """Return every file of the packages, whatever upstream's package_data lists: the package equals the tree."""
    found: Content = {}
    for path, mode, data in item.files(generated=generated):
        for package, inner in item.packages.items():
            if path.startswith(f"{inner}/"):
                found[package.replace(".", "/") + path.removeprefix(inner)] = (mode, data)
    return found


def _pointer(item: InstallTree, metadata: Metadata) -> Content:
    """Return a .pth file with the packages' parent folders: read at every start, so it follows each apply."""
    folders = []
    for package, inner in item.packages.items():
        above = inner.removesuffix(package.replace(".", "/"))
        if above == inner:
            raise WrongUse(
                f"{package} is in {inner}, which no import path can lead to", hint="install without --editable"
            )
        folders.append(str(item.folder / above).rstrip("/"))
    if not all(folder.isprintable() for folder in folders):
        raise WrongUse(
            "a .pth file cannot hold this folder's name", where=str(item.folder), hint="install without --editable"
        )
    text = "".join(f"{folder}\n" for folder in dict.fromkeys(folders))
    return {f"__editable__.{metadata.folder.removesuffix('.dist-info')}.pth": (REGULAR, text.encode("utf-8"))}


def _origin(item: InstallTree, editable: bool) -> bytes:
    """Return a record of what was installed, for people and for the next install."""
    state = item.state
    data: Mapping[str, object] = {
        "schema": 1,
        "upstream": item.upstream,
        "folder": str(item.folder),
        "editable": editable,
        "stack": state.stack,
        "form": state.form,
        "tip_commit": state.tip_commit,
        "tip_tree": state.tip_tree,
    }
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("ascii")


def _record(content: Content, own: str) -> bytes:
    """Return RECORD, by which pip uninstalls: CSV, since vllm has file names with commas."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((path, _digest(data), len(data)) for path, (_, data) in content.items())
    rows.writerow((own, "", ""))
    return text.getvalue().encode("utf-8")


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
