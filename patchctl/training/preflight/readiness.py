"""Combines the machines of all nodes into each node's findings and the differences between nodes. Pure functions.

A value can be valid on a node but differ from the other nodes: TLS on one node, another driver, other weights. Such a
value is reported with its nodes and the value of the majority.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from patchctl.cluster.compare import majority
from patchctl.cluster.facts import NodeFacts
from patchctl.cluster.fanout import Answer, ClusterNode, NoAnswer
from patchctl.doc import Doc
from patchctl.doctor.runtime import info_version
from patchctl.findings import Finding, Level, Report
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import abridged, counted
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks import all_findings

# Checked on the first node only. Ray's own ports are in use because Ray is running.
FIRST_NODE = ("controller memory", "Ray's object store")
RUNNING = ("ports of Ray",)


@dataclass(frozen=True)
class Odd:
    """A trait that differs between nodes."""

    trait: Annotated[str, Doc("trait that differs")]
    value: Annotated[str, Doc("value on these nodes", line=True)]
    most: Annotated[str | None, Doc("value on more than half of the nodes; null without a majority")]
    nodes: Annotated[tuple[str, ...], Doc("nodes with the value")]
    stops: Annotated[bool, Doc("true if the difference makes a run stop or go wrong")]

    @property
    def said(self) -> str:
        """The value, and what it is compared with."""
        return f"{self.value}; most have {self.most}" if self.most else f"{self.value}; no value is that of most"


@dataclass(frozen=True)
class Readiness:
    """Every node's answer, its findings, and the differences between nodes."""

    answers: Mapping[ClusterNode, Answer]
    findings: Mapping[str, tuple[Finding, ...]]
    odd: tuple[Odd, ...]
    missing: int

    @property
    def ready(self) -> bool:
        """Whether enough nodes are ready. Nodes that were dead before do not matter if enough others live."""
        return not self.missing and all(self.state(n) == "ready" for n in self.answers if n.alive)

    def why(self, node: ClusterNode) -> str | None:
        """Why the node has no findings; None if it has an answer."""
        answer = self.answers[node]
        if isinstance(answer, NoAnswer):
            return answer.what
        return answer.failed.what if answer.failed else None

    def state(self, node: ClusterNode) -> str:
        """ready, not ready, odd, dead, silent, broken or failed."""
        answer = self.answers[node]
        if isinstance(answer, NoAnswer):
            return answer.kind
        if answer.failed is not None:
            return "failed"
        if any(f.blocks for f in self.findings.get(node.title, ())):
            return "not ready"
        return "odd" if any(o.stops and node.title in o.nodes for o in self.odd) else "ready"

    def report(self) -> Report:
        """Return everything as findings, each with its nodes."""
        report = Report(counts=Counter(nodes=len(self.answers)))
        for node in self.answers:
            why = self.why(node)
            if why is not None:
                report.add([Finding(f"node-{self.state(node)}", why, nodes=(node.title,), needed=node.alive)])
            report.add(replace(f, nodes=(node.title,)) for f in self.findings.get(node.title, ()))
        if self.missing:
            report.add([Finding("nodes-missing", f"{counted(self.missing, 'node')} too few")])
        for odd in self.odd:
            level: Level = "error" if odd.stops else "note"
            report.add([Finding("odd", odd.said, level=level, name=odd.trait, nodes=odd.nodes)])
        return report


def readiness(
    answers: Mapping[ClusterNode, Answer],
    case: Callable[[m.Machine], Case],
    accepted: Collection[str] = (),
    nodes: int | None = None,
    first: Callable[[Case, Sequence[Finding]], Sequence[Finding]] = lambda case, findings: (),
) -> Readiness:
    """Check every node against the recipe and against the others.

    `case` makes a case of a machine; `nodes` is the required number; `first` are findings to put before a node's own.
    """
    cases: dict[str, Case] = {}
    findings: dict[str, tuple[Finding, ...]] = {}
    for node, answer in answers.items():
        if isinstance(answer, NodeFacts) and answer.failed is None and (facts := answer.machine) is not None:
            cases[node.title] = case(m.Machine(facts.texts, node.title, facts.time, facts.absent))
    known = any(map(is_first, cases.values()))  # where MASTER_ADDR is a name, no node has it among its addresses
    for title, own in cases.items():
        passed_over = (*RUNNING, *(FIRST_NODE if known and not is_first(own) else ()))
        found = tuple(f for f in all_findings(own, accepted) if f.name not in passed_over)
        findings[title] = (*first(own, found), *found)
    missing = max(0, (nodes or 0) - sum(node.alive for node in answers))
    return Readiness(answers, findings, tuple(_odd(cases, accepted)), missing)


def is_first(case: Case) -> bool:
    """Whether MASTER_ADDR is an address of this node; if unset, any node may be the first."""
    master, data = case.in_effect.get("MASTER_ADDR"), case.machine.data(m.ADDRESSES)
    return master is None or data is None or any(master in i.addresses for i in m.interfaces(data))


def _odd(cases: Mapping[str, Case], accepted: Collection[str]) -> Iterator[Odd]:
    for trait, (stops, value_of) in TRAITS.items():
        values = {title: value for title, case in cases.items() if (value := value_of(case)) is not None}
        if len(set(values.values())) < 2:
            continue
        most = majority(values)
        for value in dict.fromkeys(values.values()):
            if value != most:
                having = tuple(title for title, other in values.items() if other == value)
                yield Odd(trait, value, most, having, stops and trait not in accepted)
    yield from _shared_addresses(cases, accepted)


def _shared_addresses(cases: Mapping[str, Case], accepted: Collection[str]) -> Iterator[Odd]:
    """Yield addresses that devices of two nodes share: packets reach only one of them."""
    holders: dict[str, list[str]] = {}
    for title, case in cases.items():
        ports = m.device_ports(case.machine.text(m.DEVICE_NETWORK) or "").values()
        for address in sorted({p.address for p in ports if p.address}):
            holders.setdefault(address, []).append(title)
    trait = "addresses of devices"
    for nodes in dict.fromkeys(tuple(titles) for titles in holders.values() if len(titles) > 1):
        shared = [address for address, titles in holders.items() if tuple(titles) == nodes]
        yield Odd(trait, f"{abridged(shared, 1)} on devices of all of these", None, nodes, trait not in accepted)


def _version(probe: str) -> Callable[[Case], str | None]:
    return lambda case: info_version(case.machine.text(probe) or "")


def _line(probe: str) -> Callable[[Case], str | None]:
    return lambda case: (case.machine.text(probe) or "").strip() or None


def _packages(case: Case) -> str | None:
    """Return the versions of the packages that the profile names."""
    known = m.packages(case.machine.text(m.PACKAGES) or "")
    wanted = [r.distribution or n for n, r in case.requirements.items() if r.kind == "python" and n in case.wanted]
    return ", ".join(f"{n} {known.get(m.same_name(n), 'none')}" for n in sorted(wanted)) if known else None


def _tls(case: Case) -> str | None:
    switches = {p.tls for p in m.device_ports(case.machine.text(m.DEVICE_NETWORK) or "").values()} - {None}
    return None if len(switches) != 1 else "on" if True in switches else "off"


def _devices(case: Case) -> str | None:
    devices = case.smi.devices if case.smi else ()
    return f"{len(devices)} devices of {size_text(devices[0].total)}" if devices else None


def _config(case: Case) -> str | None:
    text = case.machine.text(m.CONFIG)
    return None if text is None else f"config.json {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _sizes(case: Case) -> str | None:
    """Return kind and size of existing files of the recipe that must be the same on every node."""
    there = {name: case.there(path) for name in case.run.paths if name != "checkpoints" and (path := case.path(name))}
    return ", ".join(f"{n} {size_text(t['bytes'])}" for n, t in sorted(there.items()) if t) or None


def _memory(case: Case) -> str | None:
    total = m.memory(case.machine.text(m.MEMORY) or "")
    return None if total is None else f"{round(total / (32 << 30)) * 32} GiB, to the next 32"


def _configured(case: Case) -> str | None:
    text = case.machine.text(m.DEVICE_ADDRESSES)
    return None if text is None else f"{len(m.configured_addresses(text))} addresses in /etc/hccn.conf"


TRAITS: Mapping[str, tuple[bool, Callable[[Case], str | None]]] = {
    "devices": (True, _devices),
    "driver": (True, _version(m.DRIVER)),
    "cann": (True, _version(m.CANN)),
    "architecture": (True, _line(m.KERNEL)),
    "python": (True, _line(m.PYTHON)),
    "packages": (True, _packages),
    "TLS of devices": (True, _tls),
    "MASTER_ADDR": (True, lambda case: case.in_effect.get("MASTER_ADDR")),
    "model": (True, _config),
    "files of the recipe": (True, _sizes),
    "hccn.conf": (False, _configured),
    "memory": (False, _memory),
    "reserved ports": (False, _line(m.RESERVED_PORTS)),
}
"""What has to be the same on all nodes, by name: whether another value stops a run, and how it is read."""
