"""The entry point of `patchctl` and `python -m patchctl`, and the one place that registers the training extension.

Everything that runs patchctl starts here: the command, the process that `cluster` starts on a node, tests and
scripts. Imports only the standard library until it knows what to do, as nodes have nothing else.
"""

from __future__ import annotations

import gc
from typing import NoReturn

from patchctl.extension import bring

TRAINING = "patchctl.training.registration:EXTENSION"


def compose() -> None:
    """Register the training extension and let installed extensions be found. Idempotent."""
    bring(TRAINING)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    # A run is short and leaves little garbage: collections at Python's own pace cost a tenth of an apply of 35 patches, imports included. At
    # this one an apply has none, and `verify`, whose syntax trees refer to themselves, does not keep 400 MiB of them.
    gc.set_threshold(100_000, 20, 1000)
    from patchctl.cli import main as main_of_cli

    compose()
    main_of_cli()


def run(args: list[str]) -> int:
    """Run one command line in this process and return its exit code."""
    from patchctl.cli import run as run_cli

    compose()
    return run_cli(args)


def node() -> None:
    """Entry point of the process that `cluster` starts beside a Ray worker (cluster.task): JSON on stdin and stdout."""
    from patchctl.cluster.node import main as main_of_node

    compose()
    main_of_node()


if __name__ == "__main__":
    main()
