"""One machine as texts: outputs of tools and files of the system, by name, live or from a folder of recordings.

Every text is what the tool itself prints or the file holds, so that a folder can be made by hand as well. `machine.json`
says when it was recorded and what was looked for in vain; a text that is in neither was never looked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchctl import __version__
from patchctl.atomic import filling, replace_file
from patchctl.errors import WrongUse
from patchctl.language.messages import joined, message
from patchctl.os_errors import error_type
from patchctl.terminal.text import one_line

NPU_SMI = "npu-smi.txt"
DRIVER = "driver.info"
CANN = "cann.info"
PYTHON = "python.txt"
PACKAGES = "pip-list.json"
DISKS = "df.txt"
LIMITS = "limits.txt"
MEMORY = "meminfo.txt"
MEMORY_LIMIT = "memory-limit.txt"
DEVICES = "davinci.txt"
SOCKETS = "tcp.txt"
ADDRESSES = "ip-addr.json"
ENVIRONMENT = "environment.json"
KERNEL = "uname.txt"
USER = "user.txt"
PIDS = "pids-limit.txt"
LOCAL_PORTS = "local-ports.txt"
RESERVED_PORTS = "reserved-ports.txt"
DEVICE_NETWORK = "hccn.txt"
DEVICE_ADDRESSES = "hccn-conf.txt"
OPERATORS = "operators.json"
PATHS = "paths.json"
CACHES = "caches.json"
CONFIG = "config.json"
WORKSPACE = "workspace.json"
ABOUT = "machine.json"

PROBES: Mapping[str, str] = {
    NPU_SMI: "npu-smi info",
    DRIVER: "/usr/local/Ascend/driver/version.info",
    CANN: message("ascend_toolkit_install.info of CANN's toolkit"),
    PYTHON: message("python --version of the training environment"),
    PACKAGES: message("pip list --format json of the training environment"),
    DISKS: "df -P -k",
    LIMITS: "/proc/self/limits",
    MEMORY: "/proc/meminfo",
    MEMORY_LIMIT: message("the memory limit of the container (cgroup)"),
    DEVICES: "ls /dev/davinci* /dev/devmm_svm /dev/hisi_hdc",
    SOCKETS: message("/proc/net/tcp and /proc/net/tcp6"),
    ADDRESSES: "ip -j addr",
    KERNEL: "uname -sm",
    USER: message("the user's number and name, as `id` prints them"),
    PIDS: message("the limit of processes of the container (cgroup, pids.max)"),
    LOCAL_PORTS: "/proc/sys/net/ipv4/ip_local_port_range",
    RESERVED_PORTS: "/proc/sys/net/ipv4/ip_local_reserved_ports",
    DEVICE_NETWORK: message("hccn_tool -i N -ip -g, -tls -g and -link -g of every device, each after a line `# N ip`"),
    DEVICE_ADDRESSES: "/etc/hccn.conf",
    OPERATORS: message("where the training environment finds vllm_ascend, what is compiled there, and a C++ compiler"),
    ENVIRONMENT: message("the variables that frameworks, HCCL, CANN and Ray read"),
    PATHS: message("whether the recipe's files and folders are there, with size and time"),
    CACHES: message("compile caches, with size and time"),
    CONFIG: message("config.json of the model"),
    WORKSPACE: message("patchctl status --json of the workspace"),
}
"""Each text, and what it is made with."""

MAX_BYTES = 8 << 20
CLOSED = "(may not be opened)"
"""Behind a device file that the user may not read and write."""


@dataclass(frozen=True)
class Machine:
    """The texts by name; `absent` says why one is not there. `time` is when it was looked at, in seconds since 1970."""

    texts: Mapping[str, str]
    place: str
    time: float
    absent: Mapping[str, str] = field(default_factory=dict)
    live: bool = True

    def text(self, name: str) -> str | None:
        """What a probe gave; None where nothing is known."""
        return self.texts.get(name)

    def why_not(self, name: str) -> str:
        """Why there is no text."""
        unknown = message(
            "not known: there is no {name} ({probe}) in {machine}", name=name, probe=PROBES[name], machine=self.place
        )
        return self.absent.get(name, unknown)

    def known_to_lack(self, name: str) -> bool:
        """Whether it was looked for on that machine and is not there, rather than not looked for."""
        return name in self.absent

    def data(self, name: str) -> Any:
        """A text that is JSON. None where there is none, or where it cannot be read."""
        try:
            return json.loads(self.texts[name])
        except (KeyError, ValueError, RecursionError):
            return None


def recorded(folder: Path) -> Machine:
    """The machine that a folder describes. Raises WrongUse for a folder that is none, or holds no probe at all."""
    if not folder.is_dir():
        raise WrongUse(
            message("--machine names {folder}, which is no folder", folder=folder),
            hint=message("`patchctl preflight --record DIR` makes one"),
        )
    texts = {name: text for name in PROBES if (text := _read(folder / name)) is not None}
    about = _about(folder)
    if not texts and not about:
        raise WrongUse(
            message(
                "{folder} holds no recording: none of {names}", folder=folder, names=joined([*[*PROBES][:4], "..."])
            ),
            hint=message("`patchctl preflight --record DIR` makes one on the machine itself"),
        )
    absent = {k: one_line(str(v)) for k, v in about.get("absent", {}).items() if k in PROBES and k not in texts}
    when = about.get("time")
    return Machine(texts, str(folder), when if isinstance(when, (int, float)) else time.time(), absent, live=False)


def record(machine: Machine, folder: Path) -> list[Path]:
    """Writes every text. Raises WrongUse for a folder that holds something, so that nothing is lost or mixed."""
    try:
        if folder.exists() and any(folder.iterdir()):
            what = message("--record names {folder}, which is not empty", folder=folder)
            raise WrongUse(what, hint=message("name a new folder"))
        about = {
            "schema": "patchctl.machine/1",
            "patchctl": __version__,
            "time": machine.time,
            "absent": machine.absent,
        }
        texts = {**machine.texts, ABOUT: json.dumps(about, indent=2) + "\n"}
        with filling(folder, last=ABOUT) as staged:
            for name, text in texts.items():
                replace_file(staged / name, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        what = message("{folder} cannot be written: {error}", folder=folder, error=error.strerror)
        raise error_type(error)(what, hint=message("name another folder")) from None
    return [folder / name for name in texts]


def _about(folder: Path) -> dict[str, Any]:
    text = _read(folder / ABOUT)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("absent", {}), dict):
        what = message("{file} is not what --record writes", file=folder / ABOUT)
        raise WrongUse(what, hint=message("record again, or take the file away"))
    return found


def _read(path: Path) -> str | None:
    """A recorded text. Only a regular file is opened: reading a FIFO would wait for ever."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise WrongUse(message("{path} cannot be read: {error}", path=path, error=why)) from None
