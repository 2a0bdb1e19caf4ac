"""`patchctl` and `python -m patchctl`: the one place that knows the extension `training`, and adds it.

Whatever starts patchctl begins here: the command, the process that `cluster` starts on a node, and tests and scripts that
call the library. Nothing but the standard library is imported before it is known what is to be done: a node has no more.
"""

from __future__ import annotations

import gc
from typing import NoReturn

from patchctl.extension import bring

TRAINING = "patchctl.training.registration:EXTENSION"


def compose() -> None:
    """Add the extension `training`, and let installed extensions be found. Idempotent."""
    bring(TRAINING)


def main() -> NoReturn:
    """Run the command line and end the process with the right code."""
    # A run is short and makes no garbage that matters; collections cost a tenth of an apply of 35 patches, imports included.
    gc.disable()
    from patchctl.cli import main as main_of_cli

    compose()
    main_of_cli()


def run(args: list[str]) -> int:
    """Run one command line in this process and return its exit code."""
    from patchctl.cli import run as run_cli

    compose()
    return run_cli(args)


def node() -> None:
    """What `cluster` starts beside a Ray worker (cluster.task): the request on standard input, the answer on standard output."""
    from patchctl.cluster.node import main as main_of_node

    compose()
    main_of_node()


if __name__ == "__main__":
    main()
