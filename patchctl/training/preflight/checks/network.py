"""The network of training: ports that have to be free, the interface that the variables name, the address of the first node; HCCL's variables, the
ports that it counts on, and the devices' own network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from patchctl.findings import Finding, looked_at
from patchctl.language import joined, message
from patchctl.terminal.text import abridged, device_count, one_line
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case

RAY_PORTS = (6766, 8260)  # head and dashboard: 003, 4.5; 002
# CANN 8.5.0, HCCL_IF_BASE_PORT: 32 ports from 60000 on, unless one of two variables says others.
HCCL_PORT, HCCL_PORTS = 60000, 32
HCCL_BASE, HCCL_RANGE = "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE"
IFNAMES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ROLLOUT = "actor_rollout_ref.rollout"
# CANN 8.5.0, list of variables: HCCL_WHITELIST_DISABLE (default 1: no whitelist), HCCL_INTRA_PCIE_ENABLE and _ROCE_ENABLE.
WHITELIST_OFF, WHITELIST = "HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE"
PCIE, ROCE = "HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE"
OWN_ADDRESS = "HCCL_IF_IP"
_REFUSED = {("1", "1"), ("0", None), (None, "0")}


def check_network(case: Case) -> Iterator[Finding]:
    """Ports, engine groups, interfaces, MASTER_ADDR."""
    text = case.machine.text(m.SOCKETS)
    if text is None:
        todo = message("record again with `patchctl preflight --record DIR`")
        yield looked_at("network", "ports", "unknown", case.machine.why_not(m.SOCKETS), todo)
    else:
        taken = m.listening(text)
        yield _ray_ports(taken)
        yield _hccl_ports(taken, case.in_effect)
    yield from _reserved(case)
    yield from _engine_groups(case)
    yield from _interfaces(case)
    yield from _whitelist(case)
    yield from _inside_a_server(case.in_effect)
    yield from _own_address(case)
    yield from _device_network(case)


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
    """60000-60050,60100: ports and ranges of them, and no comma without one."""
    ranges = m.port_ranges(text) if all(part.strip() for part in text.split(",")) else None
    return None if ranges is None else [port for first, last in ranges for port in range(first, last + 1)]


def _engine_groups(case: Case) -> Iterator[Finding]:
    """How many copies of the model the devices make."""
    tensor, data = case.number(f"{_ROLLOUT}.tensor_model_parallel_size"), case.number(f"{_ROLLOUT}.data_parallel_size")
    if not tensor or not data or tensor < 1 or data < 1:
        return  # not said, or refused with the other sizes
    name, size, devices = "engine groups", tensor * data, case.run.engine_devices
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
    known = m.interfaces(data)
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


def _unnamed(case: Case, known: Sequence[m.Interface]) -> Finding:
    able = abridged([f"{i.name} ({', '.join(_outer(i))})" for i in known if i.up and _outer(i)], 6)
    what = message(
        "{variables} are not set; up with an address: {able}",
        variables=joined(IFNAMES[:2], " and "),
        able=able or message("none has an address"),
    )
    if case.run.machines == 1:
        return looked_at("network", "interface", "ok", message("{what}; one node needs none", what=what))
    todo = message("on every node, set both to the interface that the other nodes reach")
    return looked_at("network", "interface", "warning", what, todo)


def _named(name: str, value: str, known: Sequence[m.Interface]) -> Finding:
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


def matching(value: str, known: Sequence[m.Interface]) -> list[m.Interface]:
    """The interfaces that HCCL_SOCKET_IFNAME means."""
    word = value.strip()
    but, word = word.startswith("^"), word.removeprefix("^")
    exact, word = word.startswith("="), word.removeprefix("=")
    names = [n for n in word.split(",") if n]
    hits = [i for i in known if (i.name in names if exact else i.name.startswith(tuple(names)))]
    return [i for i in known if i not in hits and i.name != "lo"] if but else hits


def _master(case: Case, known: Sequence[m.Interface]) -> Iterator[Finding]:
    value = case.in_effect.get("MASTER_ADDR")
    if value is None or case.run.machines == 1:
        return
    if value == "localhost" or value.startswith("127."):
        todo = message("the address of the first node, the same on every node")
        what = message("{value}: each of {nodes} nodes would wait for itself", value=value, nodes=case.run.machines)
        yield looked_at("network", "MASTER_ADDR", "error", what, todo)
        return
    what = message("{value}, another node; the same on every node", value=value)
    if any(value in i.addresses for i in known):
        what = message("{value}, this node; the same on every node", value=value)
    yield looked_at("network", "MASTER_ADDR", "ok", what)


def _outer(interface: m.Interface) -> list[str]:
    """The addresses that another node could reach: not those of the machine or of the link alone."""
    return [a for a in interface.addresses if not a.startswith(("127.", "169.254.", "fe80:")) and a != "::1"]


def _whitelist(case: Case) -> Iterator[Finding]:
    if case.in_effect.get(WHITELIST_OFF, "1") != "0":
        return
    file = case.in_effect.get(WHITELIST)
    todo = message(
        "unset {off}, or {list}=FILE with the addresses of all nodes, on every node", off=WHITELIST_OFF, list=WHITELIST
    )
    there = case.there(file) if file else None
    if file is None:
        what = message(
            "{off}=0 lets only listed addresses in, and {list} names no list", off=WHITELIST_OFF, list=WHITELIST
        )
        yield looked_at("network", WHITELIST_OFF, "error", what, todo)
    elif there == {}:
        what = message("{path}: nothing is there", path=f"{WHITELIST}={file}")
        yield looked_at("network", WHITELIST_OFF, "error", what, todo)
    else:
        what = message("{off}=0: only the addresses in {file} are let in", off=WHITELIST_OFF, file=file)
        todo = message("it has to name every node; or {todo}", todo=todo)
        yield looked_at("network", WHITELIST_OFF, "warning", what, todo, needed=False)


def _inside_a_server(own: Mapping[str, str]) -> Iterator[Finding]:
    """Both variables are for servers whose cards have no link of their own: Atlas 300T Pro, Atlas 200T A2 Box16."""
    values = own.get(PCIE), own.get(ROCE)
    if values == (None, None):
        return
    said = joined((f"{n}={v}" for n, v in zip((PCIE, ROCE), values, strict=True) if v is not None), " and ")
    todo = message(
        "unset {variables}: HCCL chooses the link between the devices of a server", variables=f"{PCIE} {ROCE}"
    )
    if values in _REFUSED:
        what = message("{values}: HCCL takes no such pair", values=said)
        yield looked_at("network", "links in a server", "error", what, todo)
    else:
        what = message("{values}: for an Atlas 300T Pro or 200T A2 Box16, which these recipes are not for", values=said)
        yield looked_at("network", "links in a server", "warning", what, todo, needed=False)


def _own_address(case: Case) -> Iterator[Finding]:
    value, data = case.in_effect.get(OWN_ADDRESS), case.machine.data(m.ADDRESSES)
    if value and data is not None and not any(value in i.addresses for i in m.interfaces(data)):
        todo = message(
            "unset {variable}, or this node's own address: it comes before HCCL_SOCKET_IFNAME", variable=OWN_ADDRESS
        )
        what = message("{value} is no address of this node", value=value)
        yield looked_at("network", OWN_ADDRESS, "error", what, todo)


def _reserved(case: Case) -> Iterator[Finding]:
    """Whether connections that go out may take HCCL's ports: CANN 8.5.0, HCCL_IF_BASE_PORT, wants them reserved."""
    ports, _ = _hccl_wanted(case.in_effect)
    if not ports:
        return
    first, last = ports[0], ports[-1]
    name, span = "reserved ports", case.machine.text(m.LOCAL_PORTS)
    held = case.machine.text(m.RESERVED_PORTS)
    given, kept = m.local_ports(span or ""), m.port_ranges(held) if held is not None else None
    reserved = ",".join(f"{a}-{b}" for a, b in (*(kept or ()), (first, last)))  # which replaces those that there are
    cure = message("on the host: sysctl -w {setting}", setting=f"net.ipv4.ip_local_reserved_ports={reserved}")
    if given is None or kept is None:
        why = case.machine.why_not(m.LOCAL_PORTS if span is None else m.RESERVED_PORTS)
        if span is not None and held is not None:
            why = message("ip_local_port_range or ip_local_reserved_ports cannot be read")
        what = message("{first} to {last}: {why}", first=first, last=last, why=why)
        yield looked_at("network", name, "unknown", what, cure, needed=False)
        return
    free = [p for p in range(first, last + 1) if given[0] <= p <= given[1] and not any(a <= p <= b for a, b in kept)]
    if free:
        what = message(
            "{count} of {first} to {last} lie in {low} to {high}, which any connection may be given: HCCL then finds them in"
            " use, now and then",
            count=len(free),
            first=first,
            last=last,
            low=given[0],
            high=given[1],
        )
        yield looked_at("network", name, "warning", what, cure, needed=False)


def _device_network(case: Case) -> Iterator[Finding]:
    """TLS and addresses of the devices' ports: CANN 8.5.0, HCCL guide, EI0014 (TLS) and links that are not made."""
    text = case.machine.text(m.DEVICE_NETWORK)
    if text is None:
        if case.run.machines > 1:
            todo = message(
                "on the host: for i in $(seq 0 {last}); do hccn_tool -i $i -tls -g; hccn_tool -i $i -ip -g; done",
                last=case.devices_per_node - 1,
            )
            why = case.machine.why_not(m.DEVICE_NETWORK)
            yield looked_at("network", "device network", "unknown", why, todo, needed=False)
        return
    ports = {n: port for n, port in m.device_ports(text).items() if port != m.DevicePort()}
    if not ports:
        what = message("hccn_tool gave no answer that is understood: {said}", said=one_line(text, 200))
        yield looked_at("network", "device network", "unknown", what, needed=False)
        return
    faults = [*_tls(case, ports), *_addresses(case, ports), *_down(case, ports)]
    yield from faults
    if ports and not faults:
        what = message(
            "{devices}, {addressed} with an address, {tls}",
            devices=device_count(len(ports)),
            addressed=sum(p.address is not None for p in ports.values()),
            tls=joined(sorted({_tls_word(p) for p in ports.values()})),
        )
        yield looked_at("network", "device network", "ok", what)


def _tls_word(port: m.DevicePort) -> str:
    if port.tls is None:
        return message("TLS not said")
    return message("TLS on") if port.tls else message("TLS off")


def _tls(case: Case, ports: Mapping[int, m.DevicePort]) -> Iterator[Finding]:
    on = [n for n, port in ports.items() if port.tls]
    off = [n for n, port in ports.items() if port.tls is False]
    if not on:
        return
    todo = message(
        "on the host, on every node: for i in $(seq 0 {last}); do hccn_tool -i $i -tls -s enable 0; done",
        last=case.devices_per_node - 1,
    )
    if off:
        what = message(
            "on for devices {on}, off for {off}: no link is made between them", on=abridged(on, 6), off=abridged(off, 6)
        )
        yield looked_at("network", "TLS of devices", "error", what, todo)
    else:
        what = message("on for all devices: every node has to have it on, with certificates that are valid")
        yield looked_at("network", "TLS of devices", "warning", what, todo, needed=False)


def _addresses(case: Case, ports: Mapping[int, m.DevicePort]) -> Iterator[Finding]:
    name = "addresses of devices"
    wanted = m.configured_addresses(case.machine.text(m.DEVICE_ADDRESSES) or "")
    stale = [n for n, port in ports.items() if n in wanted and port.address != wanted[n]]
    twice = sorted(a for a, count in Counter(p.address for p in ports.values() if p.address).items() if count > 1)
    bare = [n for n, port in ports.items() if port.address is None]
    if stale:
        n = stale[0]
        what = message(
            "device {number} has {address}, /etc/hccn.conf says {wanted}",
            number=n,
            address=ports[n].address or message("none"),
            wanted=wanted[n],
        )
        if len(stale) > 1:
            what = message("{what}, and so {count} more", what=what, count=len(stale) - 1)
        todo = message("hccn_tool -i N -ip -s address A netmask M on the host, and /etc/hccn.conf to match")
        yield looked_at("network", name, "error", what, todo)
    if twice:
        todo = message("an address of its own for each device: hccn_tool -i N -ip -s address A netmask M")
        what = message("{addresses} on more than one device", addresses=joined(twice))
        yield looked_at("network", name, "error", what, todo)
    if bare and case.run.machines > 1:
        todo = message(
            "hccn_tool -i N -ip -s address A netmask M on the host; not where nodes are linked in a supernode"
        )
        what = message("none on devices {devices}", devices=abridged(bare, 6))
        yield looked_at("network", name, "warning", what, todo, needed=False)


def _down(case: Case, ports: Mapping[int, m.DevicePort]) -> Iterator[Finding]:
    down = [n for n, port in ports.items() if port.link == "DOWN"]
    if down and case.run.machines > 1:
        todo = message("cable, optical module and switch; `hccn_tool -i N -link -g` until it says UP")
        what = message("DOWN on devices {devices}", devices=abridged(down, 6))
        yield looked_at("network", "links of devices", "error", what, todo)
