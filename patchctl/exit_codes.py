"""The exit codes: what each means, when a command ends with it, and what to do.

`--help` and docs/exit-codes.md are made from this table. Classes of errors have the numbers as `code`, patchctl.errors has
the others as constants; a test compares both with the table.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from patchctl.errors import CLOSED_PIPE, DONE, ENDED_BY, FINDINGS, INTERRUPTED, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK


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
            "lock": "a patch cannot be read, so that pages stay as they were; with `--check`, something would be written",
            "prove": "a patch is not proven",
            "identify": "no pin matches exactly",
            "blame": "the line cannot be attributed",
            "bisect": "there is nothing to find",
            "drift": "the workspace differs; with `--baseline`, something newly broke",
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
            "rebase": "a patch needs you, or files still have conflicts or their markers",
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
