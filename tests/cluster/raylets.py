"""A real Ray cluster of several raylets on this machine, each started with an environment of its own.

    with Raylets(python, folder) as ray:
        ray.head("a", {"PATCHCTL_WORKSPACE": "..."})
        ray.node("b", {...})
        ray.kill("b")

Every process carries a variable that names it, so that exactly what was started here is found in /proc and ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MARK = "PATCHCTL_TEST_RAYLET"
_START_SECONDS = 300.0
# Ray's own means to start less: no statistics, no idle workers before they are asked for.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",  # else a token in somebody's home folder turns it on for a head, and for no one else
}


class Raylets:
    """The cluster. `python` has ray; `address` is there once the head was started."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.address = ""
        self.client: str | None = None
        # Sockets have short names: pytest's folders are too deep for them.
        self.folder = Path(tempfile.mkdtemp(prefix="pcr"))
        self._token = self.folder.name

    def __enter__(self) -> Raylets:
        return self

    def __exit__(self, *_: object) -> None:
        import shutil

        for _ in range(3):
            for pid in self._processes(self._token):
                _signal(pid, signal.SIGKILL)
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)

    def head(self, name: str, env: Mapping[str, str]) -> None:
        """Start the cluster with its first node; `client` is its address from outside, where this ray has a client."""
        port, client = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        options = ["--head", f"--port={port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        if subprocess.run([self.python, "-c", "import grpc"], capture_output=True, check=False).returncode == 0:
            self.client = f"ray://127.0.0.1:{client}"
            options.append(f"--ray-client-server-port={client}")
        self._start(name, options, env)

    def node(self, name: str, env: Mapping[str, str]) -> None:
        """Add a node. One after the other: two that start at once on one machine may wait for each other until they give up."""
        self._start(name, [f"--address={self.address}"], env)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to everything that a node is: the raylet, its agents, its workers, and what those started."""
        for pid in sorted(self._processes(f"{self._token}/{name}"), key=lambda p: not _is_raylet(p)):
            _signal(pid, how)

    def _start(self, name: str, options: Sequence[str], env: Mapping[str, str]) -> None:
        self._await(self._run(name, options, env))

    def _run(self, name: str, options: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        start = [self.python, "-c", "from ray.scripts.scripts import main; main()", "start"]
        common = [f"--node-name={name}", "--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "RAY_", "PYTHON", "PIP_"))}
        return subprocess.Popen(
            [*start, *options, *common, "--node-ip-address=127.0.0.1"],
            env={**kept, **QUIET, **env, MARK: f"{self._token}/{name}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def _await(self, process: subprocess.Popen[str]) -> None:
        out, _ = process.communicate(timeout=_START_SECONDS)
        assert process.returncode == 0, f"ray start ended with {process.returncode}\n{out}"

    def _processes(self, mark: str) -> Iterator[int]:
        """The processes of one node, or with the token alone of all."""
        wanted = f"{MARK}={mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if any(v == wanted or v.startswith(wanted + b"/") for v in variables):
                    yield int(entry.name)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _is_raylet(pid: int) -> bool:
    try:
        return b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False


def _signal(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass
