"""What `preflight` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import visible_line
from patchctl.training.preflight import Finding
from patchctl.training.preflight.checks import AREAS

if TYPE_CHECKING:
    from patchctl.terminal.style import Style
    from patchctl.training.preflight.case import Case

_WORDS = {"ok": "ok", "warning": "warning", "wrong": "wrong", "unknown": "not known"}
_WIDTH = max(map(len, _WORDS.values()))
_LONGEST_NAME = 22


def preflight_json(
    case: Case, findings: Sequence[Finding], cleared: Sequence[str], recorded: str | None
) -> dict[str, Any]:
    """The shape patchctl.preflight/1 (docs/json.md)."""
    rows = [
        {k: visible_line(v) if isinstance(v, str) else v for k, v in asdict(f).items()} | {"blocks": f.blocks}
        for f in findings
    ]
    return {
        "profile": case.run.profile,
        "recipe": case.run.name,
        "nodes": case.nodes,
        "devices": case.devices,
        "machine": case.machine.place,
        "live": case.machine.live,
        "ready": not any(f.blocks for f in findings),
        "findings": rows,
        "cleared": list(cleared),
        "recorded": recorded,
    }


def preflight_text(case: Case, findings: Sequence[Finding], cleared: Sequence[str], style: Style) -> Iterator[str]:
    """By area one line a finding, and below it what to do; then whether the recipe can run here."""
    yield style(
        f"{case.run.title} on {case.nodes} nodes, {case.devices} devices; {visible_line(case.machine.place)}", bold=True
    )
    width = min(_LONGEST_NAME, max(len(f.name) for f in findings))
    for area, title in AREAS.items():
        rows = [f for f in findings if f.area == area]
        if rows:
            yield style(title, bold=True)
        for row in rows:
            yield f"  {_word(row, style)}  {visible_line(row.name):<{width}}  {visible_line(row.what)}"
            if row.todo and row.level != "ok":
                yield f"  {'':{_WIDTH}}  {'':<{width}}  try: {visible_line(row.todo)}"
    yield from (f"cleared {visible_line(path)}" for path in cleared)
    yield _verdict(findings, style)


def _word(finding: Finding, style: Style) -> str:
    """The level in its colour; red for what stops a run."""
    word = f"{_WORDS[finding.level]:<{_WIDTH}}"
    if finding.blocks:
        return style.bad(word)
    return style.good(word) if finding.level == "ok" else style.note(word)


def _verdict(findings: Sequence[Finding], style: Style) -> str:
    blocking = list(dict.fromkeys(f.name for f in findings if f.blocks))
    others = sum(f.level != "ok" and not f.blocks for f in findings)
    rest = f"; {others} more to look at" if others else ""
    if blocking:
        return style.bad(f"not ready: {', '.join(map(visible_line, blocking))}") + rest
    return style.good("nothing is in the way") + rest
