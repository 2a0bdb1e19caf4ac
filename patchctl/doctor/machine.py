"""git, Python, the tool's own dependencies, the cache's file system and the locale."""

from __future__ import annotations

import importlib
import importlib.metadata
import locale
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from patchctl.bundle.signature import ssh_keygen
from patchctl.errors import WrongUse
from patchctl.findings.report import Finding, looked_at
from patchctl.git.run import OLDEST_GIT, git_executable, isolated_environment
from patchctl.source.config import BundlePolicy
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import one_line, visible_line

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
# What pyproject.toml declares: the name there, what is imported, the oldest version. A test compares both.
DEPENDENCIES = (
    ("click", "click", "8.1"),
    ("GitPython", "git", "3.1.41"),
    ("packaging", "packaging", "23"),
    ("pyflakes", "pyflakes", "3.2"),
    ("PyYAML", "yaml", "6.0.1"),
    ("unearth", "unearth", "0.17"),
    ("unidiff", "unidiff", "0.7.5"),
)
# Measured on ext4 after `apply` of five pins, verl v0.6.0 one of them, 8,392 files: 67.1 MB of cache (four from git, vllm
# from its sdist with the archive), 161.6 MB of workspace (the files, and a repository for each tree).
CACHE_BYTES_A_FILE = 8_000
WORKSPACE_BYTES_A_FILE = 19_300


def check_git() -> Finding:
    """git on PATH, and new enough for what we ask of it."""
    hint = f"install git {'.'.join(map(str, OLDEST_GIT))} or newer"
    try:
        path = git_executable()
        env = isolated_environment(os.devnull)
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True, env=env
        ).stdout
    except WrongUse as error:
        return looked_at("machine", "git", "error", error.what, hint)
    except (OSError, subprocess.SubprocessError) as error:
        return looked_at("machine", "git", "error", f"git cannot be run: {one_line(str(error))}", hint)
    found = re.search(r"(\d+)\.(\d+)[\w.]*", said)
    if found is None:
        return looked_at("machine", "git", "warning", f"{path} says {one_line(said)}, which names no version", hint)
    return looked_at("machine", "git", "ok", f"{found[0]} at {path}")


def check_ssh_keygen(policy: BundlePolicy) -> Finding:
    """What signs bundles and checks their signatures; needed where the user wants them checked."""
    needed = policy.signatures != "off"
    try:
        found = f"{ssh_keygen()} checks the signatures of bundles"
        if needed and not os.access(str(policy.allowed_signers), os.R_OK):
            what = f"{policy.allowed_signers} cannot be read, and bundles are held against it"
            return looked_at("machine", "signatures", "error", visible_line(what), "write it: docs/bundles.md says how")
    except WrongUse as error:
        return looked_at("machine", "signatures", "error" if needed else "warning", error.what, error.hint, needed)
    return looked_at(
        "machine", "signatures", "ok", f"{found}; the user configuration says: {policy.signatures}", needed=needed
    )


def check_python(version: Sequence[int]) -> Finding:
    """The interpreter that runs patchctl."""
    text = f"{'.'.join(map(str, version))} at {sys.executable}"
    span = f"Python {'.'.join(map(str, OLDEST_PYTHON))} to {'.'.join(map(str, NEWEST_PYTHON))}"
    if (version[0], version[1]) < OLDEST_PYTHON:
        return looked_at("machine", "python", "error", f"{text} is too old", f"run patchctl with {span}")
    if (version[0], version[1]) > NEWEST_PYTHON:
        return looked_at(
            "machine", "python", "warning", f"{text} is newer than any that was tried", f"tried with {span}"
        )
    return looked_at("machine", "python", "ok", text)


def check_dependencies() -> Iterator[Finding]:
    """One finding for all that can be imported, and one for each that cannot or is too old."""
    good = []
    for name, module, oldest in DEPENDENCIES:
        todo = f"{sys.executable} -m pip install '{name}>={oldest}'"
        try:
            importlib.import_module(module)
            version = importlib.metadata.version(name)
        except Exception as error:  # whatever a broken installation raises
            yield looked_at("machine", name, "error", f"cannot be imported: {one_line(str(error))}", todo)
            continue
        if _numbers(version) < _numbers(oldest):
            yield looked_at("machine", name, "error", f"{version} is too old", todo)
        else:
            good.append(f"{name} {version}")
    yield looked_at("machine", "dependencies", "ok", ", ".join(good))


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; `packaging` may be what is missing."""
    head = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(n) for n in head[0].split(".")) if head else ()


def check_cache(folder: Path, files: int | None) -> Iterator[Finding]:
    """Whether the cache can be written, what its file system can do, and whether the sources of `files` files fit."""
    hint = "set PATCHCTL_CACHE, or pass --cache, to a folder on a local disk that can be written"
    base = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    where = str(folder) if base == folder else f"{folder} (to be made in {base})"
    try:
        with tempfile.TemporaryDirectory(prefix=".patchctl-doctor-", dir=base) as scratch:
            lacks = _lacks(Path(scratch))
    except OSError as error:
        yield looked_at("machine", "cache", "error", f"{where} cannot be written: {error.strerror}", hint)
        return
    kind = _file_system(base)
    if lacks:
        yield looked_at("machine", "cache", "warning", f"{where}, file system {kind}: {', '.join(lacks)}", hint)
    else:
        yield looked_at("machine", "cache", "ok", f"{where}, file system {kind}: case is kept, links can be made")
    yield _space(base, files)


def _lacks(scratch: Path) -> list[str]:
    """What the file system of `scratch` cannot do, by trying it."""
    found = []
    (scratch / "Name").write_text("x", encoding="ascii")
    if (scratch / "nAME").exists():
        found.append("names that differ in case alone are one file")
    for word, link in (("symbolic", os.symlink), ("hard", os.link)):
        try:
            link(scratch / "Name", scratch / f"{word}-link")
        except OSError as error:
            found.append(f"no {word} links ({error.strerror})")
    (scratch / "Name").chmod(0o755)
    if not (scratch / "Name").stat().st_mode & 0o100:
        found.append("executable bits are not kept")
    return found


def _space(base: Path, files: int | None) -> Finding:
    free = shutil.disk_usage(base).free
    text = f"{size_text(free)} free at {base}"
    if files is None:
        return looked_at("machine", "space", "ok", f"{text}; what the sources need is not known without lists of files")
    cache, workspace = files * CACHE_BYTES_A_FILE, files * WORKSPACE_BYTES_A_FILE
    text += f"; {files} files need about {size_text(cache)} in the cache and {size_text(workspace)} in a workspace"
    if free < cache + workspace:
        return looked_at("machine", "space", "warning", text, "make room, or set PATCHCTL_CACHE to another disk")
    return looked_at("machine", "space", "ok", text)


def _file_system(folder: Path) -> str:
    """Its type by /proc/mounts, the longest mount point that holds the folder; `unknown` elsewhere than on Linux."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    real = os.path.realpath(folder)
    for line in mounts:
        point, found = (re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), word) for word in line.split(" ")[1:3])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return visible_line(kind)


def check_locale() -> Finding:
    """Whether names and messages can hold any letter."""
    encodings = {
        "file names": sys.getfilesystemencoding(),
        "text": locale.getpreferredencoding(False),
        "standard output": getattr(sys.stdout, "encoding", None) or "unknown",
    }
    other = [f"{what}: {name}" for what, name in encodings.items() if name.lower().replace("-", "") != "utf8"]
    if other:
        return looked_at(
            "machine", "locale", "warning", f"not UTF-8 ({', '.join(other)})", "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        )
    return looked_at("machine", "locale", "ok", "UTF-8")
