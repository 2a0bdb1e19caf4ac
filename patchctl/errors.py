"""Every way that a run can fail, each with its exit code, and the common shape of error messages.

The exit codes are a contract with CI jobs. `EXIT_CODES` says what each means, when a command ends with it, and what to do: `--help` and
docs/exit-codes.md are made from it, and a test compares it with the classes and constants.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
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


class ExitCode(NamedTuple):
    """A code. `remedy` and `cases` are Markdown of a page in docs/; `cases` says by command when it ends so, "" for any command."""

    code: int
    meaning: str
    remedy: str = ""
    cases: Mapping[str, str] = {}


EXIT_CODES = (
    ExitCode(DONE, "done"),
    ExitCode(
        FINDINGS,
        "findings",
        "read them: each names its place",
        {
            "verify, doctor, preflight": "something is wrong",
            "status": "something is wrong, or no tree is there",
            "lock": "with `--pages`, a patch cannot be read, so that pages stay as they were; with `--check`, something would be written",
            "prove": "a patch is not proven",
            "identify": "no pin matches exactly",
            "blame": "the line cannot be attributed",
            "bisect": "there is nothing to find",
            "drift": "the workspace differs; with `--baseline`, something newly broke",
            "outdated": "an upstream has something newer than its pin",
            "cluster": "a node differs, is dead or does not answer",
        },
    ),
    ExitCode(
        2,
        "wrong use, manifest or patch file",
        "the message names file and line, or the folder and its owner",
        {
            "": "an unknown option, name or key; a manifest, lock, state or patch file that cannot be used (CRLF, no author, no date, no hunk); a"
            " workspace or cache that may not be read or written, or that is on a file system without locks",
            "import": "the mails have faults, all of which are listed; nothing is written",
            "new": "the name is invalid or taken; nothing is written",
        },
    ),
    ExitCode(
        3,
        "source unavailable or not what was pinned",
        "every place that was tried is listed; `--mirror NAME=URL`, `--skip-unavailable`, `fetch --refresh`",
        {
            "": "a source, or a file in the cache, is missing or changed; a bundle lacks a signature that you require",
            "apply, fetch": "no source at all could be had, even with `--skip-unavailable`",
            "lock": "a stack that has changed could be computed from no source, and was not written",
            "cluster": "no cluster is at the address",
        },
    ),
    ExitCode(
        4,
        "a patch does not apply",
        "the message names the hunk and what stands there instead",
        {
            "": "another preimage, a shifted hunk, repeated context",
            "import": "the mails are sound, but fit no stack",
            "rebase, bump": "a patch needs you, or files still have conflicts or their markers",
        },
    ),
    ExitCode(
        5,
        "local edits in the way",
        "commit them elsewhere, or `--stash`; finish a merge or rebase first"
        " ([what is kept](isolation.md#what-is-kept-and-what-is-refused)); wait for the other git; [`patchctl repair`](repair.md)",
        {
            "": "edits, or anything else of yours, in a workspace, an `--in-place` checkout or a work tree of `edit`; git's own lock is held; a"
            " tree's repository is unusable or damaged",
            "import": "files that no manifest lists are where the patches belong",
            "new": "the work tree has work that was not exported",
            "rebase": "edits, branches or commits of yours would be lost",
            "report": "the file to write is not a page of patchctl's",
        },
    ),
    ExitCode(
        6,
        "workspace busy",
        "wait: the lock of a process that died is released",
        {
            "": "another run holds the workspace",
            "export, import, new, rebase": "another of them is writing patches of the distribution",
        },
    ),
    ExitCode(
        7,
        "the machine failed, not the command (disk full, I/O error, git killed, no memory)",
        "run the same command again, with more room where the message asks for it: nothing is lost",
    ),
    ExitCode(
        MOVES_CLEANLY,
        "patches are stale, and all is proven on the newer revision",
        "make the newer stack the one that profiles use, and drop what upstream has",
        {
            "drift": "each stale patch is proven on the release, is left out there with a reason, or is in upstream",
            "rebase": "it is complete, and what was stale is proven on the new stack",
        },
    ),
    ExitCode(
        SOMEBODY_HAS_TO_WORK,
        "patches need a maintainer",
        "`patchctl drift` names hunks, commits and names ([drift](drift.md)); `patchctl prove --all --stack NEW`",
        {
            "drift": "a patch is lost, is not proven where it arrives, could not be examined, or calls what another upstream changed",
            "rebase": "it is complete, but a changed patch lacks a proof, or a requirement was dropped",
            "bump": "it is complete, and someone has to look: a patch lacks a proof, or was left out",
        },
    ),
    ExitCode(70, "a fault of patchctl", "please report it with the traceback"),
    ExitCode(
        ENDED_BY + signal.SIGHUP,
        "ended by SIGHUP",
        "as 130",
    ),
    ExitCode(
        INTERRUPTED,
        "interrupted",
        "run it again: the next run finishes an interrupted `apply` or `revert`. A run that was started with interrupts ignored"
        " (`patchctl ... &` in a script) goes on",
    ),
    ExitCode(CLOSED_PIPE, "the reader of the output is gone"),
    ExitCode(ENDED_BY + signal.SIGTERM, "ended by SIGTERM, as when a CI job is cancelled", "as 130"),
)

_OF_FEW = {MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK, ENDED_BY + signal.SIGHUP, CLOSED_PIPE, ENDED_BY + signal.SIGTERM}
SUMMARY = ", ".join(f"{one.code} {one.meaning}" for one in EXIT_CODES if one.code not in _OF_FEW)
"""The codes that any command may end with, for `--help`."""
