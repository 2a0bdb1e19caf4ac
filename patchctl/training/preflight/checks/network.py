"""Ports that have to be free, the network interface that the variables name, and the address of the first node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import joined, message
from patchctl.terminal.text import abridged
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks.hccl import check_hccl, reserved
from patchctl.training.preflight.tool_output import Interface, interfaces, listening

RAY_PORTS = (6766, 8260)  # head and dashboard: 003, 4.5; 002
# CANN 8.5.0, HCCL_IF_BASE_PORT: 32 ports from 60000 on, unless one of two variables says others.
HCCL_PORT, HCCL_PORTS = 60000, 32
HCCL_BASE, HCCL_RANGE = "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE"
IFNAMES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ROLLOUT = "actor_rollout_ref.rollout"


def check_network(case: Case) -> Iterator[Finding]:
    """Ports, engine groups, interfaces, MASTER_ADDR."""
    text = case.machine.text(m.SOCKETS)
    if text is None:
        todo = message("record again with `patchctl preflight --record DIR`")
        yield looked_at("network", "ports", "unknown", case.machine.why_not(m.SOCKETS), todo)
    else:
        taken = listening(text)
        yield _ray_ports(taken)
        yield _hccl_ports(taken, case.in_effect)
    ports, _ = _hccl_wanted(case.in_effect)
    if ports and (told := reserved(case, ports[0], ports[-1])) is not None:
        yield told
    yield from _engine_groups(case)
    yield from _interfaces(case)
    yield from check_hccl(case)


def _ray_ports(taken: set[int]) -> Finding:
    """In use is no fault by itself: preflight may run when Ray does already."""
    used = [port for port in RAY_PORTS if port in taken]
    name = "ports of Ray"
    if used:
        todo = message(
            "`ray status --address 127.0.0.1:6766` tells whether it is the Ray of this run; else end it, or choose other ports"
        )
        what = message("{ports} in use: a Ray that runs already, or something else", ports=abridged(used, 6))
        return looked_at("network", name, "warning", what, todo)
    what = message("{ports} are free (head and dashboard, on the first node)", ports=abridged(RAY_PORTS, 6))
    return looked_at("network", name, "ok", what)


def _hccl_ports(taken: set[int], environment: Mapping[str, str]) -> Finding:
    name = "ports of HCCL"
    ports, source = _hccl_wanted(environment)
    if ports is None:
        value = environment.get(HCCL_RANGE) or environment.get(HCCL_BASE)
        what = message("{setting} cannot be read", setting=f"{source}={value}")
        todo = message("{setting}, or unset it", setting=f"{HCCL_RANGE}=60000-60050")
        return looked_at("network", name, "error", what, todo)
    if not ports:
        what = message("{setting}: the system chooses", setting=f"{source}=auto")
        return looked_at("network", name, "ok", what)
    used = [port for port in ports if port in taken]
    what = message("{first} to {last} ({source})", first=ports[0], last=ports[-1], source=source)
    if used:
        todo = message(
            "end what listens there (`ss -ltnp`), or {variable}=N with {count} free ports, the same on every node",
            variable=HCCL_BASE,
            count=HCCL_PORTS,
        )
        what = message("{what}: {ports} in use", what=what, ports=abridged(used, 6))
        return looked_at("network", name, "error", what, todo)
    return looked_at("network", name, "ok", message("{what} are free", what=what))


def _hccl_wanted(environment: Mapping[str, str]) -> tuple[list[int] | None, str]:
    """The ports and which variable says so; none for `auto`, None for what cannot be read."""
    if (text := environment.get(HCCL_RANGE)) is not None:
        if text.strip() == "auto":
            return [], HCCL_RANGE
        return _ports(text), HCCL_RANGE
    base = environment.get(HCCL_BASE, str(HCCL_PORT))
    source = HCCL_BASE if HCCL_BASE in environment else message("HCCL's own")
    if not re.fullmatch(r"\d{4,5}", base) or not 1024 <= int(base) <= 65520:
        return None, source
    return list(range(int(base), min(int(base) + HCCL_PORTS, 65536))), source


def _ports(text: str) -> list[int] | None:
    """60000-60050,60100: ports and ranges of them."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if ends is None:
            return None
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not 0 < first <= last < 65536:
            return None
        found += range(first, last + 1)
    return found


def _engine_groups(case: Case) -> Iterator[Finding]:
    """How many copies of the model the devices make."""
    tensor, data = case.number(f"{_ROLLOUT}.tensor_model_parallel_size"), case.number(f"{_ROLLOUT}.data_parallel_size")
    if not tensor or not data or tensor < 1 or data < 1:
        return  # not said, or refused with the other sizes
    name, size, devices = "engine groups", tensor * data, case.devices
    what = message(
        "{devices} devices, tensor parallel {tensor} x data parallel {data}", devices=devices, tensor=tensor, data=data
    )
    if devices % size:
        todo = message("sizes whose product divides the devices: --size, or another rollout.data_parallel_size")
        what = message("{what}: no whole number of groups", what=what)
        yield looked_at("network", name, "error", what, todo)
        return
    spmd = message(
        "{groups} ({what}); the practice's VLLM_DP_SIZE, which is left unset here, would be {size}",
        groups=devices // size,
        what=what,
        size=devices // tensor,
    )
    yield looked_at("network", name, "ok", spmd)


def _interfaces(case: Case) -> Iterator[Finding]:
    data = case.machine.data(m.ADDRESSES)
    if data is None:
        todo = message("record again with `patchctl preflight --record DIR`")
        yield looked_at("network", "interface", "unknown", case.machine.why_not(m.ADDRESSES), todo)
        return
    known = interfaces(data)
    asked = {name: case.in_effect[name] for name in IFNAMES if case.in_effect.get(name)}
    if not asked and case.environment is None:
        yield looked_at("network", "interface", "unknown", case.machine.why_not(m.ENVIRONMENT), needed=False)
    elif not asked:
        yield _unnamed(case, known)
    for name, value in asked.items():
        yield _named(name, value, known)
    chosen = {v for n, v in asked.items() if n != "TP_SOCKET_IFNAME"}
    if len(chosen) > 1:
        what = message("they differ: {values}", values=joined(f"{n}={v}" for n, v in asked.items()))
        todo = message("one interface in all of them")
        yield looked_at("network", "interface", "warning", what, todo)
    yield from _master(case, known)


def _unnamed(case: Case, known: Sequence[Interface]) -> Finding:
    able = abridged([f"{i.name} ({', '.join(_outer(i))})" for i in known if i.up and _outer(i)], 6)
    what = message(
        "{variables} are not set; up with an address: {able}",
        variables=joined(IFNAMES[:2], " and "),
        able=able or message("none has an address"),
    )
    if case.nodes == 1:
        return looked_at("network", "interface", "ok", message("{what}; one node needs none", what=what))
    todo = message("export both with the interface that the other nodes reach, on every node")
    return looked_at("network", "interface", "warning", what, todo)


def _named(name: str, value: str, known: Sequence[Interface]) -> Finding:
    """HCCL takes beginnings of names, =NAME for one name, ^ for all but these; gloo takes names."""
    found = matching(value, known) if name.startswith("HCCL") else [i for i in known if i.name in value.split(",")]
    names = joined(i.name for i in known) or message("none")
    if not found:
        what = message("{value}: no such interface", value=value)
        todo = message("one of {names}: the node's own (`ip addr`)", names=names)
        return looked_at("network", name, "error", what, todo)
    down = [i.name for i in found if not i.up]
    bare = [i.name for i in found if i.up and not _outer(i)]
    if down or bare:
        faults = [message("{name} is down", name=n) for n in down]
        faults += [message("{name} has no address of this node", name=n) for n in bare]
        what = message("{what}: {more}", what=value, more=joined(faults))
        todo = message("an interface that is up and that the other nodes reach, of {names}", names=names)
        return looked_at("network", name, "error", what, todo)
    addresses = joined(a for i in found for a in _outer(i))
    return looked_at("network", name, "ok", message("{value}: up, {addresses}", value=value, addresses=addresses))


def matching(value: str, known: Sequence[Interface]) -> list[Interface]:
    """The interfaces that HCCL_SOCKET_IFNAME means."""
    word = value.strip()
    but, word = word.startswith("^"), word.removeprefix("^")
    exact, word = word.startswith("="), word.removeprefix("=")
    names = [n for n in word.split(",") if n]
    hits = [i for i in known if (i.name in names if exact else i.name.startswith(tuple(names)))]
    return [i for i in known if i not in hits and i.name != "lo"] if but else hits


def _master(case: Case, known: Sequence[Interface]) -> Iterator[Finding]:
    value = case.in_effect.get("MASTER_ADDR")
    if value is None or case.nodes == 1:
        return
    if value == "localhost" or value.startswith("127."):
        todo = message("the address of the first node, the same on every node")
        what = message("{value}: each of {nodes} nodes would wait for itself", value=value, nodes=case.nodes)
        yield looked_at("network", "MASTER_ADDR", "error", what, todo)
        return
    what = message("{value}, another node; the same on every node", value=value)
    if any(value in i.addresses for i in known):
        what = message("{value}, this node; the same on every node", value=value)
    yield looked_at("network", "MASTER_ADDR", "ok", what)


def _outer(interface: Interface) -> list[str]:
    """The addresses that another node could reach: not those of the machine or of the link alone."""
    return [a for a in interface.addresses if not a.startswith(("127.", "169.254.", "fe80:")) and a != "::1"]
