"""Text and JSON output of `preflight` and `cluster preflight`. Computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.findings import Finding, MachineFinding, machine_text, of_machine
from patchctl.language import joined, message, translated
from patchctl.terminal.text import Style, abridged, counted, device_count, one_line, visible_line
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks import AREAS, RELEASE
from patchctl.training.preflight.readiness import Odd, Readiness
from patchctl.training.recipes.resolve import NODES, RecipeRun

_WORDS = {
    "ok": message("ok"),
    "note": message("note"),
    "warning": message("warning"),
    "error": message("wrong"),
    "unknown": message("not known"),
}


@dataclass(frozen=True)
class PreflightFinding(MachineFinding):
    """One check by `preflight`."""

    accepted: Annotated[bool, Doc("true if accepted with `--accept`")]
    blocks: Annotated[bool, Doc("true if needed, not accepted, and wrong or unknown")]


@dataclass(frozen=True)
class PreflightOutput:
    """What `preflight` prints."""

    profile: Annotated[str, Doc("profile name")]
    recipe: Annotated[str, Doc("recipe name")]
    release: Annotated[str | None, Doc("release of the profile")]
    nodes: Annotated[int, Doc("number of nodes")]
    devices: Annotated[int, Doc("total number of devices")]
    machine: Annotated[str, Doc("what was checked: this machine, or the folder of a recording")]
    live: Annotated[bool, Doc("true if it is this machine")]
    ready: Annotated[bool, Doc("true if nothing blocks; exit code 0")]
    findings: Annotated[
        list[PreflightFinding],
        Doc(
            "findings by area: recipe, devices, software, host, network, environment, storage, device memory, workspace"
        ),
    ]
    cleared: Annotated[Sequence[str], Doc("compile caches that were removed")]
    recorded: Annotated[Path | None, Doc("with `--record`: folder of the recording")]


def finding_rows(findings: Iterable[Finding]) -> list[PreflightFinding]:
    """Return the findings as printed."""
    return [PreflightFinding(*of_machine(f, "wrong"), f.accepted, f.blocks) for f in findings]


def preflight_output(
    case: Case, findings: Sequence[Finding], cleared: Sequence[str], recorded: Path | None
) -> PreflightOutput:
    """Return the case and the findings."""
    run, machine = case.run, case.machine
    ready = not any(f.blocks for f in findings)
    of_case = (run.profile, run.name, run.release, run.machines, run.all_devices, machine.place, machine.live)
    return PreflightOutput(*of_case, ready, finding_rows(findings), cleared, recorded)


def preflight_text(
    case: Case,
    findings: Sequence[Finding],
    cleared: Sequence[str],
    style: Style,
    *,
    verbose: bool,
    workspace: Path | None,
) -> Iterator[str]:
    """Yield whether the recipe can run here; then one line per finding by area, with what to do below it: what blocks, what else
    to look at, and with `verbose` what passed. `workspace` is the one that the command line named."""
    run = case.run
    nodes = message("{count} nodes", count=run.machines)
    head = message(
        "{recipe} on {nodes}, {devices}; {machine}",
        recipe=run.title,
        nodes=message("{count} node", count=1) if run.machines == 1 else nodes,
        devices=device_count(run.all_devices),
        machine=visible_line(case.machine.place),
    )
    yield style(translated(head), bold=True)
    yield _verdict(findings, style)
    yield from (translated(message("cleared {path}", path=visible_line(path))) for path in cleared)
    passed = [f for f in findings if f.level == "ok"]
    if passed and not verbose:
        yield translated(message("checks that passed: {count} (-v lists them)", count=len(passed)))
    if not any(f.blocks for f in findings):
        release = f" --release {run.release}" if run.release else ""
        accepted = dict.fromkeys(f.name for f in findings if f.accepted)
        more = "".join(f" --accept {shlex.quote(name)}" for name in accepted) + visible_line(run.repeated(NODES))
        trees = visible_line(f" --workspace {shlex.quote(str(workspace))}") if workspace else ""
        todo = f"patchctl train {run.profile} {run.name} --nodes {case.nodes}{release}{trees}{more}"
        yield translated(message("next: {command}", command=todo))
    blocking = [f for f in findings if f.blocks or f.name == RELEASE]
    others = [f for f in findings if f.level != "ok" and f not in blocking]
    for part in (blocking, others, passed if verbose else []):
        if part:
            yield ""
            yield from machine_text(part, AREAS, _WORDS, style, findings)


def _verdict(findings: Sequence[Finding], style: Style) -> str:
    blocking = list(dict.fromkeys(f.name for f in findings if f.blocks))
    others = sum(f.level not in ("ok", "note") and not f.blocks for f in findings)
    rest = translated(message("; {count} more to look at", count=others)) if others else ""
    if blocking:
        return style.bad(translated(message("not ready: {names}", names=joined(map(visible_line, blocking))))) + rest
    return style.good(translated(message("nothing is in the way"))) + rest


_SHOWN = 8
_LONGEST = 1000
_ORDER = ("wrong", "warning", "note")


@dataclass(frozen=True)
class NodeReadiness:
    """A node of the cluster."""

    node: Annotated[str, Doc("node name")]
    address: Annotated[str, Doc("node address")]
    state: Annotated[str, Doc("`ready`, `not ready`, `odd`, `dead`, `silent`, `broken` or `failed`")]
    why: Annotated[str | None, Doc("why the node has no findings; null otherwise")]
    findings: Annotated[list[PreflightFinding], Doc("findings, by area")]


@dataclass(frozen=True)
class ReadinessOutput:
    """What `cluster preflight` prints."""

    address: Annotated[str, Doc("cluster address, as given")]
    ray: Annotated[str, Doc("version of the Ray client")]
    profile: Annotated[str, Doc("profile name")]
    recipe: Annotated[str, Doc("recipe name")]
    ready: Annotated[
        bool, Doc("true if there are as many nodes as the recipe needs and every live node is ready; exit code 0")
    ]
    missing: Annotated[int, Doc("number of nodes lacking for the recipe")]
    nodes: Annotated[list[NodeReadiness], Doc("all nodes of the cluster, sorted by name")]
    odd: Annotated[tuple[Odd, ...], Doc("values that differ from those of most nodes")]


def readiness_output(found: Readiness, run: RecipeRun, address: str, ray: str) -> ReadinessOutput:
    """Return every node with its findings, and the differences."""
    findings = {n: finding_rows(found.findings.get(n.title, ())) for n in found.answers}
    nodes = [NodeReadiness(n.title, n.address, found.state(n), found.why(n), rows) for n, rows in findings.items()]
    return ReadinessOutput(address, ray, run.profile, run.name, found.ready, found.missing, nodes, found.odd)


def readiness_text(found: Readiness, run: RecipeRun, address: str, style: Style) -> Iterator[str]:
    """Yield the nodes, identical ones combined; then the differences; then each finding once, with its nodes."""
    total = len(found.answers)
    yield style(f"{run.title} on cluster {visible_line(address)}, {counted(total, 'node')}", bold=True)
    states: dict[str, list[str]] = {}
    for node in found.answers:
        why = found.why(node)
        states.setdefault(found.state(node) + (f": {one_line(why)}" if why else ""), []).append(node.title)
    for state, titles in states.items():
        text = f"  {state:<10} {_names(titles, total)}"
        yield text if state == "ready" else style.bad(text)
    if found.missing:
        yield style.bad(f"  {counted(found.missing, 'node')} too few")
    for odd in found.odd:
        mark = style.bad("odd    ") if odd.stops else style.note("note   ")
        yield f"{mark}  {_names(odd.nodes, total)}  {odd.trait}: {one_line(odd.said, _LONGEST)}"
    yield from _findings(found, total, style)
    good = sum(found.state(node) == "ready" for node in found.answers)
    verdict = f"{good} of {total} nodes are ready"
    yield style.good(verdict) if found.ready else style.bad(verdict)


def _findings(found: Readiness, total: int, style: Style) -> Iterator[str]:
    """Group by name and message, blocking findings first."""
    rows: dict[tuple[str, str, str, str | None], list[str]] = {}
    for title, findings in found.findings.items():
        for f in findings:
            if f.level != "ok" and not f.accepted:
                word = "wrong" if f.blocks else "note" if f.level == "note" else "warning"
                rows.setdefault((word, f.name, f.message, f.todo), []).append(title)
    for (word, name, what, todo), titles in sorted(rows.items(), key=lambda row: _ORDER.index(row[0][0])):
        mark = (style.bad if word == "wrong" else style.note)(f"{word:<7}")
        yield f"{mark}  {_names(titles, total)}  {visible_line(name)}: {one_line(what, _LONGEST)}"
        if todo and word == "wrong":
            yield f"         try: {visible_line(todo)}"


def _names(titles: Sequence[str], total: int) -> str:
    if len(titles) == total and total > 1:
        return "all nodes"
    return abridged([visible_line(title) for title in titles], _SHOWN)
