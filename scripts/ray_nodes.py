#!/usr/bin/env python3
"""What ray_cluster.sh asks of Python: this node's address and interface, and which nodes a Ray cluster has.

Run by the interpreter that has ray. Exit codes: 0 all is there, 1 it is not, 2 wrong use.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

DONE, FINDINGS, WRONG_USE = 0, 1, 2
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40
_MOST_INTERFACES = 128
_CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Node:
    """A raylet as the cluster knows it."""

    address: str
    devices: int
    alive: bool


@dataclass(frozen=True)
class Wanted:
    """What the run needs: how many nodes, how many devices on each, and which addresses, where they are known."""

    nodes: int
    devices: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Census:
    """The nodes of a cluster, compared with what is wanted."""

    nodes: tuple[Node, ...]
    wanted: Wanted

    @property
    def alive(self) -> list[Node]:
        return sorted((n for n in self.nodes if n.alive), key=lambda n: _order(n.address))

    @property
    def devices(self) -> int:
        return sum(n.devices for n in self.alive)

    @property
    def missing(self) -> list[str]:
        """Addresses that were expected and have no raylet."""
        there = {n.address for n in self.alive}
        return [a for a in self.wanted.addresses if a not in there]

    @property
    def left(self) -> list[str]:
        """Addresses that had a raylet which is gone, and have none now."""
        there = {n.address for n in self.alive}
        return sorted({n.address for n in self.nodes if not n.alive} - there, key=_order)

    @property
    def short(self) -> list[str]:
        """Addresses whose raylet announces fewer devices than wanted."""
        return [n.address for n in self.alive if n.devices < self.wanted.devices]

    @property
    def complete(self) -> bool:
        return len(self.alive) >= self.wanted.nodes and not self.missing and not self.short

    def line(self) -> str:
        """One line for a person who waits."""
        wanted = self.wanted
        parts = [f"{len(self.alive)} of {wanted.nodes} nodes, {self.devices} of {wanted.nodes * wanted.devices} NPU"]
        for name, addresses in (("missing", self.missing), ("left", self.left), ("too few NPU", self.short)):
            if addresses:
                parts.append(f"{name}: {' '.join(addresses)}")
        return "; ".join(parts)

    def table(self) -> list[str]:
        """A line a node, then the sum."""
        rows = [("address", "NPU", "state")]
        rows += [(n.address, str(n.devices), "few NPU" if n.address in self.short else "alive") for n in self.alive]
        rows += [(a, "-", "left") for a in self.left]
        rows += [(a, "-", "missing") for a in self.missing if a not in self.left]
        width = max(len(row[0]) for row in rows)
        return [*(f"{a:<{width}}  {n:>4}  {state}" for a, n, state in rows), self.line()]

    def as_json(self) -> dict[str, object]:
        return {
            "schema": "patchctl.ray_nodes/1",
            "complete": self.complete,
            "nodes": [{"address": n.address, "npu": n.devices} for n in self.alive],
            "missing": self.missing,
            "left": self.left,
            "too_few_npu": self.short,
            "wanted": {"nodes": self.wanted.nodes, "npu_per_node": self.wanted.devices},
        }


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (OSError, RuntimeError, ValueError) as reason:
        _say(str(reason))
        return FINDINGS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    local = verbs.add_parser("local", help="print this node's ADDRESS and INTERFACE on the way to another address")
    local.add_argument("towards", help="an address or a name; the way there decides")
    local.set_defaults(run=print_local)
    address = verbs.add_parser("address", help="print the IPv4 address of a name")
    address.add_argument("name")
    address.set_defaults(run=print_address)
    reach = verbs.add_parser("reach", help="wait until something listens there")
    nodes = verbs.add_parser("nodes", help="wait until the nodes are there, and list them")
    for verb in (reach, nodes):
        verb.add_argument("address", metavar="HOST:PORT")
        verb.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
        verb.add_argument("--poll", type=float, default=5.0, metavar="SECONDS")
    reach.set_defaults(run=wait_to_reach)
    nodes.add_argument("--nodes", type=int, default=1, metavar="N")
    nodes.add_argument("--devices", type=int, default=0, metavar="N")
    nodes.add_argument("--expect", default="", metavar="ADDRESS,...")
    nodes.add_argument("--json", action="store_true")
    nodes.set_defaults(run=wait_for_nodes)
    return parser


def print_local(args: argparse.Namespace) -> int:
    """The source address of a datagram that is never sent, and the interface that has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((args.towards, 9))
        address = probe.getsockname()[0]
    print(address, interface_of(address, _interfaces()))
    return DONE


def print_address(args: argparse.Namespace) -> int:
    print(socket.gethostbyname(args.name))
    return DONE


def interface_of(address: str, interfaces: Iterable[tuple[str, str]]) -> str:
    """The interface of an IPv4 address of this machine. Raises ValueError where none has it."""
    for name, its_address in interfaces:
        if its_address == address or (name == "lo" and address.startswith("127.")):
            return name
    raise ValueError(f"no interface of this machine has the address {address}: give --interface")


def _interfaces() -> list[tuple[str, str]]:
    """Name and address of every interface that is up: what `ip -4 addr` shows, which a container may lack."""
    buffer = array.array("B", bytes(_IFREQ_BYTES * _MOST_INTERFACES))
    start, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        filled = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", length, start))
    used = struct.unpack("iL", filled)[0]
    found = []
    for at in range(0, used, _IFREQ_BYTES):
        name = buffer[at : at + 16].tobytes().split(b"\0", 1)[0].decode()
        found.append((name.split(":")[0], socket.inet_ntoa(buffer[at + 20 : at + 24].tobytes())))
    return found


def wait_to_reach(args: argparse.Namespace) -> int:
    host, port = _host_and_port(args.address)
    return (
        DONE if _until(args, lambda: _listens(host, port), lambda: f"nothing listens at {args.address}") else FINDINGS
    )


def wait_for_nodes(args: argparse.Namespace) -> int:
    """Lists the nodes when they are complete, or when the time is over: a table on stdout, progress on stderr."""
    wanted = Wanted(args.nodes, args.devices, tuple(a for a in args.expect.split(",") if a))
    began = time.monotonic()
    if wait_to_reach(args) != DONE:
        return FINDINGS
    args.wait -= time.monotonic() - began
    cluster = _join(args.address)
    census = Census((), wanted)

    def look() -> bool:
        nonlocal census
        census = Census(_nodes(cluster), wanted)
        return census.complete

    _until(args, look, lambda: census.line())
    print(json.dumps(census.as_json(), indent=2) if args.json else "\n".join(census.table()))
    return DONE if census.complete else FINDINGS


def _until(args: argparse.Namespace, there: Callable[[], bool], progress: Callable[[], str]) -> bool:
    """Asks until it is there or the time is over; says so in between, once for every change."""
    end, said = time.monotonic() + args.wait, ""
    while not there():
        left = end - time.monotonic()
        if progress() != said:
            said = progress()
            _say(f"{said}{f' (waiting {left:.0f} s more)' if left > 0 else ''}")
        if left <= 0:
            return False
        time.sleep(min(args.poll, left))
    return True


def _join(address: str) -> Any:
    """As a driver: the interface of Ray that every version has. Needs a raylet of that cluster on this machine."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    return ray


def _nodes(cluster: Any) -> tuple[Node, ...]:
    return tuple(
        Node(row["NodeManagerAddress"], int(row.get("Resources", {}).get("NPU", 0)), row["Alive"])
        for row in cluster.nodes()
    )


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address}: HOST:PORT is wanted")
    return host.strip("[]"), int(port)


def _order(address: str) -> tuple[object, ...]:
    """Addresses by number, names after them."""
    parts = address.split(".")
    return (0, *map(int, parts)) if all(p.isdigit() for p in parts) else (1, address)


def _say(text: str) -> None:
    print(f"ray_cluster.sh: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
