"""A lock for commands that write patches and their lists: export, import, new."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchctl.errors import WorkspaceBusy


@contextmanager
def exclusive_writer(root: Path) -> Iterator[None]:
    """Hold the distribution's lock for the block. Raises WorkspaceBusy if another run holds it.

    The lock is flock on the folder manifests/: it ends with the process and leaves no file. File systems that cannot
    lock folders have no lock.
    """
    handle = os.open(root / "manifests", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait for it to finish; the lock of a dead process is released"
            raise WorkspaceBusy(
                "another run is writing patches of this distribution", where=str(root), hint=hint
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
