"""The `--json` output of any verb whose run ends with an error. Each error adds its own part (`as_json`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.errors import Tried
from patchctl.manifest.diagnostics import Problem


@dataclass(frozen=True)
class TriedFor:
    """A source that was tried."""

    upstream: Annotated[str | None, Doc("upstream name, if `apply` lacks several", optional=True)]
    tried: Annotated[Tried, Spread()]


@dataclass(frozen=True)
class Error:
    """The error that ended the run."""

    kind: Annotated[
        str,
        Doc(
            "`usage`, `manifest`, `patch`, `source-unavailable`, `source-mismatch`, `not-trusted`, `does-not-apply`,"
            " `local-edits`, `busy`, `broken-repository`, `machine`, `git-killed`, `git-refused` or `internal`"
        ),
    ]
    exit_code: Annotated[int, Doc("exit code of the process")]
    what: Annotated[str, Doc("error message")]
    file: Annotated[str | None, Doc("file in which the error occurred")]
    line: Annotated[int | None, Doc("line number in the file, from 1")]
    hint: Annotated[str | None, Doc("suggested action")]
    tried: Annotated[
        list[TriedFor] | None,
        Doc("`source-unavailable`: sources tried, with the reason for each failure", optional=True),
    ] = None
    files: Annotated[list[str] | None, Doc("`local-edits`: files that block the operation", optional=True)] = None
    problems: Annotated[
        list[Problem] | None,
        Doc("`manifest`: the first 50 problems; for `import`, the first 200 problems of all mails", optional=True),
    ] = None


@dataclass(frozen=True)
class ErrorOutput:
    """The printed object."""

    error: Annotated[Error, Doc("details of the error")]
