"""What Ray stumbles over: where its objects lie, proxies, and a variable that keeps it from handing out devices."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from fractions import Fraction

from patchctl.findings import Finding, looked_at
from patchctl.language import joined, message
from patchctl.terminal.progress import size_text
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.about import About
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.controller import controller_of
from patchctl.training.preflight.machine import available, interfaces, memory_total, mount_of, mounts
from patchctl.training.preflight.sizes import BadSizes

# Ray 2.48, _private/ray_constants.py and utils.py: 30 % of what is available, 200 GB and 95 % of /dev/shm at most.
_SHARE, _MOST, _OF_SHARED = Fraction(30, 100), 200 * 10**9, Fraction(95, 100)
# raylet, file_system_monitor: no objects are made where the disk of its folder is fuller (InternLM/lmdeploy#3457).
_FULL = Fraction(95, 100)
_FOLDER = "/tmp/ray"
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
GRPC_PROXY = "RAY_grpc_enable_http_proxy"


ABOUT = (
    About(
        "host",
        ("Ray's object store",),
        "`df`, `/proc/meminfo`, Ray's own arithmetic",
        "never; a warning where less fits than comes at once",
        "Ray 2.48",
    ),
    About("host", ("disk of Ray",), "`df` of `/tmp/ray`", f"over {float(_FULL):.0%} full", "InternLM/lmdeploy#3457"),
    About(
        "network",
        ("proxy",),
        "`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`",
        "Ray is told to use it (`RAY_grpc_enable_http_proxy`) and it knows no node; else a warning",
        "ray#14350, #23526, #37757",
    ),
    About(
        "environment",
        ("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",),
        "the variable",
        "never; a warning",
        "verl-omni#227",
    ),
)


def check_ray(case: Case) -> Iterator[Finding]:
    """The object store, the disk behind it, proxies, and who hands out devices."""
    yield from _store(case)
    yield from _disk(case)
    yield from _proxies(case)
    if (case.environment or {}).get(NOSET):
        what = message(
            "{variable} is set: Ray shows every worker all devices, and each has to choose its own by LOCAL_RANK",
            variable=NOSET,
        )
        todo = message(
            "unset {variable} before `ray start`: workers were on the wrong device with it (verl-omni#227)",
            variable=NOSET,
        )
        yield looked_at("environment", NOSET, "warning", what, todo, needed=False)


def object_store(case: Case) -> int | None:
    """How large Ray makes its object store on this machine unless it is told."""
    memory, disks = case.machine.text(m.MEMORY) or "", case.machine.text(m.DISKS)
    free = available(memory) or memory_total(memory)
    if free is None or disks is None:
        return None
    shared = mount_of("/dev/shm", mounts(disks))
    here = shared.total if shared is not None and shared.point == "/dev/shm" else 0
    return min(int(free * _SHARE), _MOST, int(here * _OF_SHARED))


def _store(case: Case) -> Iterator[Finding]:
    try:
        told, size = controller_of(case), object_store(case)
    except BadSizes:
        return
    if told is None or size is None:
        return
    name, largest = "Ray's object store", told.largest
    what = message(
        "{size} unless it is told; {bytes} come at once for {call} on the first node",
        size=size_text(size),
        bytes=size_text(largest.bytes),
        call=largest.call,
    )
    if largest.bytes + told.batch > size:
        more = (largest.bytes + told.batch) * 11 // 10
        todo = message(
            "ray_cluster.sh head ... -- --object-store-memory {bytes}, with a larger /dev/shm; else the rest goes by way of"
            " {folder} on disk",
            bytes=more,
            folder=_FOLDER,
        )
        yield looked_at("host", name, "warning", what, todo, needed=False)
    else:
        yield looked_at("host", name, "ok", what)


def _disk(case: Case) -> Iterator[Finding]:
    disks = case.machine.text(m.DISKS)
    mount = mount_of(_FOLDER, mounts(disks)) if disks is not None else None
    if mount is None or not mount.total:
        return  # df is asked for elsewhere
    name, used = "disk of Ray", 1 - Fraction(mount.free, mount.total)
    what = message(
        "{free} of {total} are free on {point} for {folder}",
        free=size_text(mount.free),
        total=size_text(mount.total),
        point=mount.point,
        folder=_FOLDER,
    )
    if used > _FULL:
        todo = message("make room, or ray_cluster.sh head --temp-dir D on another disk, which all nodes then use")
        share = f"{float(_FULL):.0%}"
        what = message("{what}: above {share} Ray makes no objects that spill", what=what, share=share)
        yield looked_at("host", name, "error", what, todo)
    else:
        yield looked_at("host", name, "ok", what)


def _proxies(case: Case) -> Iterator[Finding]:
    """Ray's own channels leave HTTP proxies aside unless told (ray#23526); its dashboard, its client and what else speaks HTTP
    to a node do not (ray#14350, #37757)."""
    own = {name.lower(): (name, value) for name, value in (case.environment or {}).items()}
    named = [own[name][0] for name in PROXIES if name in own and own[name][1]]
    if not named:
        return
    open_to_ray = (case.environment or {}).get(GRPC_PROXY, "0") not in ("", "0", "false", "False")
    missing = _not_exempt(case, own.get("no_proxy", ("", ""))[1])
    if not missing:
        what = message("{names}; no_proxy names this machine and the first node", names=joined(named))
        yield looked_at("network", "proxy", "ok", what)
        return
    what = message("{names}, and no_proxy leaves out {missing}", names=joined(named), missing=joined(missing))
    own_names = ("localhost", "127.0.0.1")
    todo = message(
        "export no_proxy={addresses} and the other nodes' addresses before `ray start`, or unset {names}",
        addresses=",".join([*own_names, *(a for a in missing if a not in own_names)]),
        names=" ".join(named),
    )
    if open_to_ray:
        what = message("{what}; {variable} sends Ray's own traffic there", what=what, variable=GRPC_PROXY)
        yield looked_at("network", "proxy", "error", what, todo)
    else:
        yield looked_at("network", "proxy", "warning", what, todo, needed=False)


def _not_exempt(case: Case, exempt: str) -> list[str]:
    """The addresses that are spoken to and that no_proxy does not name."""
    data = case.machine.data(m.ADDRESSES)
    own = [a for i in interfaces(data) if i.name != "lo" for a in i.addresses if ":" not in a][:1]
    master = case.in_effect.get("MASTER_ADDR")
    names = dict.fromkeys(["127.0.0.1", *own, *([master] if master and case.run.machines > 1 else [])])
    rules = [rule.strip() for rule in exempt.split(",") if rule.strip()]
    return [name for name in names if not any(_covers(rule, name) for rule in rules)]


def _covers(rule: str, name: str) -> bool:
    """`*`, a name, the end of a name, or a network as 192.0.2.0/24, which requests and Ray's aiohttp understand."""
    if rule in ("*", name) or (name == "127.0.0.1" and rule == "localhost"):
        return True
    try:
        return "/" in rule and ipaddress.ip_address(name) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return name.endswith(rule) and rule.startswith(".")
