"""git's three-way merge of one file, on bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from patchctl.git.run import GitFailed, run_git, scratch_folder

# `git merge-file` exits with the number of conflicts, at most 127, or with 255 on errors.
_MOST_CONFLICTS = 127
_BINARY = "Cannot merge binary files"


def merge_file(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Apply the change from `base` to `theirs` to `ours`, as `git merge-file` does. None if that fails to merge."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        names = [os.path.join(folder, name) for name in ("ours", "base", "theirs")]
        for name, data in zip(names, (ours, base, theirs), strict=True):
            Path(name).write_bytes(data)
        try:
            return run_git(["merge-file", "-p", "-q", *names])
        except GitFailed as failure:
            if failure.status <= _MOST_CONFLICTS or _BINARY in failure.stderr:
                return None
            raise
