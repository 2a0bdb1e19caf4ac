"""What `lock` and `requirements` print, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.findings.report import Finding
from patchctl.manifest.requirement_types import Override, Platform
from patchctl.requirements.lockfile import Locked
from patchctl.requirements.relock import LockedSet

if TYPE_CHECKING:
    from patchctl.terminal.style import Style

_SHOWN = 12


@dataclass(frozen=True)
class LockRow:
    """One stack's lock. `lost` says that it could not be computed and that what the file says is for something else, or that there
    is none."""

    upstream: Annotated[str, Doc("its name")]
    stack: Annotated[str, Doc("the stack's name")]
    file: Annotated[str, Doc("the lock")]
    differences: Annotated[tuple[str, ...], Doc("what differed from the files that were there")]
    forms: Annotated[tuple[str, ...], Doc("the forms that were computed")]
    unavailable: Annotated[dict[str, list[tuple[str, str]]], Doc("by form: the places tried")]
    written: Annotated[
        bool,
        Doc(
            "the lock was written; not where nothing differed, with `--check`, and where no form could be had and the old record"
            " is for something else (exit code 3)"
        ),
    ]
    lost: bool


@dataclass(frozen=True)
class LockOutput:
    """What `lock` prints; with `--requirements` there are no pages."""

    check: Annotated[bool, Doc("`--check`: nothing was written")]
    stacks: Annotated[Sequence[LockRow], Doc("every stack that was looked at")]
    requirements: Annotated[Sequence[LockedSet], Doc("`--requirements`: every lock that was looked at")]
    written: Annotated[
        Sequence[str] | None,
        Doc("not with `--requirements`: pages, tables and schemas that were written", optional=True),
    ] = None
    removed: Annotated[
        Sequence[str] | None, Doc("not with `--requirements`: pages that were removed", optional=True)
    ] = None
    findings: Annotated[
        Sequence[Finding] | None,
        Doc("not with `--requirements`: as in verify; `--check`: each page that would differ", optional=True),
    ] = None


@dataclass(frozen=True)
class RequirementsOutput:
    """What `requirements` prints."""

    profile: Annotated[str, Doc("the profile that was named")]
    set: Annotated[str, Doc("the set of requirements that it names")]
    platform: Annotated[Platform, Doc("x86_64 or aarch64")]
    python: Annotated[str, Doc("the Python that the lock is for")]
    packages: Annotated[Sequence[Locked], Doc("everything that is installed, by name")]
    overrides: Annotated[Sequence[Override], Doc("what holds where the trees contradict each other")]


def relock_text(rows: Sequence[LockedSet], check: bool, style: Style) -> Iterator[str]:
    """A line a lock, and below it what differed."""
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
