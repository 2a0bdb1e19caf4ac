"""Those who write patches and their lists take turns: export, import and new. What one has read, no other changes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchctl.errors import WorkspaceBusy


@contextmanager
def one_writer(root: Path) -> Iterator[None]:
    """Hold the distribution for the block. Raises WorkspaceBusy when another run holds it.

    The lock is the kernel's, on the folder manifests/ itself: it goes with the process, and leaves nothing behind. Where the
    file system has no locks of folders there are no turns.
    """
    handle = os.open(root / "manifests", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait for it to end; a lock of a dead process frees itself"
            raise WorkspaceBusy(
                "another run writes patches of this distribution", where=str(root), hint=hint
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
