"""What `doctor` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.doctor import Finding
    from patchctl.terminal.style import Style

_AREAS = {
    "machine": "machine",
    "sources": "sources",
    "tests": "behaviour tests (optional)",
    "runtime": "training (for information)",
}


def doctor_json(findings: Sequence[Finding], profile: str | None) -> dict[str, Any]:
    """The shape patchctl.doctor/1 (docs/json.md)."""
    rows = [{**asdict(f), "blocks": f.blocks} for f in findings]
    return {"profile": profile, "healthy": not any(f.blocks for f in findings), "findings": rows}


def doctor_text(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    """One line a finding, with what to do below it; at the end, whether patchctl can work here."""
    words = {"ok": style.good("ok     "), "warning": style.note("warning"), "missing": style.bad("missing")}
    width = max(len(f.name) for f in findings)
    for area, title in _AREAS.items():
        rows = [f for f in findings if f.area == area]
        if rows:
            yield style(title, bold=True)
        for row in rows:
            word = words[row.level] if row.needed or row.level != "missing" else style.note("missing")
            yield f"  {word}  {row.name:<{width}}  {visible_line(row.what)}"
            if row.level == "ok":
                continue
            yield from (f"           {'':<{width}}  tried {visible_line(f'{t.place}: {t.reason}')}" for t in row.tried)
            if row.todo:
                yield f"           {'':<{width}}  try: {visible_line(row.todo)}"
    lacking = [f.name for f in findings if f.blocks]
    yield (
        style.bad("lacking: " + ", ".join(lacking)) if lacking else style.good("nothing that patchctl needs is missing")
    )
