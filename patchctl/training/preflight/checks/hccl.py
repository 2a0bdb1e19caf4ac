"""What HCCL is told by variables, the ports that it counts on, and the devices' own network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import joined, message
from patchctl.terminal.text import abridged
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.tool_output import (
    DevicePort,
    configured_addresses,
    device_ports,
    interfaces,
    local_ports,
    port_ranges,
)

# CANN 8.5.0, list of variables: HCCL_WHITELIST_DISABLE (default 1: no whitelist), HCCL_INTRA_PCIE_ENABLE and _ROCE_ENABLE.
WHITELIST_OFF, WHITELIST = "HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE"
PCIE, ROCE = "HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE"
OWN_ADDRESS = "HCCL_IF_IP"
_REFUSED = {("1", "1"), ("0", None), (None, "0")}


def check_hccl(case: Case) -> Iterator[Finding]:
    """Variables, then what each device says of its port."""
    own = case.in_effect
    yield from _whitelist(case, own)
    yield from _inside_a_server(own)
    yield from _own_address(case, own)
    yield from _device_network(case)


def _whitelist(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    if own.get(WHITELIST_OFF, "1") != "0":
        return
    file = own.get(WHITELIST)
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


def _own_address(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    value, data = own.get(OWN_ADDRESS), case.machine.data(m.ADDRESSES)
    if value and data is not None and not any(value in i.addresses for i in interfaces(data)):
        todo = message(
            "unset {variable}, or this node's own address: it comes before HCCL_SOCKET_IFNAME", variable=OWN_ADDRESS
        )
        what = message("{value} is no address of this node", value=value)
        yield looked_at("network", OWN_ADDRESS, "error", what, todo)


def reserved(case: Case, first: int, last: int) -> Finding | None:
    """Whether connections that go out may take HCCL's ports: CANN 8.5.0, HCCL_IF_BASE_PORT, wants them reserved. None where
    they are, or cannot be taken."""
    name, span = "reserved ports", case.machine.text(m.LOCAL_PORTS)
    held = case.machine.text(m.RESERVED_PORTS)
    given, kept = local_ports(span or ""), port_ranges(held) if held is not None else None
    setting = f"net.ipv4.ip_local_reserved_ports={first}-{last}"
    cure = message("on the host: sysctl -w {setting}", setting=setting)
    if given is None or kept is None:
        why = case.machine.why_not(m.LOCAL_PORTS if span is None else m.RESERVED_PORTS)
        if span is not None and held is not None:
            why = message("ip_local_port_range or ip_local_reserved_ports cannot be read")
        what = message("{first} to {last}: {why}", first=first, last=last, why=why)
        return looked_at("network", name, "unknown", what, cure, needed=False)
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
        return looked_at("network", name, "warning", what, cure, needed=False)
    return None


def _device_network(case: Case) -> Iterator[Finding]:
    """TLS and addresses of the devices' ports: CANN 8.5.0, HCCL guide, EI0014 (TLS) and links that are not made."""
    text = case.machine.text(m.DEVICE_NETWORK)
    if text is None:
        if case.nodes > 1:
            todo = message("on the host: for i in $(seq 0 7); do hccn_tool -i $i -tls -g; hccn_tool -i $i -ip -g; done")
            why = case.machine.why_not(m.DEVICE_NETWORK)
            yield looked_at("network", "device network", "unknown", why, todo, needed=False)
        return
    ports = device_ports(text)
    faults = [*_tls(ports), *_addresses(case, ports), *_down(case, ports)]
    yield from faults
    if ports and not faults:
        what = message(
            "{count} devices, {addressed} with an address, {tls}",
            count=len(ports),
            addressed=sum(p.address is not None for p in ports.values()),
            tls=joined(sorted({_tls_word(p) for p in ports.values()})),
        )
        yield looked_at("network", "device network", "ok", what)


def _tls_word(port: DevicePort) -> str:
    if port.tls is None:
        return message("TLS not said")
    return message("TLS on") if port.tls else message("TLS off")


def _tls(ports: Mapping[int, DevicePort]) -> Iterator[Finding]:
    on = [n for n, port in ports.items() if port.tls]
    off = [n for n, port in ports.items() if port.tls is False]
    if not on:
        return
    todo = message("on the host, on every node: for i in $(seq 0 15); do hccn_tool -i $i -tls -s enable 0; done")
    if off:
        what = message(
            "on for devices {on}, off for {off}: no link is made between them", on=abridged(on, 6), off=abridged(off, 6)
        )
        yield looked_at("network", "TLS of devices", "error", what, todo)
    else:
        what = message("on for all devices: every node has to have it on, with certificates that are valid")
        yield looked_at("network", "TLS of devices", "warning", what, todo, needed=False)


def _addresses(case: Case, ports: Mapping[int, DevicePort]) -> Iterator[Finding]:
    name = "addresses of devices"
    wanted = configured_addresses(case.machine.text(m.DEVICE_ADDRESSES) or "")
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
    if bare and case.nodes > 1:
        todo = message(
            "hccn_tool -i N -ip -s address A netmask M on the host; not where nodes are linked in a supernode"
        )
        what = message("none on devices {devices}", devices=abridged(bare, 6))
        yield looked_at("network", name, "warning", what, todo, needed=False)


def _down(case: Case, ports: Mapping[int, DevicePort]) -> Iterator[Finding]:
    down = [n for n, port in ports.items() if port.link == "DOWN"]
    if down and case.nodes > 1:
        todo = message("cable, optical module and switch; `hccn_tool -i N -link -g` until it says UP")
        what = message("DOWN on devices {devices}", devices=abridged(down, 6))
        yield looked_at("network", "links of devices", "error", what, todo)
