"""verl's published Ascend scripts, by Hydra, by verl's own checks and by ours: the table of docs/published-scripts.md is what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import REPO, Upstream, torch_python
from trees import MIRRORS

pytestmark = pytest.mark.stack("verl", ">=0.9")

PAGE = REPO / "docs" / "published-scripts.md"


def mirror() -> Path:
    """verl's repository, which has the scripts; a source distribution has none."""
    folder = Path(os.environ.get(MIRRORS, ""))
    found = [path for path in (folder / "verl", folder / "verl.git") if os.environ.get(MIRRORS) and path.is_dir()]
    if not found:
        pytest.skip(f"{MIRRORS} names no folder with a repository of verl, which has examples/")
    return found[0]


def test_the_table_is_what_hydra_verl_and_our_checks_say(upstream: Upstream) -> None:
    if upstream.stack("verl").pin.tag is None:
        pytest.skip("the trees' verl is a source distribution, whose examples no repository has")
    of_scripts = ("--mirror", mirror(), "--tree", upstream.tree("verl"), "--python", torch_python())
    command = [sys.executable, REPO / "scripts" / "published_scripts.py", *of_scripts, "--check", PAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
