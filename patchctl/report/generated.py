"""Text and JSON output of `lock` and `requirements`. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.findings import Finding
from patchctl.manifest.requirement_types import Override, Platform
from patchctl.requirements.lockfile import Locked
from patchctl.requirements.relock import LockedSet
from patchctl.stack.locking import LockRow

if TYPE_CHECKING:
    from patchctl.terminal.text import Style

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


def relock_text(rows: Sequence[LockedSet], check: bool, style: Style) -> Iterator[str]:
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
