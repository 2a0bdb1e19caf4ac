"""What `doctor` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.findings.render import machine_json, machine_text

if TYPE_CHECKING:
    from patchctl.findings.report import Finding
    from patchctl.terminal.style import Style

_AREAS = {
    "machine": "machine",
    "sources": "sources",
    "tests": "behaviour tests (optional)",
    "runtime": "training (for information)",
}
_WORDS = {"ok": "ok", "warning": "warning", "error": "missing"}


def doctor_json(findings: Sequence[Finding], profile: str | None) -> dict[str, Any]:
    """The shape patchctl.doctor/1 (docs/json.md)."""
    rows = [{**machine_json(f, _WORDS), "tried": [asdict(t) for t in f.tried], "blocks": f.blocks} for f in findings]
    return {"profile": profile, "healthy": not any(f.blocks for f in findings), "findings": rows}


def doctor_text(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    """One line a finding, with what to do below it; at the end, whether patchctl can work here."""
    yield from machine_text(findings, _AREAS, _WORDS, style)
    lacking = ", ".join(f.name for f in findings if f.blocks)
    yield style.bad(f"lacking: {lacking}") if lacking else style.good("nothing that patchctl needs is missing")
