"""What every verb prints with `--json` when its run ends with an error. Each error gives its own part (`as_json`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.errors import Tried
from patchctl.manifest.diagnostics import Problem


@dataclass(frozen=True)
class TriedFor:
    """One place where a source was looked for."""

    upstream: Annotated[str | None, Doc("for which upstream, where `apply` misses several", optional=True)]
    tried: Annotated[Tried, Spread()]


@dataclass(frozen=True)
class Error:
    """What went wrong."""

    kind: Annotated[
        str,
        Doc(
            "usage, manifest, patch, source-unavailable, source-mismatch, not-trusted, does-not-apply, local-edits, busy,"
            " broken-repository, machine, git-killed, git-refused, internal"
        ),
    ]
    exit_code: Annotated[int, Doc("the process's exit code")]
    what: Annotated[str, Doc("the message")]
    file: Annotated[str | None, Doc("where: a file")]
    line: Annotated[int | None, Doc("where: a line of it, from 1")]
    hint: Annotated[str | None, Doc("what to try")]
    tried: Annotated[
        list[TriedFor] | None, Doc("source-unavailable: every place and why it did not do", optional=True)
    ] = None
    files: Annotated[list[str] | None, Doc("local-edits: the files that stand in the way", optional=True)] = None
    problems: Annotated[
        list[Problem] | None,
        Doc("manifest: every fault, the first 50; `import`: every fault of every mail, the first 200", optional=True),
    ] = None


@dataclass(frozen=True)
class ErrorOutput:
    """The object."""

    error: Annotated[Error, Doc("what went wrong")]
