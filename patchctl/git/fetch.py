"""The git calls of fetching one commit: into a bare repository, shallow, isolated but for what reaching a server takes.

A user's proxy, certificates, credential helpers, rewritten addresses and ssh command are what makes a server reachable
at all, so these few settings are read once from the user's and the system's configuration, and written into the
generated one. Nothing else of them counts, and nothing of a repository that the run happens to stand in.
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

from patchctl.git.run import GitFailed, git_environment, git_executable, git_failure, run_git

Settings = tuple[tuple[str, str], ...]

# A transfer that is slower than this for so long is dead, and so is a git that says nothing at all: with --progress it
# reports several times a second.
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
"""Called with (bytes received so far, what is being done) while a fetch runs."""


@functools.cache
def user_settings() -> Settings:
    """http.*, credential.*, url.*.insteadOf, url.*.pushInsteadOf and core.sshCommand of the user and the system.

    GIT_DIR points nowhere, so that the configuration of the repository around the current folder is not read.
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
    """Whether git's settings lead it to another host than this address names: rewriting, a proxy, ssh's own rules."""
    lowered = [(key.lower(), value) for key, value in user_settings()]
    if any(key.endswith(".insteadof") and address.startswith(value) for key, value in lowered):
        return True
    if any(key == "http.proxy" or (key.startswith("http.") and key.endswith(".proxy")) for key, _ in lowered):
        return True
    return address.startswith("ssh:")  # ~/.ssh/config may name another host, or a jump host


def fetch_commit(repo: Path, address: str, shown: str, commit: str, local: Path | None, report: Report) -> None:
    """Fetch exactly `commit`, depth 1, into the empty bare repository `repo`. Raises GitFailed.

    `shown` is the address without credentials: `ps` shows what git is called with, and not its configuration. `local` is the
    path when `address` is one: only this repository is excepted from git's check of owners.
    """
    safe: Settings = ()
    if local is not None:
        safe = (("safe.directory", str(local)), ("safe.directory", str(local / ".git")))
    config = (
        *_FETCH_CONFIG,
        ("uploadpack.allowAnySHA1InWant", "true"),
        *user_settings(),
        *safe,
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
    with git_environment(config) as env:
        _run_watched(command, _reachable(env), report)
    for left in (repo / "objects" / "pack").glob("*.keep"):  # git goes on where it cannot remove its mark
        left.unlink()
    _end_history(repo, commit)  # nor where it cannot write `shallow`


def _meant(address: str, shown: str) -> Settings:
    """The setting with which git asks the address where the one without credentials is named."""
    return () if address == shown else ((f"url.{address}.insteadOf", shown),)


def list_refs(address: str, shown: str, local: Path | None) -> dict[str, str]:
    """The branches and tags of a repository, with the ids that they name; of an annotated tag the commit. Raises GitFailed."""
    safe: Settings = ()
    if local is not None:
        safe = (("safe.directory", str(local)), ("safe.directory", str(local / ".git")))
    with git_environment(
        (*_FETCH_CONFIG, *user_settings(), *safe, *_meant(address, shown))
    ) as env:  # and of no repository that we stand in
        asked = ["ls-remote", "--heads", "--tags", "--", shown if local is None else address]
        out = run_git(asked, env=_reachable(env), cwd=Path(os.path.abspath(os.sep)))
    found: dict[str, str] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        oid, _, ref = line.partition("\t")
        found[ref.removesuffix("^{}")] = oid  # the line of the commit comes after that of its tag
    return found


def _reachable(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a fetch. GIT_SSH_COMMAND would win over the user's core.sshCommand, so one of both is left."""
    prepared = {**env, "GIT_NO_LAZY_FETCH": "1", "SSH_ASKPASS_REQUIRE": "never"}
    prepared.pop("GIT_SSH_COMMAND", None)
    if not any(key.lower() == "core.sshcommand" for key, _ in user_settings()):
        prepared["GIT_SSH_COMMAND"] = _SSH
    return prepared


def _run_watched(command: Sequence[str], env: Mapping[str, str], report: Report) -> None:
    """Run git, report what it says, and end it when it falls silent.

    In a session of its own: no terminal that a credential helper or ssh could ask on, and helpers end with it.
    """
    process = subprocess.Popen(
        [git_executable(), *command],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    said = bytearray()
    try:
        silent = _follow(process, said, report)
        status = process.wait()
    finally:
        if process.poll() is None:
            _kill(process)
            process.wait()
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
    """Read git's stderr to its end; True when git was killed for its silence."""
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
    """Hand on what these lines say last: how much has come, and the step that git is at."""
    amount, doing = 0, ""
    for line in lines:
        text = line.decode("ascii", "replace")
        received, step = _RECEIVED.search(text), _STEP.match(text)
        if received:
            amount = int(float(received[1]) * _FACTORS[received[2]])
        if step:
            doing = f"{step[1].lower()} {step[2]} %"
    if amount or doing:
        report(amount, doing)


def _without_progress(text: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    return "\n".join(line for line in lines if line and not _STEP.match(line) and "objects: " not in line)


def proven_tree(repo: Path, commit: str) -> str:
    """The tree of `commit`, after git found that the id is a commit's and that everything below it is there.

    Raises GitFailed when the object is no commit, or when anything it needs is missing.
    """
    out = run_git(["rev-parse", "--verify", f"{commit}^{{commit}}"], repo=repo).decode().strip()
    if out != commit:
        raise GitFailed(["rev-parse", commit], 1, f"{commit} is not a commit: it leads to {out}")
    run_git(["rev-list", "--objects", "--quiet", "--no-object-names", commit, "--"], repo=repo)
    return run_git(["rev-parse", "--verify", f"{commit}^{{tree}}"], repo=repo).decode().strip()


def take_pack(repo: Path, pack: bytes, commit: str) -> None:
    """Put a pack into the empty bare repository `repo`, as a fetch of `commit` with depth 1 leaves it. Raises GitFailed.

    git computes every object's id anew.
    """
    run_git(["index-pack", "--stdin"], repo=repo, stdin=pack, config=_FETCH_CONFIG)
    _end_history(repo, commit)


def _end_history(repo: Path, commit: str) -> None:
    """Parents of the commit are not in the pack: `shallow` says where history ends. A first commit needs none."""
    if run_git(["cat-file", "-t", commit], repo=repo) != b"commit\n":
        return  # `proven_tree` says what it is
    head = run_git(["cat-file", "commit", commit], repo=repo).partition(b"\n\n")[0]
    if b"\nparent " in head:
        (repo / "shallow").write_text(f"{commit}\n", encoding="ascii")
    else:
        (repo / "shallow").unlink(missing_ok=True)
