"""Looks at the machine that this runs on, and at a node beside a worker of Ray: its limits and variables are those of its raylet, which the
workers of a training inherit too. Starts a few tools with time-outs, imports nothing of the frameworks."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchctl.cluster.facts import SECRET, MachineFacts, MachineRequest, Request
from patchctl.doctor.runtime import cann_file, driver_file
from patchctl.errors import PatchctlError
from patchctl.language import message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import to_json
from patchctl.process_group import ask, find_program
from patchctl.python_probe import PythonProbeFailed, ask_python
from patchctl.terminal.text import one_line, redact_text
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.caches import find_caches

TIMEOUT_SECONDS = 60
# A variable is recorded when it is someone's business here. Whatever may be a secret never is.
_OURS = re.compile(
    r"(HCCL|VLLM|ASCEND|PYTORCH|TORCH|RAY|HYDRA|NPU|LCCL|ATB|ACL|GLOO|TP|MASTER|OMP|MULTI|ROLLOUT|VERL|NCCL)_\w+"
    r"|\w*SOCKET_IFNAME|TASK_QUEUE_\w+|CPU_AFFINITY_CONF|CUDA_DEVICE_MAX_CONNECTIONS|LD_PRELOAD|LD_LIBRARY_PATH|USE_\w+"
    r"|HF_ENDPOINT|HF_HOME|WORLD_SIZE|RANK|(?i:(http|https|all|no)_proxy)"
)
# Runs in the training environment: its version, and what pip would list. Without pip, which not every environment has.
_PYTHON_PROBE = """
import importlib.metadata, importlib.util, json, os, platform, shutil, sys
if not sys.path[0]:
    del sys.path[0]  # the current folder, which -c puts first and a program of the user's does not
rows = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
try:
    spec = importlib.util.find_spec("vllm_ascend")
except Exception:
    spec = None
place = list(spec.submodule_search_locations or [None])[0] if spec else None
compiled = sorted(n for n in os.listdir(place) if n.endswith(".so")) if place else []
packages = [{"name": n, "version": v} for n, v in sorted(rows.items())]
compiler = shutil.which((os.environ.get("CXX", "").split() or ["c++"])[0])  # as torch.utils.cpp_extension looks for it
operators = {"vllm_ascend": place, "compiled": compiled, "compiler": compiler}
print(json.dumps([platform.python_version(), packages, operators]))
"""
# The system says these in English, whatever the language in use.
_ERRORS = {
    errno.ENOENT: message("no such file or directory"),
    errno.EACCES: message("permission denied"),
}
HCCN_TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
# Ray hides all devices from a task that asks for none, with an empty value: nobody's setting.
_HIDDEN_BY_RAY = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class ProbeRequest:
    """What a recipe wants to know of a machine beyond what is always looked at."""

    python: str
    variables: frozenset[str] = frozenset()
    paths: Mapping[str, str | None] = field(default_factory=dict)
    workspace: Callable[[], Mapping[str, Any] | None] = lambda: None
    cache_folders: tuple[Path, ...] = ()
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Missing(PatchctlError):
    """What was looked for is not there; says why."""


def workspace_state(workspace: Path, dist: Distribution, python: str) -> dict[str, Any]:
    """As `patchctl status --json --python PY`, with the interpreter that was asked for imports, or why it could not be.
    Raises Missing with why there is no status at all."""
    from patchctl.workspace.status import read_status

    def status(asked: str | None) -> dict[str, Any]:
        return to_json(read_status(workspace.absolute(), dist, asked))

    try:
        plain = status(None)
    except PatchctlError as error:
        raise Missing(error.what if error.what == str(error) else str(error)) from None
    try:
        return {**status(python), "python": python}
    except PatchctlError as error:
        return {**plain, "python": python, "not_asked": str(error)}


def look(request: ProbeRequest, note: Callable[[str], None] = lambda text: None) -> m.Machine:
    """Every probe of this machine."""
    texts: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, probe in _probes(request):
        note(m.PROBES[name])
        try:
            text = probe()
        except Missing as why:
            absent[name] = why.what
        except (OSError, subprocess.SubprocessError) as error:
            absent[name] = message("{what}: {more}", what=m.PROBES[name], more=one_line(str(error)))
        else:
            if text is not None:
                texts[name] = text
    texts |= _python(request.python, absent)
    return m.Machine(texts, message("this machine"), time.time(), absent)


def _probes(request: ProbeRequest) -> Iterator[tuple[str, Callable[[], str | None]]]:
    root = request.root
    yield m.NPU_SMI, lambda: _npu_smi(request.environment)
    yield m.DRIVER, lambda: _file(driver_file(root))
    yield m.CANN, lambda: _cann(root)
    yield m.DISKS, lambda: _tool("df", "-P", "-k", fails=True)
    yield m.LIMITS, lambda: _file(root / "proc/self/limits")
    yield m.MEMORY, lambda: _file(root / "proc/meminfo")
    cgroup = root / "sys/fs/cgroup"
    yield m.MEMORY_LIMIT, lambda: _first_file(cgroup / "memory.max", cgroup / "memory/memory.limit_in_bytes")
    yield m.DEVICES, lambda: _device_files(root / "dev")
    yield m.SOCKETS, lambda: _file(root / "proc/net/tcp") + _file(root / "proc/net/tcp6", "")
    yield m.ADDRESSES, _addresses
    yield m.KERNEL, lambda: " ".join((os.uname().sysname, os.uname().machine)) + "\n"
    yield m.USER, _user
    yield m.PIDS, lambda: _first_file(cgroup / "pids.max", cgroup / "pids/pids.max")
    yield m.LOCAL_PORTS, lambda: _file(root / "proc/sys/net/ipv4/ip_local_port_range")
    yield m.RESERVED_PORTS, lambda: _file(root / "proc/sys/net/ipv4/ip_local_reserved_ports")
    yield m.DEVICE_NETWORK, lambda: _device_network(root)
    yield m.DEVICE_ADDRESSES, lambda: _first_file(root / "etc/hccn.conf")
    yield m.ENVIRONMENT, lambda: _json(_environment(request))
    yield m.PATHS, lambda: _json(_paths(request))
    yield m.CACHES, lambda: _json([asdict(one) for one in find_caches(request.cache_folders, request.environment)])
    if model := request.paths.get("model"):
        yield m.CONFIG, lambda: _file(Path(model) / "config.json")
    yield m.WORKSPACE, lambda: None if (state := request.workspace()) is None else _json(state)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"


def _file(path: Path, otherwise: str | None = None) -> str:
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would wait for ever
            raise Missing(message("{path}: not a regular file", path=path))
        return path.read_bytes()[: m.MAX_BYTES].decode("utf-8", errors="replace")
    except OSError as error:
        if otherwise is not None:
            return otherwise
        why = _ERRORS.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise Missing(message("{what}: {more}", what=path, more=why)) from None


def _tool(name: str, *args: str, fails: bool = False) -> str:
    """The output of a tool. `fails`: what it could say counts, as where `df` meets a mount that it may not look at."""
    path = find_program(name)
    if path is None:
        raise Missing(message("{name} is not on PATH", name=name))
    done = ask([path, *args], TIMEOUT_SECONDS, env={**os.environ, "LC_ALL": "C"})
    if done.returncode and not (fails and done.stdout):
        what = message(
            "{command} ended with {code}: {said}",
            command=" ".join([name, *args]),
            code=done.returncode,
            said=one_line(done.stderr or done.stdout),
        )
        raise Missing(what)
    return done.stdout


def _device_files(folder: Path) -> str:
    """One a line; a user who may not open it is told so."""
    names = ("davinci*", "devmm_svm", "hisi_hdc")
    paths = [path for name in names for path in sorted(folder.glob(name))]
    return "".join(f"{path}{'' if os.access(path, os.R_OK | os.W_OK) else f' {m.CLOSED}'}\n" for path in paths)


def _user() -> str:
    """A user without a name has no home folder: caches and logs of CANN and torch have no place."""
    import pwd

    try:
        return f"uid={os.getuid()}({pwd.getpwuid(os.getuid()).pw_name})\n"
    except KeyError:
        return f"uid={os.getuid()}\n"


def _device_network(root: Path) -> str:
    """What each device says of its own port; one that cannot be asked says why."""
    numbers = sorted(int(p.name[7:]) for p in (root / "dev").glob("davinci[0-9]*") if p.name[7:].isdecimal())
    tool = find_program("hccn_tool") or (HCCN_TOOL if os.access(HCCN_TOOL, os.X_OK) else None)
    if tool is None:
        raise Missing(message("hccn_tool is not on PATH, and not below /usr/local/Ascend/driver/tools"))
    answers = list[str]()
    for n, what in ((n, what) for n in numbers for what in ("ip", "tls", "link")):
        hangs = False
        try:
            answer = _tool(tool, "-i", str(n), f"-{what}", "-g", fails=True).strip()
        except (Missing, OSError, subprocess.SubprocessError) as error:
            answer, hangs = one_line(str(error)), isinstance(error, subprocess.TimeoutExpired)
        answers.append(f"# {n} {what}\n{answer}\n")
        if hangs:  # each of the others would take as long
            break
    return "".join(answers)


def _npu_smi(environment: Mapping[str, str]) -> str:
    if find_program("npu-smi", environment) is None:
        what = message(
            "npu-smi is not on PATH: no NPU's driver is installed here, or it is not mounted into the container"
        )
        raise Missing(what)
    return _tool("npu-smi", "info")


def _cann(root: Path) -> str:
    file = cann_file(root)
    if file is None:
        raise Missing(message("no CANN toolkit below /usr/local/Ascend, and ASCEND_HOME_PATH names none"))
    return _file(file)


def _first_file(*paths: Path) -> str | None:
    """None where none is there: no container, or one without a limit of its own."""
    return next((_file(path) for path in paths if path.is_file()), None)


def _addresses() -> str:
    """`ip -j addr`; where there is no ip, the same from the kernel: a container often has ifconfig alone."""
    if find_program("ip"):
        return _tool("ip", "-j", "addr")
    return _json([_interface(name) for name in sorted(os.listdir("/sys/class/net"))])


def _interface(name: str) -> dict[str, Any]:
    import fcntl
    import socket
    import struct

    state = _file(Path("/sys/class/net") / name / "operstate", "unknown").strip().upper()
    flags = int(_file(Path("/sys/class/net") / name / "flags", "0x0").strip() or "0", 16)
    found: list[dict[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asking = struct.pack("256s", name.encode()[:15])
            packed = fcntl.ioctl(asked.fileno(), 0x8915, asking)  # SIOCGIFADDR: the interface's IPv4 address
            found.append({"family": "inet", "local": socket.inet_ntoa(packed[20:24])})
        except OSError:
            pass  # it has none
    return {"ifname": name, "flags": ["UP"] if flags & 1 else [], "operstate": state, "addr_info": found}


def _environment(request: ProbeRequest) -> dict[str, str]:
    """The variables that are someone's business here, without credentials."""
    ours = [
        name
        for name in request.environment
        if (name in request.variables or _OURS.fullmatch(name)) and not SECRET.search(name)
    ]
    return {name: redact_text(request.environment[name]) for name in sorted(ours)}


def _paths(request: ProbeRequest) -> dict[str, Any]:
    named = [*request.paths.values(), request.environment.get("HCCL_WHITELIST_FILE"), cann_file(request.root)]
    return {str(path): _path(Path(path)) for path in named if path}


def _path(path: Path) -> dict[str, Any] | None:
    """What lies there; null for nothing. A folder's size is that of its files, not of folders below it."""
    try:
        real = path.resolve()
        found = real.stat()
        folder = real.is_dir()
        size = sum(e.stat().st_size for e in os.scandir(real) if e.is_file()) if folder else found.st_size
    except OSError:
        return None
    kind = "folder" if folder else "file"
    return {"kind": kind, "bytes": size, "modified": found.st_mtime, "real": str(real)}


def _python(python: str, absent: dict[str, str]) -> dict[str, str]:
    try:
        version, rows, operators = ask_python(python, _PYTHON_PROBE, seconds=TIMEOUT_SECONDS)
    except (PythonProbeFailed, ValueError) as error:  # a ValueError where it is JSON of something else
        problem = error.what if isinstance(error, PythonProbeFailed) else one_line(str(error))
        why = message("{path} cannot be asked: {problem}", path=python, problem=problem)
        absent.update(dict.fromkeys((m.PYTHON, m.PACKAGES, m.OPERATORS), why))
        return {}
    return {
        m.PYTHON: f"Python {version}\n",
        m.PACKAGES: _json(rows),
        m.OPERATORS: _json({"python": python, **operators}),
    }


def look_here(request: Request, python: str, workspace: Path, dist: Distribution) -> MachineFacts:
    """Every probe of this node."""
    asked = request.machine or MachineRequest()
    environment = {n: v for n, v in os.environ.items() if v or n not in _HIDDEN_BY_RAY}
    found = look(
        ProbeRequest(
            python=python,
            variables=frozenset(asked.variables),
            paths=paths_here(asked.paths, environment),
            workspace=lambda: workspace_state(workspace, dist, python),
            cache_folders=(workspace.joinpath(*asked.start),),
            environment=environment,
        )
    )
    texts = dict(found.texts)
    if m.SOCKETS in texts:  # of these only those that are listened on travel: a busy node has ten thousand others
        lines = texts[m.SOCKETS].splitlines(keepends=True)
        texts[m.SOCKETS] = "".join(line for line in lines if re.match(r"\s*\d+: \S+ \S+ 0A ", line))
    return MachineFacts(texts, dict(found.absent), found.time)


def paths_here(paths: Mapping[str, list[str | None]], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Where a recipe's paths lie on this node."""
    return {
        name: given or environment.get(variable or "") or default for name, (given, variable, default) in paths.items()
    }
