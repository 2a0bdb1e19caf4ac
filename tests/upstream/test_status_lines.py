"""`Upstream-Status: Backport URL` against the commit that it names: it is there, and changes a file that the patch changes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from distribution import REPO

from patchctl.manifest.distribution import Distribution
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches

_NAMED = re.compile(r"Backport https://github\.com/\S+/(?:commit/([0-9a-f]{40})|pull/([0-9]+))")


def status(patch: StackPatch) -> str:
    (line,) = patch.header.trailers["Upstream-Status"]
    return line.value


DIST = Distribution.load(REPO)
PATCHES = [(stack.upstream, patch) for stack in DIST.stacks.values() for patch in load_patches(DIST, stack)]
BACKPORTS = [one for one in PATCHES if status(one[1]).startswith("Backport")]


def git(mirror: Path, *args: str) -> list[str]:
    return subprocess.run(["git", "-C", mirror, *args], check=True, capture_output=True, text=True).stdout.split("\n")


@pytest.mark.parametrize(("upstream", "patch"), BACKPORTS, ids=[f"{u}-{p.feature}" for u, p in BACKPORTS])
def test_a_backport_names_a_commit_that_changes_a_file_of_the_patch(upstream: str, patch: StackPatch) -> None:
    mirror = Path(os.environ.get("PATCHCTL_MIRRORS", "/nowhere"), upstream)
    if not mirror.is_dir():
        pytest.skip(f"PATCHCTL_MIRRORS names no folder with a mirror of {upstream}")
    named = _NAMED.match(status(patch))
    assert named is not None
    commits = (
        [named[1]]
        if named[1]
        else git(mirror, "log", "--all", "--format=%H", "--fixed-strings", f"--grep=(#{named[2]})")
    )
    commits = [one for one in commits if one]
    assert commits, "no commit of the mirror is of that pull request"
    changed = {file for one in commits for file in git(mirror, "show", "--format=", "--name-only", one) if file}
    assert changed & {os.fsdecode(path) for path in patch.paths}, sorted(changed)
