"""Ports that have to be free, the network interface that the variables name, and the address of the first node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from patchctl.findings.report import Finding, looked_at
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
        todo = "record again with `patchctl preflight --record DIR`"
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
        todo = "`ray status --address 127.0.0.1:6766` tells whether it is the Ray of this run; else end it, or choose other ports"
        return looked_at(
            "network", name, "warning", f"{abridged(used, 6)} in use: a Ray that runs already, or something else", todo
        )
    return looked_at(
        "network", name, "ok", f"{abridged(RAY_PORTS, 6)} are free (head and dashboard, on the first node)"
    )


def _hccl_ports(taken: set[int], environment: Mapping[str, str]) -> Finding:
    name = "ports of HCCL"
    ports, source = _hccl_wanted(environment)
    if ports is None:
        value = environment.get(HCCL_RANGE) or environment.get(HCCL_BASE)
        return looked_at(
            "network", name, "error", f"{source}={value} cannot be read", f"{HCCL_RANGE}=60000-60050, or unset it"
        )
    if not ports:
        return looked_at("network", name, "ok", f"{source}=auto: the system chooses")
    used = [port for port in ports if port in taken]
    what = f"{ports[0]} to {ports[-1]} ({source})"
    if used:
        todo = f"end what listens there (`ss -ltnp`), or {HCCL_BASE}=N with {HCCL_PORTS} free ports, the same on every node"
        return looked_at("network", name, "error", f"{what}: {abridged(used, 6)} in use", todo)
    return looked_at("network", name, "ok", f"{what} are free")


def _hccl_wanted(environment: Mapping[str, str]) -> tuple[list[int] | None, str]:
    """The ports and which variable says so; none for `auto`, None for what cannot be read."""
    if (text := environment.get(HCCL_RANGE)) is not None:
        if text.strip() == "auto":
            return [], HCCL_RANGE
        return _ports(text), HCCL_RANGE
    base = environment.get(HCCL_BASE, str(HCCL_PORT))
    source = HCCL_BASE if HCCL_BASE in environment else "HCCL's own"
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
    what = f"{devices} devices, tensor parallel {tensor} x data parallel {data}"
    if devices % size:
        todo = "sizes whose product divides the devices: --size, or another rollout.data_parallel_size"
        yield looked_at("network", name, "error", f"{what}: no whole number of groups", todo)
        return
    groups = devices // size
    spmd = f"{groups} ({what}); 002's VLLM_DP_SIZE, which is left unset here, would be {devices // tensor}"
    yield looked_at("network", name, "ok", spmd)


def _interfaces(case: Case) -> Iterator[Finding]:
    data = case.machine.data(m.ADDRESSES)
    if data is None:
        todo = "record again with `patchctl preflight --record DIR`"
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
        what = ", ".join(f"{n}={v}" for n, v in asked.items())
        yield looked_at(
            "network", "interface", "warning", f"they differ: {what}", "one interface in all of them (003, 4.5)"
        )
    yield from _master(case, known)


def _unnamed(case: Case, known: Sequence[Interface]) -> Finding:
    able = (
        abridged([f"{i.name} ({', '.join(_outer(i))})" for i in known if i.up and _outer(i)], 6)
        or "none has an address"
    )
    what = f"{IFNAMES[0]} and {IFNAMES[1]} are not set; up with an address: {able}"
    if case.nodes == 1:
        return looked_at("network", "interface", "ok", f"{what}; one node needs none")
    todo = "export both with the interface that the other nodes reach, on every node (003, 4.5)"
    return looked_at("network", "interface", "warning", what, todo)


def _named(name: str, value: str, known: Sequence[Interface]) -> Finding:
    """HCCL takes beginnings of names, =NAME for one name, ^ for all but these; gloo takes names."""
    found = matching(value, known) if name.startswith("HCCL") else [i for i in known if i.name in value.split(",")]
    names = ", ".join(i.name for i in known) or "none"
    if not found:
        return looked_at(
            "network", name, "error", f"{value}: no such interface", f"one of {names}: the node's own (`ip addr`)"
        )
    down = [i.name for i in found if not i.up]
    bare = [i.name for i in found if i.up and not _outer(i)]
    if down or bare:
        what = f"{value}: {', '.join([*(f'{n} is down' for n in down), *(f'{n} has no address of this node' for n in bare)])}"
        return looked_at(
            "network", name, "error", what, f"an interface that is up and that the other nodes reach, of {names}"
        )
    addresses = ", ".join(a for i in found for a in _outer(i))
    return looked_at("network", name, "ok", f"{value}: up, {addresses}")


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
        todo = "the address of the first node, the same on every node (002, 003)"
        yield looked_at(
            "network", "MASTER_ADDR", "error", f"{value}: each of {case.nodes} nodes would wait for itself", todo
        )
        return
    own = any(value in i.addresses for i in known)
    yield looked_at(
        "network", "MASTER_ADDR", "ok", f"{value}, {'this' if own else 'another'} node; the same on every node"
    )


def _outer(interface: Interface) -> list[str]:
    """The addresses that another node could reach: not those of the machine or of the link alone."""
    return [a for a in interface.addresses if not a.startswith(("127.", "169.254.", "fe80:")) and a != "::1"]
