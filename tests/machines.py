"""A machine that could run the recipes, as the folder that `patchctl preflight --record` writes.

A stand-in: nobody recorded it. The forms are those of real outputs, the figures are ours:
- npu-smi info: vllm-project/vllm-ascend #5588 (A3, 25.3.rc1: two chips a card, with Phy-ID), #3403 (A2: one chip a card, without),
  #12980 (the table of processes), npu-smi's reference on hiascend.com for the words of Health;
- ascend_toolkit_install.info: vllm-project/vllm-ascend #834; driver/version.info: its `Version=` line;
- df -P -k, ip -j addr, /proc/*: of Linux, coreutils and iproute2 themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pins import oldest

NOW = 1_790_000_000.0
DAY = 86_400
CANN_FILE = "/usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info"
MODEL, TRAIN, VALIDATION, CHECKPOINTS = "/data/model", "/data/train.parquet", "/data/val.parquet", "/ckpt/run"
MCORE, REWARD, JEMALLOC = "/data/mcore", "/data/reward.py", "/usr/local/lib/libjemalloc.so.2"

_HEAD = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.3.rc1                 Version: {version:<14}                                       |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
_LINE = "+===========================+===============+====================================================+\n"
_THIN = f"+{'-' * 96}+\n"
_PROCESSES = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
"""


def npu_smi(
    cards: int = 8,
    chips: int = 2,
    *,
    version: str = "25.3.rc1",
    health: Mapping[tuple[int, int], str] | None = None,
    used: Mapping[tuple[int, int], int] | None = None,
    processes: Mapping[tuple[int, int], int] | None = None,
    total: int = 65536,
) -> str:
    """`npu-smi info` of a node: `health`, MB in `used` and a process id, by card and chip, where they are not as idle."""
    text = _HEAD.format(version=version)
    for card in range(cards):
        for chip in range(chips):
            text += _THIN if chip else ""
            state = (health or {}).get((card, chip), "OK")
            mb = (used or {}).get((card, chip), 3180 if chip == 0 else 2896)
            physical = str(card * chips + chip) if chips > 1 else ""
            name = "Ascend910" if chips > 1 else "910B2"
            power = "163.6" if chip == 0 else "-"
            text += f"| {card:<5} {name:<19} | {state:<13} | {power:<11} 30                0    / 0             |\n"
            text += f"| {chip:<5} {physical:<19} | 0000:{0x83 + 2 * card:02X}:00.0  | 0           0    / 0"
            text += f"          {mb:<5}/ {total:<6}        |\n"
        text += _LINE
    text += _PROCESSES
    for card in range(cards):
        mine = [(c, pid) for (of, c), pid in (processes or {}).items() if of == card]
        for chip, pid in mine:
            text += f"| {card:<7} {chip:<17} | {pid:<13} | python3.1                | 197                     |\n"
        if not mine:
            text += f"| No running processes found in NPU {card:<61}|\n"
        text += _LINE
    return text


def df(**mounts: tuple[int, int]) -> str:
    """`df -P -k`: GiB in all and free, by mount point with _ for /."""
    rows = {"/": (2000, 1500), "/dev/shm": (720, 719), "/data": (20000, 9000), "/ckpt": (90000, 80000)}
    rows |= {name.replace("_", "/"): sizes for name, sizes in mounts.items()}
    lines = ["Filesystem     1024-blocks      Used Available Capacity Mounted on"]
    for point, (total, free) in rows.items():
        share = 100 * (total - free) // max(total, 1)
        lines.append(f"/dev/vg-x {total << 20} {(total - free) << 20} {free << 20} {share}% {point}")
    return "\n".join(lines) + "\n"


def hccn(devices: int = 16, **changed: str) -> str:
    """hccn_tool's answers, in the forms of CANN's HCCL guide (8.5.0, EI0014); `changed` as ip_3, tls_3 or link_3."""
    text = ""
    for n in range(devices):
        said = {
            "ip": f"ipaddr:10.20.0.{n + 1}\nnetmask:255.255.255.0\n",
            "tls": f"dev_id:{n}, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days\n",
            "link": "link status: UP\n",
        }
        text += "".join(f"# {n} {what}\n{changed.get(f'{what}_{n}', answer)}" for what, answer in said.items())
    return text


def hccn_conf(devices: int = 16) -> str:
    """/etc/hccn.conf of the same machine."""
    return "".join(f"address_{n}=10.20.0.{n + 1}\nnetmask_{n}=255.255.255.0\n" for n in range(devices))


def operators(
    *compiled: str, place: str | None = "/ws/vllm-ascend/vllm_ascend", compiler: str | None = "/usr/bin/c++"
) -> str:
    """Where the Python of training finds vllm_ascend; what upstream's build leaves there unless others are named."""
    names = compiled or ("vllm_ascend_C.cpython-311-aarch64-linux-gnu.so",)
    found = {"vllm_ascend": place, "compiled": names if place else [], "compiler": compiler}
    return json.dumps({"python": "/opt/train/bin/python", **found})


def tcp(*ports: int) -> str:
    """/proc/net/tcp with these ports listened on, and one connection from port 40000."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = (
        "{n:>4}: 00000000:{port:04X} {rest} 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
    )
    text = head + "".join(row.format(n=n, port=port, rest="00000000:0000 0A") for n, port in enumerate(ports))
    return text + row.format(n=99, port=40000, rest="0100007F:1A6E 01")


def ip_addr(state: str = "UP", address: str = "192.0.2.7") -> list[dict[str, Any]]:
    """`ip -j addr` of a machine with lo and eth0 (192.0.2.0/24 is kept for documents)."""
    lo = [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]
    found = [{"family": "inet", "local": address, "prefixlen": 24}] if address else []
    up = ["BROADCAST", "MULTICAST", *(["UP"] if state == "UP" else [])]
    return [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "operstate": "UNKNOWN", "addr_info": lo},
        {"ifname": "eth0", "flags": up, "operstate": state, "addr_info": found},
    ]


LOCK = Path(__file__).parents[1] / f"manifests/requirements/{oldest()}/aarch64.txt"
PACKAGES = {
    **dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ \n]+)", LOCK.read_text())),
    "torch": "2.9.0+cpu",
    "torch-npu": "2.9.0",
    "transformers": "4.57.6",
    "ray": "2.48.0",
    "tensordict": "0.11.0",
}


def pip_list(**versions: str | None) -> str:
    """`pip list --format json`; None leaves a package out."""
    found = {**PACKAGES, **{name.replace("_", "-"): version for name, version in versions.items()}}
    return json.dumps([{"name": name, "version": version} for name, version in found.items() if version])


ENVIRONMENT = {
    "HCCL_SOCKET_IFNAME": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "MASTER_ADDR": "192.0.2.1",
    "LD_LIBRARY_PATH": "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common",
    "ASCEND_HOME_PATH": "/usr/local/Ascend/cann",
    "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1",
    "MODEL_PATH": MODEL,
    "TRAIN_FILE": TRAIN,
    "VAL_FILE": VALIDATION,
    "CKPTS_DIR": CHECKPOINTS,
    "MCORE_MODEL_PATH": MCORE,
    "REWARD_PATH": REWARD,
}


def paths(weights: int = 470_187_269_120, **changed: Any) -> dict[str, Any]:
    """What lies at the recipe's paths; `changed` by the variable's name, None for nothing."""

    def there(path: str, kind: str, size: int) -> dict[str, Any]:
        return {"kind": kind, "bytes": size, "modified": NOW - 3 * DAY, "real": path}

    found: dict[str, Any] = {
        MODEL: there(MODEL, "folder", weights),
        MCORE: there(MCORE, "folder", weights),
        TRAIN: there(TRAIN, "file", 3_000_000),
        VALIDATION: there(VALIDATION, "file", 30_000),
        REWARD: there(REWARD, "file", 2_000),
        JEMALLOC: there(JEMALLOC, "file", 700_000),
        CANN_FILE: {**there(CANN_FILE, "file", 300), "modified": NOW - 10 * DAY},
    }
    return {**found, **changed}


def workspace(profile: str = "qwen3-235b", **changed: Any) -> dict[str, Any]:
    """`patchctl status --json`, its parts that are read here."""
    tree = {
        "upstream": "verl",
        "stack": "v0.6.0",
        "patches": [{}, {}],
        "left_out": [],
        "edits": [],
        "lock": "equal",
        "problem": None,
        "imports": [],
    }
    found = {"workspace": "/ws", "profile": profile, "without": [], "interrupted": None, "trees": [tree], "skipped": []}
    return {**found, **changed}


def texts(profile: str = "qwen3-235b") -> dict[str, str]:
    """The whole recording of a good node, by the names of its files."""
    limits = "Limit                     Soft Limit           Hard Limit           Units     \n"
    limits += "Max processes             unlimited            unlimited            processes \n"
    limits += "Max open files            1048576              1048576              files     \n"
    limits += "Max locked memory         unlimited            unlimited            bytes     \n"
    devices = [f"/dev/davinci{n}" for n in range(16)]
    devices += ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    return {
        "machine.json": json.dumps({"schema": "patchctl.machine/1", "time": NOW, "absent": {}}),
        "npu-smi.txt": npu_smi(),
        "driver.info": "Version=25.3.rc1\nascendhal_version=7.35.23\naicpu_version=1.0\n",
        "cann.info": "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\nos=linux\n",
        "python.txt": "Python 3.11.13\n",
        "pip-list.json": pip_list(),
        "df.txt": df(),
        "limits.txt": limits,
        "meminfo.txt": "MemTotal:       2097152000 kB\nMemFree:        1900000000 kB\nMemAvailable:   2000000000 kB\n",
        "memory-limit.txt": "max\n",
        "davinci.txt": "".join(f"{path}\n" for path in devices),
        "tcp.txt": tcp(22),
        "ip-addr.json": json.dumps(ip_addr()),
        "uname.txt": "Linux aarch64\n",
        "user.txt": "uid=0(root)\n",
        "pids-limit.txt": "max\n",
        "local-ports.txt": "32768\t60999\n",
        "reserved-ports.txt": "60000-60031\n",
        "hccn.txt": hccn(),
        "hccn-conf.txt": hccn_conf(),
        "operators.json": operators(),
        "environment.json": json.dumps(ENVIRONMENT),
        "paths.json": json.dumps(paths()),
        "caches.json": "[]\n",
        "workspace.json": json.dumps(workspace(profile)),
    }


def write_machine(folder: Path, profile: str = "qwen3-235b", **changed: str | None) -> Path:
    """Writes the recording of a good node; `changed` replaces files (npu_smi for npu-smi.txt), None leaves one out."""
    names = {name.partition(".")[0].replace("-", "_"): name for name in (*texts(), "config.json")}
    folder.mkdir(parents=True)
    found: dict[str, str | None] = {**texts(profile), **{names[key]: text for key, text in changed.items()}}
    for name, text in found.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder
