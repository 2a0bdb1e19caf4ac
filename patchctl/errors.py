"""Every way that a run can fail, each with its exit code, and the common shape of error messages.

The exit codes are a contract with CI jobs; docs/exit-codes.md lists them for users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from patchctl.doc import Doc
from patchctl.language import message

DONE = 0
FINDINGS = 1
MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK = 10, 20  # for drift, and for a finished rebase
INTERRUPTED = 130
ENDED_BY = 128  # plus the signal's number, as in shells
CLOSED_PIPE = 141


class Ended(BaseException):
    """The run received SIGTERM or SIGHUP. It cleans up as on an interrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = ENDED_BY + number


class Where(NamedTuple):
    """A place that a person can open: a file and, if known, a 1-based line."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class PatchctlError(Exception):
    """What happened, where, and what to try. `code` is the exit code."""

    code = 70
    kind = "internal"

    def __init__(self, what: str, *, where: Where | str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = Where(where) if isinstance(where, str) else where
        self.hint = hint

    def __str__(self) -> str:
        return self.text()

    def text(self, shown: Callable[[str], str] = str) -> str:
        """Return what happened and where, with `shown` of each text in it: its translation, for people."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{shown(self.what)}"

    def as_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "exit_code": self.code,
            "what": self.what,
            "file": self.where.file if self.where else None,
            "line": self.where.line if self.where else None,
            "hint": self.hint,
        }


class WrongUse(PatchctlError):
    """The command line asks for something that does not exist or does not fit."""

    code = 2
    kind = "usage"


class BadManifest(PatchctlError):
    """A manifest, lock or state file is invalid."""

    code = 2
    kind = "manifest"


class BadPatch(PatchctlError):
    """A patch file that we reject: CRLF, no author, no date, no hunk, a path outside the tree, ..."""

    code = 2
    kind = "patch"


@dataclass(frozen=True)
class Tried:
    """A source that was tried, and why it was not available there. Never contains credentials."""

    place: Annotated[str, Doc("address, folder, or the cache")]
    reason: Annotated[str, Doc("why the source was not available there")]


class SourceUnavailable(PatchctlError):
    """No place tried has the source. `tried` lists them all."""

    code = 3
    kind = "source-unavailable"

    def __init__(self, what: str, tried: list[Tried], *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.tried = tried

    def text(self, shown: Callable[[str], str] = str) -> str:
        tried = (message("tried {place}: {reason}", place=t.place, reason=t.reason) for t in self.tried)
        return "\n".join([shown(self.what), *(f"  {shown(t)}" for t in tried)])

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "tried": [{"place": t.place, "reason": t.reason} for t in self.tried]}


class SourceMismatch(PatchctlError):
    """A source, or a file in the cache, is not what was pinned."""

    code = 3
    kind = "source-mismatch"


class NotTrusted(PatchctlError):
    """A bundle lacks a signature that the user trusts, and the user requires one."""

    code = 3
    kind = "not-trusted"


class DoesNotApply(PatchctlError):
    """A patch does not fit the tree exactly: another preimage, a shifted hunk, missing context."""

    code = 4
    kind = "does-not-apply"


class LocalEdits(PatchctlError):
    """Local edits are in the way. `files` lists them."""

    code = 5
    kind = "local-edits"

    def __init__(self, what: str, files: list[str], *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.files = files

    def text(self, shown: Callable[[str], str] = str) -> str:
        files = [*self.files[:20]]
        if len(self.files) > 20:
            files.append(message("... and {count} more", count=len(self.files) - 20))
        return "\n".join([shown(self.what), *(f"  {shown(file)}" for file in files)])

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "files": self.files}


class BrokenRepository(PatchctlError):
    """A tree's repository, which the user shares with us, is unusable or has a damaged object."""

    code = 5
    kind = "broken-repository"

    def __init__(self, what: str, *, where: Where | str | None = None, hint: str | None = None) -> None:
        way_out = message("`patchctl repair` reports what is wrong, backs up every file and restores a clean base")
        super().__init__(what, where=where, hint=hint or way_out)


class MachineFailed(PatchctlError):
    """A disk, a limit or a killed program: the request may be right, and the same run may succeed later."""

    code = 7
    kind = "machine"


class GitKilled(MachineFailed):
    """A git process of ours was killed by a signal, so its result is unknown."""

    kind = "git-killed"

    def __init__(self, command: str, number: int) -> None:
        hint = message("run the same command again; `dmesg` tells whether the kernel ran out of memory")
        what = message("git was killed (signal {number}) in `git {command}`", number=number, command=command)
        super().__init__(what, hint=hint)


class WorkspaceBusy(PatchctlError):
    """Another run holds the workspace, or is writing patches of the distribution."""

    code = 6
    kind = "busy"
