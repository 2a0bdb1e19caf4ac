"""The changes that CONTRIBUTING.md walks through: its diffs fit, and its commands end well, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import REPO

SECTION = re.compile(r"^## Your first change\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```diff\n(?P<diff>.*?)^```|^    (?P<command>\S[^\n]*)$", re.DOTALL | re.MULTILINE)


def steps_of_page() -> list[tuple[str | None, str | None]]:
    """Diffs and commands, in their order."""
    section = SECTION.search((REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert section is not None
    return [(m["diff"], m["command"]) for m in BLOCK.finditer(section[1])]


def test_the_diffs_of_the_page_fit() -> None:
    diffs = [diff for diff, _ in steps_of_page() if diff]
    assert len(diffs) == 2
    done = subprocess.run(
        ["git", "apply", "--check"], cwd=REPO, input="".join(diffs), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.heavy("a copy of the checkout, and pytest in pytest")
def test_the_changes_of_the_page_can_be_made(tmp_path: Path) -> None:
    steps = steps_of_page()
    assert len(steps) == 9
    left_out = shutil.ignore_patterns(".*", "build", "edit", "__pycache__", "*.egg-info")
    copy = shutil.copytree(REPO, tmp_path / "patchctl", ignore=left_out, symlinks=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PATCHCTL_")}
    environment |= {"PYTHONPATH": str(copy), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for diff, command in steps:
        line = ["git", "apply", "-"] if diff else ["bash", "-euc", command]
        done = subprocess.run(line, cwd=copy, env=environment, input=diff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command or diff}\n{done.stdout}{done.stderr}"
    assert "`drop-when-said`" in (copy / "docs/lint-rules.md").read_text(encoding="utf-8")
