"""Text and JSON output of `doctor`, `install`, `lock` and `requirements`. Computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.doctor.runtime import package_findings
from patchctl.errors import Tried
from patchctl.findings import Finding, MachineFinding, Report, looked_at, machine_text, of_machine
from patchctl.install.install import Installation, InstallOptions
from patchctl.language import joined, message, translated
from patchctl.manifest.requirement_types import Override, Platform
from patchctl.requirements.interpreter import summary
from patchctl.requirements.lockfile import Locked
from patchctl.requirements.relock import LockedSet
from patchctl.stack.locking import LockRow
from patchctl.terminal.text import Style, visible_line

_AREAS = {
    "machine": message("machine"),
    "sources": message("sources"),
    "tests": message("behaviour tests (optional)"),
    "runtime": message("training (for information)"),
}
_WORDS = {"ok": message("ok"), "warning": message("warning"), "error": message("missing")}


@dataclass(frozen=True)
class Symptom(MachineFinding):
    """One check by `doctor`."""

    tried: Annotated[tuple[Tried, ...], Doc("sources tried without success")]
    blocks: Annotated[bool, Doc("true if the item is needed and missing")]


@dataclass(frozen=True)
class DoctorOutput:
    """What `doctor` prints."""

    profile: Annotated[str | None, Doc("value of `--profile`")]
    healthy: Annotated[bool, Doc("true if nothing that patchctl needs is missing; exit code 0")]
    findings: Annotated[list[Symptom], Doc("findings by area: machine, sources, tests, runtime")]


def doctor_output(findings: Sequence[Finding], profile: str | None) -> DoctorOutput:
    """Return all findings."""
    rows = [Symptom(*of_machine(f, "missing"), f.tried, f.blocks) for f in findings]
    return DoctorOutput(profile, not any(f.blocks for f in findings), rows)


def doctor_text(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    """Yield one line per finding, with what to do below it; finally, whether patchctl can work here."""
    yield from machine_text(findings, _AREAS, _WORDS, style)
    if lacking := joined(f.name for f in findings if f.blocks):
        yield style.bad(translated(message("lacking: {names}", names=lacking)))
    else:
        yield style.good(translated(message("nothing that patchctl needs is missing")))


@dataclass(frozen=True)
class InstallOutput:
    """What `install` prints."""

    workspace: Annotated[Path, Doc("workspace path")]
    options: Annotated[InstallOptions, Spread()]
    found: Annotated[Installation, Spread()]


def install_report(found: Installation, options: InstallOptions) -> Report:
    """Return the same as findings: what was installed, what was not, and how the environment differs from the lock."""
    rows = [looked_at("install", t.distribution, "ok", f"{t.version} of {t.tip_commit}") for t in found.trees]
    rows += [looked_at("install", name, "note", f"not installed: {why}") for name, why in found.passed_by.items()]
    if found.packages is not None and found.profile is not None:
        rows += package_findings(found.packages, options.python, found.profile)
    return Report(rows)


def install_text(found: Installation, options: InstallOptions, style: Style) -> Iterator[str]:
    """Yield one line per package with its location; then what was not installed, and how to undo the install."""
    word = "would install" if options.dry_run else "installed"
    for tree in found.trees:
        how = "editable" if options.editable else "copied"
        replaced = f", in place of {visible_line(tree.replaced)}" if tree.replaced else ""
        yield f"{tree.distribution:<14} {tree.version:<14} {style.good(word)}, {how}, {tree.tip_commit[:12]}{replaced}"
        if not options.dry_run:
            yield from (f"    {package.describe(style)}" for package in tree.imports)
    yield from (f"{n:<14} {style.note('not installed')}: {visible_line(why)}" for n, why in found.passed_by.items())
    names = " ".join(tree.distribution for tree in found.trees)
    if not options.dry_run:
        yield f"`{shlex.quote(options.python)} -m pip uninstall {names}` takes them away again"
    if found.packages is None or found.profile is None:
        return
    of = f"of {found.profile.name}"
    if found.packages:
        yield f"packages       {style.note('not as in the lock')} {of}: {visible_line(summary(found.packages))}"
        yield f"    `patchctl requirements {found.profile.options}` prints what pip installs"
    else:
        yield f"packages       {style.good('as in the lock')} {of}"


_SHOWN = 12


@dataclass(frozen=True)
class LockOutput:
    """What `lock` prints. With `--requirements`, no pages are written."""

    check: Annotated[bool, Doc("true with `--check`: nothing was written")]
    stacks: Annotated[Sequence[LockRow], Doc("stacks that were checked")]
    requirements: Annotated[Sequence[LockedSet], Doc("with `--requirements`: requirement locks that were checked")]
    written: Annotated[
        Sequence[str] | None, Doc("without `--requirements`: pages, tables and schemas written", optional=True)
    ] = None
    removed: Annotated[Sequence[str] | None, Doc("without `--requirements`: pages removed", optional=True)] = None
    findings: Annotated[
        Sequence[Finding] | None,
        Doc(
            "without `--requirements`: findings, as in `verify`; with `--check`, one for each page that would change",
            optional=True,
        ),
    ] = None


@dataclass(frozen=True)
class RequirementsOutput:
    """What `requirements` prints."""

    profile: Annotated[str, Doc("requested profile")]
    set: Annotated[str, Doc("requirement set of the profile")]
    platform: Annotated[Platform, Doc("`x86_64` or `aarch64`")]
    python: Annotated[str, Doc("Python version that the lock is for")]
    packages: Annotated[Sequence[Locked], Doc("installed packages, sorted by name")]
    overrides: Annotated[Sequence[Override], Doc("requirements that resolve conflicts between the trees")]


def relock_text(rows: Sequence[LockedSet], style: Style) -> Iterator[str]:
    """Yield one line per lock, followed by its differences."""
    for row in rows:
        word = "written" if row.written else style.bad("differs")
        word = word if row.differences else style.good("in step")
        elsewhere = f", {row.elsewhere} of them without digests" if row.elsewhere else ""
        yield f"{row.name:<12} {row.platform:<8} {word}  {row.packages} packages{elsewhere}"
        yield from (f"    {line}" for line in row.differences[:_SHOWN])
        if len(row.differences) > _SHOWN:
            yield f"    and {len(row.differences) - _SHOWN} more"
    if not rows:
        yield "no profile names a set of requirements"
