"""Runs git isolated from the user's configuration, hooks, prompts and environment.

docs/isolation.md explains the rules. In short: an absolute path, found once, so that a `git` in the current directory
is never run (CVE-2023-40590); no inherited GIT_* variables; one generated configuration file instead of the user's
and the system's; allowed protocols only (no `ext::`, CVE-2022-24439).

A work tree's `.git/config` overrides everything given from outside, and much of it names commands (core.fsmonitor,
filters, a promisor remote's uploadpack) or changes file content (core.autocrlf, core.symlinks). Names of filters and
includes cannot be listed in advance, so git is shown another common directory (GIT_COMMON_DIR, as in a linked
worktree): links to the repository's objects and refs beside a configuration of ours.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchctl.errors import GitKilled, MachineFailed, PatchctlError, WrongUse
from patchctl.language import message
from patchctl.process_group import find_program

ALLOWED_PROTOCOLS = "file:git:http:https:ssh"

# Set for every call: nothing may depend on the user's or the distribution's settings.
BASE_CONFIG: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.autocrlf", "false"),
    ("core.attributesFile", os.devnull),
    ("core.excludesFile", os.devnull),
    ("core.quotePath", "true"),
    ("protocol.ext.allow", "never"),
    ("fetch.unpackLimit", "1"),
    ("transfer.fsckObjects", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    ("init.defaultBranch", "main"),
    ("user.name", "patchctl"),
    ("user.email", "patchctl@localhost"),
)


class GitFailed(PatchctlError):
    """git exited with an error. `stderr` is its output; callers turn it into a message for the user.

    Uncaught, it is a message and not a traceback: git names the cause, though not always all of it.
    """

    code = 2
    kind = "git-failed"

    def __init__(self, command: Sequence[str], status: int, stderr: str) -> None:
        shown = " ".join(command[:3])
        super().__init__(f"`git {shown}` exited with status {status}: {stderr.strip()[-2000:] or 'no message'}")
        self.status = status
        self.stderr = stderr


class GitRefused(MachineFailed):
    """The system kept git from writing or reading, or killed a child of it. The request itself was fine."""

    kind = "git-refused"

    def __init__(self, command: str, why: str) -> None:
        hint = message("free some space or repair the disk, then run the same command again")
        super().__init__(message("`git {command}` failed: {why}", command=command, why=why), hint=hint)


# git's messages under LC_ALL=C; the last ones are all it prints when it omits the reason.
_REFUSALS = re.compile(
    "No space left on device|Disk quota exceeded|Read-only file system|Input/output error|Too many open files|"
    "Cannot allocate memory|died of signal|Out of diskspace|write error|[Uu]nable to write new|couldn't (?:write|set) '|"
    "failed to write|unable to create directory for"
)


def git_failure(args: Sequence[str], status: int, stderr: str) -> PatchctlError:
    """Return the exception for a failed git: GitKilled, GitRefused or GitFailed."""
    if status < 0:
        return GitKilled(_shown(args), -status)
    for line in stderr.splitlines():
        if not line.startswith("remote:") and _REFUSALS.search(line):  # a server's full disk is not ours
            return GitRefused(_shown(args), line.strip())
    return GitFailed(args, status, stderr)


def _shown(args: Sequence[str]) -> str:
    return " ".join(a for a in args if not a.startswith("--"))[:60]


OLDEST_GIT = (2, 32)
_INSTALL = message("install git {version} or newer, and put it first on PATH", version=".".join(map(str, OLDEST_GIT)))


@functools.cache
def git_executable() -> str:
    """Return the absolute path of git, never one in the current directory. Raises WrongUse if missing or too old.

    An older git does not know GIT_CONFIG_GLOBAL (2.32): it would read the user's settings, run their hooks and
    monitors, and change files.
    """
    found = find_program("git")
    if found is None:
        raise WrongUse(
            message("git not found on PATH"),
            hint=message("{todo}; `patchctl doctor` lists what is missing", todo=_INSTALL),
        )
    said = subprocess.run([found, "--version"], env=isolated_environment(os.devnull), capture_output=True, check=False)
    version = re.search(rb"(\d+)\.(\d+)", said.stdout)
    if version is not None and (int(version[1]), int(version[2])) < OLDEST_GIT:
        what = message(
            "git {version} at {path} is too old: it cannot be isolated from the user's settings",
            version=version[0].decode(),
            path=found,
        )
        raise WrongUse(what, hint=_INSTALL)
    return found


def isolated_environment(config_file: str) -> dict[str, str]:
    """Return this process's environment without GIT_* variables, with git bound to `config_file` only."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH")}
    env.update(
        GIT_CONFIG_GLOBAL=config_file,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_ASKPASS="true",
        GIT_OPTIONAL_LOCKS="0",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_NO_LAZY_FETCH="1",  # git 2.39.4, 2.45: a promisor remote names a command
        GIT_ALLOW_PROTOCOL=ALLOWED_PROTOCOLS,
        GIT_CONFIG_COUNT="0",
        LC_ALL="C",
        LANGUAGE="C",
    )
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    return env


def render_config(extra: Sequence[tuple[str, str]] = ()) -> str:
    """Return the text of a git configuration file with BASE_CONFIG and `extra`, in that order."""
    lines = []
    for key, value in (*BASE_CONFIG, *extra):
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        quoted = subsection.replace("\\", "\\\\").replace('"', '\\"')
        head = f'[{section} "{quoted}"]' if subsection else f"[{section}]"
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'{head}\n\t{name} = "{escaped}"\n')
    return "".join(lines)


def git_environment(extra: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Return an environment with a generated configuration file.

    A file, not `-c`: settings given with `-c` do not reach the upload-pack that a fetch from a local path starts, and
    `safe.directory` is only honoured in files.
    """
    return isolated_environment(str(scratch_file(render_config(extra))))


def scratch_file(text: str) -> Path:
    """Return a file with this text in `scratch_folder`, written once per process. Must not be modified."""
    file = scratch_folder() / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not file.exists():
        with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as part:
            part.write(text)
        os.replace(part.name, file)  # atomic, for threads that read it meanwhile
    return file


@functools.cache
def scratch_folder() -> Path:
    """Return this process's folder for files that git is given. It is removed when the process exits."""
    try:
        folder = tempfile.mkdtemp(prefix="patchctl-git-")
    except OSError as error:  # without a file name if every folder that tempfile tries is full or closed
        raise GitRefused("config", f"cannot write a temporary file: {error.strerror}") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def run_git(
    args: Sequence[str],
    *,
    repo: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    config: Sequence[tuple[str, str]] = (),
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> bytes:
    """Run git and return its standard output.

    With `repo`, that folder is the repository (`--git-dir`), so that git never walks up into another one. `pass_fds`
    are inherited. Raises what `git_failure` returns on a non-zero status.
    """
    own = dict(git_environment(config) if env is None else env)
    where = [] if repo is None else [f"--git-dir={repo}"]
    command = [git_executable(), *where, *args]
    done = subprocess.run(
        command, env=own, input=stdin or b"", cwd=cwd, capture_output=True, check=False, pass_fds=pass_fds
    )
    if done.returncode != 0:
        raise git_failure(args, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout


# Keeps files as they are: an upstream's .gitattributes must not convert them in our trees.
ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
# What linked worktrees share, without config, hooks, info/attributes and info/grafts.
_SHARED = ("objects", "refs", "packed-refs", "logs", "shallow", "info/exclude")
_SHARED_WHERE_THERE = ("reftable", "worktrees", "rr-cache")  # none of these is created by the git commands that we run


def common_folder(git_dir: Path) -> Path:
    """Return the common directory of a git directory: itself, unless it is a linked worktree's."""
    pointer = git_dir / "commondir"
    if pointer.is_file():
        return Path(os.path.normpath(git_dir / pointer.read_text(encoding="utf-8").strip()))
    return git_dir


def without_settings(git_dir: Path, *, file_modes: bool = True) -> str:
    """Return the GIT_COMMON_DIR that keeps git from reading this git directory's configuration."""
    common = common_folder(git_dir).absolute()
    modes = "true" if file_modes else "false"
    name = hashlib.sha256(os.fsencode(f"{git_dir.absolute()}\0{common}\0{modes}")).hexdigest()[:16]
    place = scratch_folder() / f"common-{name}"
    if not place.is_dir():
        _make(place, common, modes)
    return str(place)


def foreign_environment(git_dir: Path, config: Sequence[tuple[str, str]], *, file_modes: bool = True) -> dict[str, str]:
    """Return `git_environment`, isolated from the settings of this git directory too, which need not be ours."""
    return {**git_environment(config), "GIT_COMMON_DIR": without_settings(git_dir, file_modes=file_modes)}


def _make(place: Path, common: Path, modes: str) -> None:
    """Create the common directory with few new files: ext4 takes 0.3 ms per file where many were just deleted."""
    building = Path(tempfile.mkdtemp(dir=place.parent))
    (building / "info").mkdir()
    reftable = (common / "reftable").is_dir()
    settings = f"[core]\n\trepositoryFormatVersion = {int(reftable)}\n\tbare = false\n\tfileMode = {modes}\n"
    settings += "[extensions]\n\trefStorage = reftable\n" if reftable else ""
    for name, text in (("config", settings), ("info/attributes", ATTRIBUTES)):
        try:
            (building / name).hardlink_to(scratch_file(text))
        except OSError:  # a file system without hard links
            (building / name).write_text(text, encoding="ascii")
    for shared in (*_SHARED, *(name for name in _SHARED_WHERE_THERE if (common / name).is_dir())):
        (building / shared).symlink_to(common / shared)
    try:
        building.rename(place)
    except OSError:
        if not place.is_dir():  # otherwise another thread was faster
            raise
