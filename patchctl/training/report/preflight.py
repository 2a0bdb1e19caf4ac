"""What `preflight` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from patchctl.findings.render import machine_json, machine_text
from patchctl.findings.report import Finding
from patchctl.terminal.text import visible_line
from patchctl.training.preflight.checks import AREAS

if TYPE_CHECKING:
    from patchctl.terminal.style import Style
    from patchctl.training.preflight.case import Case

_WORDS = {"ok": "ok", "note": "note", "warning": "warning", "error": "wrong", "unknown": "not known"}


def finding_json(finding: Finding) -> dict[str, Any]:
    """Preflight (docs/json.md)."""
    row = machine_json(finding, {"error": "wrong"})
    return {**row, "accepted": finding.accepted, "blocks": finding.blocks}


def preflight_json(
    case: Case, findings: Sequence[Finding], cleared: Sequence[str], recorded: str | None
) -> dict[str, Any]:
    """The shape patchctl.preflight/1 (docs/json.md)."""
    return {
        "profile": case.run.profile,
        "recipe": case.run.name,
        "release": case.run.release,
        "nodes": case.nodes,
        "devices": case.devices,
        "machine": case.machine.place,
        "live": case.machine.live,
        "ready": not any(f.blocks for f in findings),
        "findings": [finding_json(f) for f in findings],
        "cleared": list(cleared),
        "recorded": recorded,
    }


def preflight_text(case: Case, findings: Sequence[Finding], cleared: Sequence[str], style: Style) -> Iterator[str]:
    """By area one line a finding, and below it what to do; then whether the recipe can run here."""
    yield style(
        f"{case.run.title} on {case.nodes} nodes, {case.devices} devices; {visible_line(case.machine.place)}", bold=True
    )
    yield from machine_text(findings, AREAS, _WORDS, style)
    yield from (f"cleared {visible_line(path)}" for path in cleared)
    yield _verdict(findings, style)


def _verdict(findings: Sequence[Finding], style: Style) -> str:
    blocking = list(dict.fromkeys(f.name for f in findings if f.blocks))
    others = sum(f.level not in ("ok", "note") and not f.blocks for f in findings)
    rest = f"; {others} more to look at" if others else ""
    if blocking:
        return style.bad(f"not ready: {', '.join(map(visible_line, blocking))}") + rest
    return style.good("nothing is in the way") + rest
