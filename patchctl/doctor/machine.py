"""Checks git, Python, the tool's own dependencies, the cache's file system and the locale; and whether every stack's source is
available: cache, mirrors, remotes, package indexes. Fetches nothing."""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.version import Version

from patchctl.bundle.signature import ssh_keygen
from patchctl.errors import PatchctlError, Tried, WrongUse
from patchctl.findings import Finding, judged, looked_at
from patchctl.git.run import OLDEST_GIT, git_executable, isolated_environment
from patchctl.language import joined, message
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.config import BundlePolicy
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import one_line, visible_line

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
# Must match pyproject.toml, as a test checks: distribution, import name, oldest version.
DEPENDENCIES = (
    ("click", "click", "8.1"),
    ("GitPython", "git", "3.1.41"),
    ("packaging", "packaging", "23"),
    ("pyflakes", "pyflakes", "3.2"),
    ("PyYAML", "yaml", "6.0.1"),
    ("unearth", "unearth", "0.17"),
    ("unidiff", "unidiff", "0.7.5"),
)
# Measured on ext4 after `apply` of five pins, verl v0.6.0 among them, 8,392 files: 67.1 MB of cache (four from git,
# vllm from its sdist with the archive), 161.6 MB of workspace (files and one repository per tree).
CACHE_BYTES_A_FILE = 8_000
WORKSPACE_BYTES_A_FILE = 19_300
_AT_ONCE = 8


def check_git() -> Finding:
    """Check that git is on PATH and recent enough."""
    hint = message("install git {version} or newer", version=".".join(map(str, OLDEST_GIT)))
    try:
        path = git_executable()
        env = isolated_environment(os.devnull)
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True, env=env
        ).stdout
    except WrongUse as error:
        return looked_at("machine", "git", "error", error.what, hint)
    except (OSError, subprocess.SubprocessError) as error:
        what = message("git cannot be run: {error}", error=one_line(str(error)))
        return looked_at("machine", "git", "error", what, hint)
    found = re.search(r"(\d+)\.(\d+)[\w.]*", said)
    if found is None:
        what = message("{path} printed {output}, which contains no version", path=path, output=one_line(said))
        return looked_at("machine", "git", "warning", what, hint)
    return looked_at("machine", "git", "ok", message("{version} at {path}", version=found[0], path=path))


def check_ssh_keygen(policy: BundlePolicy) -> Finding:
    """Check the tool that signs bundles and verifies signatures; needed if the user wants them verified."""
    needed = policy.signatures != "off"
    try:
        tool = ssh_keygen()
        if needed and not os.access(str(policy.allowed_signers), os.R_OK):
            signers = visible_line(str(policy.allowed_signers))
            what = message("cannot read {path}, the list of allowed signers", path=signers)
            todo = message("create it as docs/bundles.md describes")
            return looked_at("machine", "signatures", "error", what, todo)
    except WrongUse as error:
        return looked_at("machine", "signatures", "error" if needed else "warning", error.what, error.hint, needed)
    what = message(
        "{path} verifies bundle signatures; `signatures: {policy}` in the user configuration",
        path=tool,
        policy=policy.signatures,
    )
    return looked_at("machine", "signatures", "ok", what, needed=needed)


def check_python(version: Sequence[int]) -> Finding:
    """Check the interpreter that runs patchctl."""
    text = message("{version} at {path}", version=".".join(map(str, version)), path=sys.executable)
    oldest, newest = ".".join(map(str, OLDEST_PYTHON)), ".".join(map(str, NEWEST_PYTHON))
    if (version[0], version[1]) < OLDEST_PYTHON:
        todo = message("run patchctl with Python {oldest} to {newest}", oldest=oldest, newest=newest)
        return looked_at("machine", "python", "error", message("{python} is too old", python=text), todo)
    if (version[0], version[1]) > NEWEST_PYTHON:
        what = message("{python} is newer than any tested version", python=text)
        todo = message("tested with Python {oldest} to {newest}", oldest=oldest, newest=newest)
        return looked_at("machine", "python", "warning", what, todo)
    return looked_at("machine", "python", "ok", text)


def check_dependencies() -> Iterator[Finding]:
    """Yield one finding for all good dependencies, and one for each that is missing or too old."""
    good = []
    for name, module, oldest in DEPENDENCIES:
        todo = f"{sys.executable} -m pip install '{name}>={oldest}'"
        try:
            importlib.import_module(module)
            version = importlib.metadata.version(name)
            is_old = Version(version) < Version(oldest)
        except Exception as error:  # a broken installation can raise anything
            what = message("cannot be imported: {error}", error=one_line(str(error)))
            yield looked_at("machine", name, "error", what, todo)
            continue
        if is_old:
            yield looked_at("machine", name, "error", message("{version} is too old", version=version), todo)
        else:
            good.append(f"{name} {version}")
    yield looked_at("machine", "dependencies", "ok", joined(good))


def check_cache(folder: Path, files: int | None) -> Iterator[Finding]:
    """Check that the cache is writable, what its file system supports, and that the sources of `files` files fit."""
    hint = message("set PATCHCTL_CACHE or --cache to a writable folder on a local disk")
    base = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    where = str(folder)
    if base != folder:
        where = message("{folder} (to be created in {base})", folder=folder, base=base)
    try:
        with tempfile.TemporaryDirectory(prefix=".patchctl-doctor-", dir=base) as scratch:
            lacks = _lacks(Path(scratch))
    except OSError as error:
        what = message("{folder} cannot be written: {error}", folder=where, error=error.strerror)
        yield looked_at("machine", "cache", "error", what, hint)
        return
    kind = _file_system(base)
    if lacks:
        what = message("{folder}, file system {kind}: {lacks}", folder=where, kind=kind, lacks=joined(lacks))
        yield looked_at("machine", "cache", "warning", what, hint)
    else:
        what = message("{folder}, file system {kind}: case-sensitive, supports links", folder=where, kind=kind)
        yield looked_at("machine", "cache", "ok", what)
    yield _space(base, files)


def _lacks(scratch: Path) -> list[str]:
    """Return what the file system of `scratch` does not support, by trying."""
    found: list[str] = []
    (scratch / "Name").write_text("x", encoding="ascii")
    if (scratch / "nAME").exists():
        found.append(message("case-insensitive"))
    try:
        os.symlink(scratch / "Name", scratch / "symbolic-link")
    except OSError as error:
        found.append(message("no symbolic links ({error})", error=error.strerror))
    try:
        os.link(scratch / "Name", scratch / "hard-link")
    except OSError as error:
        found.append(message("no hard links ({error})", error=error.strerror))
    (scratch / "Name").chmod(0o755)
    if not (scratch / "Name").stat().st_mode & 0o100:
        found.append(message("no executable bits"))
    return found


def _space(base: Path, files: int | None) -> Finding:
    free = shutil.disk_usage(base).free
    if files is None:
        text = message(
            "{free} free at {folder}; the space for sources is unknown without file lists",
            free=size_text(free),
            folder=base,
        )
        return looked_at("machine", "space", "ok", text)
    cache, workspace = files * CACHE_BYTES_A_FILE, files * WORKSPACE_BYTES_A_FILE
    text = message(
        "{free} free at {folder}; {files} files need about {cache} in the cache and {workspace} in a workspace",
        free=size_text(free),
        folder=base,
        files=files,
        cache=size_text(cache),
        workspace=size_text(workspace),
    )
    todo = message("free some space, or set PATCHCTL_CACHE to another disk")
    return judged("machine", "space", "warning" if free < cache + workspace else "ok", text, todo)


def _file_system(folder: Path) -> str:
    """Return the type from /proc/mounts, by longest mount point; `unknown` outside Linux."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return message("unknown")
    best: str = ""
    kind: str = message("unknown")
    real = os.path.realpath(folder)
    for line in mounts:
        point, found = (re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), word) for word in line.split(" ")[1:3])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return visible_line(kind)


def check_locale() -> Finding:
    """Check that file names and messages can contain any character."""
    encodings = {
        message("file names"): sys.getfilesystemencoding(),
        message("text"): locale.getpreferredencoding(False),
        message("standard output"): getattr(sys.stdout, "encoding", None) or message("unknown"),
    }
    other = [
        message("{what}: {name}", what=what, name=name)
        for what, name in encodings.items()
        if name.lower().replace("-", "") != "utf8"
    ]
    if other:
        text = message("not UTF-8 ({encodings})", encodings=joined(other))
        return looked_at("machine", "locale", "warning", text, message("set LC_ALL=C.UTF-8, or PYTHONUTF8=1"))
    return looked_at("machine", "locale", "ok", "UTF-8")


def check_sources(
    stacks: Sequence[tuple[Upstream, Stack]], options: SourceOptions, note: Callable[[str], None]
) -> Iterator[Finding]:
    """Yield one finding per stack: an error if no place has it, a warning if some expected place does not answer."""
    for upstream, stack in stacks:
        note(f"looking for {stack.upstream}")
        name = f"{stack.upstream} {stack.name}"
        try:
            yield _source(name, upstream, stack, options)
        except PatchctlError as error:
            yield looked_at("sources", name, "error", one_line(str(error)), error.hint)


def _source(name: str, upstream: Upstream, stack: Stack, options: SourceOptions) -> Finding:
    """What was found for a stack: cached forms; git places that answer or not; indexes that list it or not."""
    from patchctl.source.cache import cached_git, cached_sdist

    cached = []
    if cached_git(stack.upstream, stack.pin, options.cache) is not None:
        cached.append("git")
    if cached_sdist(stack.upstream, upstream, stack, options.cache) is not None:
        cached.append("sdist")
    answering, silent = _git_places(upstream, options.mirrors.get(stack.upstream, ()), options.offline)
    unlisted: list[Tried] = []
    listed: list[str] = []
    if upstream.sdist is not None and stack.pin.sdist is not None and not options.offline:
        from patchctl.source.package_index import offers

        listed = offers(upstream.sdist, stack.pin.sdist, unlisted)
    had = [message("in the cache (form {forms})", forms=joined(cached))] if cached else []
    had += [message("git answers at {place}", place=answering[0])] if answering else []
    had += [message("the sdist is at {place}", place=listed[0])] if listed else []
    have = joined(had)
    tried = tuple(Tried(t.place, one_line(t.reason)) for t in (*silent, *unlisted))
    if not have and options.offline:
        todo = message("run `patchctl fetch` with a network")
        return looked_at("sources", name, "warning", message("not in the cache, and offline"), todo)
    if not have:
        todo = message(
            "add a git mirror with --mirror {upstream}=URL or `mirrors:` in the user configuration",
            upstream=stack.upstream,
        )
        return looked_at("sources", name, "error", message("no place has it"), todo, tried=tried)
    if "git" not in cached and not answering and not options.offline:
        todo = message("enough as long as no patch needs a file that the sdist lacks; --mirror adds a git mirror")
        what = message("{places}; no git place answers", places=have)
        return looked_at("sources", name, "warning", what, todo, tried=tried)
    return looked_at("sources", name, "ok", have, tried=tried)


def _git_places(upstream: Upstream, mirrors: Sequence[str], offline: bool) -> tuple[list[str], list[Tried]]:
    """Return which places are there: local folders exist, hosts accept connections. Only a fetch finds the commit."""
    from patchctl.source.git_form import why_skipped
    from patchctl.source.places import parse_place

    places = [parse_place(address) for address in (*mirrors, *upstream.git)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reasons = list(pool.map(lambda place: why_skipped(place, offline), places))
    good = [place.shown for place, reason in zip(places, reasons, strict=True) if reason is None]
    bad = [Tried(place.shown, reason) for place, reason in zip(places, reasons, strict=True) if reason is not None]
    return good, bad
