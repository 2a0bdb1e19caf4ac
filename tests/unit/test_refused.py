"""What the machine refuses is told from what is our fault."""

from __future__ import annotations

import errno

import pytest

from patchctl.errors import GitKilled
from patchctl.git.run import GitFailed, GitRefused, git_failure
from patchctl.os_errors import user_error_or_none


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE])
def test_the_disk_and_the_limits_are_no_fault(code: int) -> None:
    for error in (OSError(code, "words"), OSError(code, "words", "/some/file")):
        said = user_error_or_none(error)
        assert said is not None and said.code == (2 if code == errno.EROFS else 7) and "words" in said.what
        assert str(said.where or "") == (error.filename or "")
        assert ("another place" in (said.hint or "")) == (code == errno.EROFS)


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "x"), OSError("no number"), OSError(errno.EPERM, "x")]
)
def test_all_else_stays_a_fault(error: OSError) -> None:
    assert user_error_or_none(error) is None


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (-9, "", GitKilled),
        (128, "fatal: sha1 file 'x' write error. Out of diskspace", GitRefused),
        (128, "fatal: Unable to create 'x.lock': Read-only file system", GitRefused),
        (128, "fatal: cannot lock ref 'refs/x': unable to create directory for /y/refs/x", GitRefused),
        (128, "fatal: unable to write new index file", GitRefused),
        (128, "fatal: couldn't set 'refs/patchctl/base'", GitRefused),
        (128, "error: index-pack died of signal 9\nfatal: index-pack failed", GitRefused),
        (128, "fatal: Unable to create 'index.lock': File exists.", GitFailed),
        (128, "fatal: Unable to create 'index.lock': Permission denied", GitFailed),
        (128, "remote: fatal: write error: No space left on device\nfatal: early EOF", GitFailed),
        (1, "", GitFailed),
    ],
)
def test_why_a_git_ended(status: int, said: str, kind: type[Exception]) -> None:
    assert type(git_failure(["some", "command"], status, said)) is kind
