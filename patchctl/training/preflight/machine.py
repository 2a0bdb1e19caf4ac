"""One machine as texts: outputs of tools and files of the system, by name, live or from a folder of recordings; and the values in them.

Every text is what the tool itself prints or the file holds, so that a folder can be made by hand as well. `machine.json`
says when it was recorded and what was looked for in vain; a text that is in neither was never looked for. Functions that read a text say
None, or nothing, of what they cannot read: a tool of another version must not end in a traceback, nor be taken for fine.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchctl import __version__
from patchctl.atomic import filling, replace_file
from patchctl.errors import WrongUse
from patchctl.language import joined, message
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
MIB = 1 << 20


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
        """Why there is no text, or none that says what is asked for."""
        if name in self.texts:
            said = one_line(self.texts[name], 60) or "-"
            return message("{name} ({probe}) does not say it: {said}", name=name, probe=PROBES[name], said=said)
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


@dataclass(frozen=True)
class Device:
    """One chip of `npu-smi info`: a device to the frameworks. Memory in bytes."""

    card: int
    chip: int
    health: str
    used: int
    total: int


@dataclass(frozen=True)
class Smi:
    """`npu-smi info`: the driver's version, the devices, and the processes on them."""

    version: str | None
    devices: tuple[Device, ...]
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Interface:
    """A network interface, whether it is up, and its addresses."""

    name: str
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Mount:
    """A file system of `df`: where it is mounted, bytes in all and bytes free."""

    point: str
    total: int
    free: int


# Two lines a chip. The first is "| card name | health | power ... |", the second "| chip [phy] | bus | ... used / total |":
# vllm-project/vllm-ascend #5588 (A3, 25.3.rc1), #3403 (A2, one chip a card, without Phy-ID), #12980 (processes).
_FIRST = re.compile(r"(\d+)\s+\S+")
_SECOND = re.compile(r"(\d+)(?:\s+(\d+))?")
_BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|NA")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")


def smi(text: str) -> Smi:
    """The tables of `npu-smi info`. A line in another form is passed over."""
    version = re.search(r"Version:\s*(\S+)", text)
    devices: list[Device] = []
    processes: list[int] = []
    first: tuple[int, str] | None = None
    of_processes = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        of_processes = of_processes or "Process id" in line
        if of_processes:
            is_one = len(cells) >= 4 and re.fullmatch(r"\d+\s+\d+", cells[0]) and cells[1].isdecimal()
            processes += [int(cells[1])] if is_one else []
        elif len(cells) == 3 and _BUS.fullmatch(cells[1]) and first is not None:
            devices += _device(first, cells)
            first = None
        elif len(cells) == 3 and (found := _FIRST.fullmatch(cells[0])) and re.fullmatch(r"[A-Za-z]+", cells[1]):
            first = int(found[1]), cells[1]
    return Smi(version[1] if version else None, tuple(devices), tuple(processes))


def _device(first: tuple[int, str], cells: list[str]) -> Iterator[Device]:
    chip, usage = _SECOND.fullmatch(cells[0]), _USAGE.findall(cells[2])
    if chip and usage:
        used, total = usage[-1]  # memory, then HBM where the chip has it
        yield Device(first[0], int(chip[1]), first[1], int(used) * MIB, int(total) * MIB)


def limit(text: str, name: str) -> int | None:
    """A soft limit in /proc/self/limits by its name there; -1 for unlimited."""
    found = re.search(rf"(?m)^{re.escape(name)}\s+(\S+)", text)
    if found is None:
        return None
    return -1 if found[1] == "unlimited" else int(found[1]) if found[1].isdecimal() else None


def huge_pages(text: str) -> int | None:
    """Bytes of /proc/meminfo that are kept for static huge pages."""
    count, size = (re.search(rf"(?m)^{name}:\s+(\d+)", text) for name in ("HugePages_Total", "Hugepagesize"))
    return int(count[1]) * (int(size[1]) << 10) if count and size else None


def memory(text: str, name: str = "MemTotal") -> int | None:
    """A row of /proc/meminfo, in bytes."""
    found = re.search(rf"(?m)^{name}:\s+(\d+) kB", text)
    return int(found[1]) << 10 if found else None


def port_ranges(text: str) -> list[tuple[int, int]] | None:
    """Ports and ranges of them with commas between, as 60000-60031,61000; none for an empty text, None for another one."""
    found = []
    for part in filter(None, (p.strip() for p in text.strip().split(","))):
        ends = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if ends is None or not 0 < int(ends[1]) <= int(ends[2] or ends[1]) < 65536:
            return None
        found.append((int(ends[1]), int(ends[2] or ends[1])))
    return found


def local_ports(text: str) -> tuple[int, int] | None:
    """First and last of ip_local_port_range: what connections that go out may take."""
    found = re.fullmatch(r"\s*([0-9]{1,5})\s+([0-9]{1,5})\s*", text)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class DevicePort:
    """A device's own network port, as hccn_tool tells it. None: not said."""

    address: str | None = None
    tls: bool | None = None
    link: str | None = None


def device_ports(text: str) -> dict[int, DevicePort]:
    """hccn_tool's answers by device, after lines `# N ip`, `# N tls` and `# N link`."""
    said: dict[int, dict[str, str]] = {}
    for device, what, answer in re.findall(r"(?ms)^# (\d{1,4}) (ip|tls|link)\r?\n(.*?)(?=^# |\Z)", text):
        said.setdefault(int(device), {})[what] = answer
    return {device: _device_port(answers) for device, answers in sorted(said.items())}


def _device_port(said: Mapping[str, str]) -> DevicePort:
    address = re.search(r"ipaddr:\s*([0-9A-Fa-f.:]+)", said.get("ip", ""))
    switch = re.search(r"tls switch\[([01])\]", said.get("tls", ""))
    link = re.search(r"link status:\s*(\w+)", said.get("link", ""))
    return DevicePort(address and address[1], switch[1] == "1" if switch else None, link and link[1].upper())


def configured_addresses(text: str) -> dict[int, str]:
    """Addresses by device in /etc/hccn.conf: lines `address_0=10.20.0.2`."""
    return {int(n): value for n, value in re.findall(r"(?m)^\s*address_(\d{1,4})\s*=\s*([0-9A-Fa-f.:]+)", text)}


def memory_limit(text: str) -> int | None:
    """A container's limit in bytes; None for no limit ("max", or cgroup v1's largest number)."""
    word = text.strip()
    limit = int(word) if word.isdecimal() else None
    return None if limit is None or limit >= 1 << 60 else limit


def mounts(text: str) -> tuple[Mount, ...]:
    """The file systems of `df -P -k`."""
    found = re.findall(r"(?m)^\S.*?\s+(\d+)\s+\d+\s+(\d+)\s+(?:\d+%|-)\s+(/.*)$", text)
    return tuple(Mount(point.rstrip(), int(total) << 10, int(free) << 10) for total, free, point in found)


def mount_of(path: str, of: tuple[Mount, ...]) -> Mount | None:
    """The file system that a path lies on: the longest mount point above it; of two at one point the later."""
    above = [m for m in of if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(above, key=lambda m: (len(m.point), of.index(m)), default=None)


def listening(text: str) -> set[int]:
    """The ports that someone listens on, of /proc/net/tcp and tcp6 (state 0A)."""
    found = re.findall(r"(?m)^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", text)
    return {int(port, 16) for port in found}


def interfaces(data: Any) -> tuple[Interface, ...]:
    """What `ip -j addr` prints."""
    return tuple(
        Interface(
            str(row.get("ifname")),
            "UP" in _list(row.get("flags")) and row.get("operstate") != "DOWN",
            tuple(str(a["local"]) for a in records(row.get("addr_info")) if a.get("local")),
        )
        for row in records(data)
    )


def records(data: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list, whatever a recording holds."""
    return [row for row in _list(data) if isinstance(row, dict)]


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def packages(text: str) -> dict[str, str] | None:
    """What `pip list --format json` prints: versions by name, in the spelling that names are compared in."""
    try:
        rows = json.loads(text)
        return {same_name(row["name"]): str(row["version"]) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def same_name(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def python_version(text: str) -> str | None:
    """What `python --version` prints."""
    found = re.search(r"Python (\d+\.\d+\S*)", text)
    return found[1] if found else None
