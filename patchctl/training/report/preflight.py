"""Text and JSON output of `preflight`. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.findings.render import MachineFinding, machine_text, of_machine
from patchctl.findings.report import Finding
from patchctl.terminal.text import visible_line
from patchctl.training.preflight.checks import AREAS

if TYPE_CHECKING:
    from patchctl.terminal.style import Style
    from patchctl.training.preflight.case import Case

_WORDS = {"ok": "ok", "note": "note", "warning": "warning", "error": "wrong", "unknown": "not known"}


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
    of_case = (run.profile, run.name, run.release, case.nodes, case.devices, machine.place, machine.live)
    return PreflightOutput(*of_case, ready, finding_rows(findings), cleared, recorded)


def preflight_text(case: Case, findings: Sequence[Finding], cleared: Sequence[str], style: Style) -> Iterator[str]:
    """Yield one line per finding by area, with what to do below it; then whether the recipe can run here."""
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
