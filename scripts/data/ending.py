"""How these scripts end: a result, or one message that says what, where and what to try. Exit codes are patchctl's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

# The scripts run in the training environment, where patchctl need not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
sys.path += map(
    str, Path(__file__).resolve().parents[4:5]
)  # of a wheel: where patchctl/_distribution/scripts is installed

from patchctl.errors import CLOSED_PIPE, INTERRUPTED, PatchctlError, WrongUse
from patchctl.terminal.text import visible

__all__ = ["Full", "WrongUse", "finish", "gigabytes"]


class Full(WrongUse):
    """A disk has less room than what is to be written needs."""


def finish(main: Callable[[], int]) -> int:
    """Runs a script's `main` and returns its exit code; an error is shown as one message without a traceback."""
    program = Path(sys.argv[0]).name
    try:
        code = main()
        sys.stdout.flush()
        return code
    except PatchctlError as error:
        print(f"{program}: {visible(str(error))}", file=sys.stderr)
        if error.hint:
            print(f"  try: {visible(error.hint)}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        print(f"{program}: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return WrongUse.code


def gigabytes(size: int) -> str:
    """Bytes as people compare them with a disk: 440 GB are 440 * 10^9 bytes."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
