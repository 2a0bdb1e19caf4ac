"""mbridge from a git repository, at the commit that a recipe's limits name: no release of it is that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "PATCHCTL_MBRIDGE"  # a git directory; make's MBRIDGE


def commit_named(limits: Iterable[str]) -> str | None:
    """The commit that a recipe's limits say to install; None where they name none."""
    found = re.findall(r"ISEEKYAN/mbridge@([0-9a-f]{40})", " ".join(limits))
    return found[0] if found else None


def check_out(commit: str, folder: Path) -> None:
    """Puts the package, and nothing else of the repository, into folder; raises LookupError where PATCHCTL_MBRIDGE names no
    repository that has the commit."""
    git = [
        "git",
        f"--git-dir={os.environ.get(VARIABLE)}",
        f"--work-tree={folder}",
        "checkout",
        "-q",
        commit,
        "--",
        "mbridge",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(git, env=os.environ | {"GIT_INDEX_FILE": str(folder / "index")}, capture_output=True).returncode:
        shutil.rmtree(folder)  # the next run must not take it for the package
        raise LookupError(f"{VARIABLE} names no git repository of mbridge with commit {commit[:12]}")
