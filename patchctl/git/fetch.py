"""Fetches one commit into a bare repository, shallow, isolated except for what it takes to reach a server.

Proxies, certificates, credential helpers, rewritten addresses and the ssh command come from the user's and the
system's configuration, so these few settings are read once and copied into the generated one. No other setting
applies, nor anything from a repository around the current directory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from patchctl import process_group
from patchctl.git.run import GitFailed, git_environment, git_executable, git_failure, run_git
from patchctl.language import message

Settings = tuple[tuple[str, str], ...]

# A transfer below this rate for this long is dead, and so is a git that prints nothing: --progress reports several
# times a second.
_FETCH_CONFIG: Settings = (
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "30"),
    ("protocol.version", "2"),
    ("transfer.bundleURI", "false"),
    ("transfer.unpackLimit", "1"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    ("fetch.writeCommitGraph", "false"),
    ("pack.writeReverseIndex", "false"),
)
_SILENCE_SECONDS = 60.0
_STDERR_KEPT = 16_384
_USER_KEYS = re.compile(
    r"(http\..+|credential\..+|core\.sshcommand|url\..+\.(insteadof|pushinsteadof))", re.IGNORECASE | re.DOTALL
)
_RECEIVED = re.compile(r"Receiving objects: .*?, ([0-9.]+) (bytes|KiB|MiB|GiB)")
_STEP = re.compile(r"(?:remote: )?([A-Z][a-z]+ [a-z]+): +([0-9]+)%")
_FACTORS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SSH = "ssh -oBatchMode=yes -oConnectTimeout=10"

Report = Callable[[int, str], None]
"""Called with (bytes received so far, current step) during a fetch."""


@functools.cache
def user_settings() -> Settings:
    """Return http.*, credential.*, url.*.insteadOf, url.*.pushInsteadOf and core.sshCommand of user and system.

    GIT_DIR points nowhere, so that the repository around the current directory is not read.
    """
    env = {k: v for k, v in os.environ.items() if k not in ("GIT_WORK_TREE", "GIT_CONFIG")}
    env["GIT_DIR"] = os.devnull
    done = subprocess.run(
        [git_executable(), "config", "--null", "--get-regexp", r"^(http|credential|url|core)\."],
        env=env,
        cwd=os.path.abspath(os.sep),
        capture_output=True,
        check=False,
    )
    found = []
    for item in done.stdout.decode("utf-8", "replace").split("\0"):
        key, has_value, value = item.partition("\n")
        if _USER_KEYS.fullmatch(key):
            found.append((key, value if has_value else "true"))
    return tuple(found)


def is_diverted(address: str) -> bool:
    """Whether git's settings send this address to another host: URL rewriting, a proxy, or ssh's own rules."""
    lowered = [(key.lower(), value) for key, value in user_settings()]
    if any(key.endswith(".insteadof") and address.startswith(value) for key, value in lowered):
        return True
    if any(key == "http.proxy" or (key.startswith("http.") and key.endswith(".proxy")) for key, _ in lowered):
        return True
    return address.startswith("ssh:")  # ~/.ssh/config may name another host, or a jump host


def fetch_commit(repo: Path, address: str, shown: str, commit: str, local: Path | None, report: Report) -> None:
    """Fetch exactly `commit`, depth 1, into the empty bare repository `repo`. Raises GitFailed.

    `shown` is the address without credentials: `ps` shows git's arguments, but not its configuration. `local` is the
    path if `address` is one; only this repository is exempt from git's ownership check (safe.directory).
    """
    config = (
        *_FETCH_CONFIG,
        ("uploadpack.allowAnySHA1InWant", "true"),
        *user_settings(),
        *_safe(local),
        *_meant(address, shown),
    )
    command = [
        f"--git-dir={repo}",
        "fetch",
        "--progress",
        "--depth=1",
        "--no-tags",
        "--no-recurse-submodules",
        "--no-write-fetch-head",
        "--no-auto-maintenance",
        "--",
        shown if local is None else address,
        commit,
    ]
    _run_watched(command, _reachable(git_environment(config)), report)
    for left in (repo / "objects" / "pack").glob("*.keep"):  # git ignores that it cannot remove its .keep file
        left.unlink()
    _end_history(repo, commit)  # nor does it fail if it cannot write `shallow`


def _meant(address: str, shown: str) -> Settings:
    """Return the setting that makes git use `address` where the command line shows it without credentials."""
    return () if address == shown else ((f"url.{address}.insteadOf", shown),)


def _safe(local: Path | None) -> Settings:
    return () if local is None else (("safe.directory", str(local)), ("safe.directory", str(local / ".git")))


def list_refs(address: str, shown: str, local: Path | None, *, head: bool = False) -> dict[str, str]:
    """Return the branches and tags of a remote with their commit ids, or with `head` its HEAD; tags are peeled.

    Raises GitFailed.
    """
    env = git_environment((*_FETCH_CONFIG, *user_settings(), *_safe(local), *_meant(address, shown)))
    where = shown if local is None else address
    asked = ["ls-remote", "--", where, "HEAD"] if head else ["ls-remote", "--heads", "--tags", "--", where]
    # at /, so that the current directory's repository is not read
    out = run_git(asked, env=_reachable(env), cwd=Path(os.path.abspath(os.sep)))
    found: dict[str, str] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        oid, _, ref = line.partition("\t")
        found[ref.removesuffix("^{}")] = oid  # a tag's peeled line follows its own
    return found


def _reachable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fetch. GIT_SSH_COMMAND overrides core.sshCommand, so only one of them is set."""
    prepared = {**env, "GIT_NO_LAZY_FETCH": "1", "SSH_ASKPASS_REQUIRE": "never"}
    prepared.pop("GIT_SSH_COMMAND", None)
    if not any(key.lower() == "core.sshcommand" for key, _ in user_settings()):
        prepared["GIT_SSH_COMMAND"] = _SSH
    return prepared


def _run_watched(command: Sequence[str], env: Mapping[str, str], report: Report) -> None:
    """Run git, report its progress, and kill it when it goes silent.

    It gets its own session: there is no terminal for a credential helper or ssh to prompt on, and helpers are killed
    with it.
    """
    process = process_group.start(
        [git_executable(), *command],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = bytearray()
    try:
        silent = _follow(process, said, report)
        status = process.wait()
    finally:
        if process.poll() is None:
            _kill(process)
            process.wait()
        process_group.forget(process)
        if process.stderr is not None:
            process.stderr.close()
    if silent:
        raise GitFailed(["fetch"], status, f"fatal: no answer for {_SILENCE_SECONDS:.0f} s")
    if status != 0:
        raise git_failure(["fetch"], status, _without_progress(said.decode("utf-8", "replace")))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _follow(process: subprocess.Popen[bytes], said: bytearray, report: Report) -> bool:
    """Read git's stderr to its end. Returns True if git was killed for going silent."""
    assert process.stderr is not None
    source = process.stderr.fileno()
    heard = time.monotonic()
    pending = b""
    while True:
        ready, _, _ = select.select([source], [], [], 1.0)
        if not ready:
            if time.monotonic() - heard > _SILENCE_SECONDS:
                _kill(process)
                return True
            continue
        chunk = os.read(source, 65_536)
        if not chunk:
            return False
        heard = time.monotonic()
        said += chunk
        del said[:-_STDERR_KEPT]
        *lines, pending = re.split(rb"[\r\n]", pending + chunk)
        _report(lines, report)
        pending = pending[-4096:]


def _report(lines: Sequence[bytes], report: Report) -> None:
    """Report the latest amount received and the current step in these lines."""
    amount, doing = 0, ""
    for line in lines:
        text = line.decode("ascii", "replace")
        received, step = _RECEIVED.search(text), _STEP.match(text)
        if received:
            amount = int(float(received[1]) * _FACTORS[received[2]])
        if step:
            doing = _doing(step[1].lower(), step[2])
    if amount or doing:
        report(amount, doing)


def _doing(step: str, percent: str) -> str:
    """Name a step of git with how much of it is done."""
    if step == "counting objects":
        return message("counting objects {percent} %", percent=percent)
    if step == "compressing objects":
        return message("compressing objects {percent} %", percent=percent)
    if step == "receiving objects":
        return message("receiving objects {percent} %", percent=percent)
    if step == "resolving deltas":
        return message("resolving deltas {percent} %", percent=percent)
    return f"{step} {percent} %"


def _without_progress(text: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    return "\n".join(line for line in lines if line and not _STEP.match(line) and "objects: " not in line)


def proven_tree(repo: Path, commit: str) -> str:
    """Return the tree of `commit` after git has checked that it is a commit and that all its objects exist.

    Raises GitFailed if the id is not a commit or an object is missing.
    """
    out = run_git(["rev-parse", "--verify", f"{commit}^{{commit}}"], repo=repo).decode().strip()
    if out != commit:
        raise GitFailed(["rev-parse", commit], 1, f"{commit} is not a commit: it leads to {out}")
    run_git(["rev-list", "--objects", "--quiet", "--no-object-names", commit, "--"], repo=repo)
    return run_git(["rev-parse", "--verify", f"{commit}^{{tree}}"], repo=repo).decode().strip()


def take_pack(repo: Path, pack: bytes, commit: str) -> None:
    """Index a pack into the empty bare repository `repo`, leaving it as a depth 1 fetch of `commit` would.

    git recomputes every object's id. Raises GitFailed.
    """
    run_git(["index-pack", "--stdin"], repo=repo, stdin=pack, config=_FETCH_CONFIG)
    _end_history(repo, commit)


def _end_history(repo: Path, commit: str) -> None:
    """Write `shallow` if the commit has parents, which are not in the pack."""
    if run_git(["cat-file", "-t", commit], repo=repo) != b"commit\n":
        return  # `proven_tree` reports what it is
    head = run_git(["cat-file", "commit", commit], repo=repo).partition(b"\n\n")[0]
    if b"\nparent " in head:
        (repo / "shallow").write_text(f"{commit}\n", encoding="ascii")
    else:
        (repo / "shallow").unlink(missing_ok=True)
