"""scripts/upstream_job.sh: the steps of a morning's job, run against an upstream that changes between two mornings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from distribution import GIT_ENV, REPO, Made, git
from test_bump import both_go_on, conflict, made

pytestmark = pytest.mark.heavy("whole bumps")
__all__ = ["made"]


@pytest.fixture
def checkout(made: Made) -> Made:
    """The distribution as a repository, with its pages left out."""
    (made.root / ".gitignore").write_text("edit/\nbuild/\n")
    git(made.root, "init", "--quiet", "--initial-branch=main")
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "-m", "the distribution")
    return made


def morning(made: Made, tmp_path: Path) -> tuple[str, Path]:
    """One run of the job's script; its output, and what it left."""
    out, program = made.root / "build" / "upstream", tmp_path / "bin" / "patchctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m patchctl --cache="{made.cache}" "$@"\n')
    program.chmod(0o755)
    env = {**GIT_ENV, "HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PIP_NO_INDEX": "1"}
    env["PATH"] = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = ["bash", str(REPO / "scripts/upstream_job.sh"), str(out)]
    done = subprocess.run(line, cwd=made.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out


def test_two_mornings(checkout: Made, tmp_path: Path) -> None:
    said, out = morning(checkout, tmp_path)
    assert said.endswith("nothing to move\n") and not (out / "branch").exists()
    both_go_on(checkout)
    said, out = morning(checkout, tmp_path)
    assert (out / "branch").read_text() == "bump/2001.01.1\n" and (out / "title").read_text() == "Release 2001.01.1\n"
    assert "2 of 2 upstreams have something newer" in (out / "outdated.txt").read_text()
    assert "| step | same |" in (out / "body.md").read_text()
    assert git(checkout.root, "branch", "--show-current").strip() == "bump/2001.01.1"
    assert "manifests/releases/2001.01.1.yaml" in git(checkout.root, "show", "--stat=200", "--format=%s")
    assert git(checkout.root, "status", "--porcelain") == ""


def test_a_conflict_is_a_draft_too(checkout: Made, tmp_path: Path) -> None:
    conflict(checkout)
    said, out = morning(checkout, tmp_path)
    assert "next: patchctl bump --continue" in said
    assert "## Stopped at step of clock" in (out / "body.md").read_text()
    assert (checkout.root / "edit" / "clock-bump-2001.01.1" / "clock/tick.py").is_file()
    assert git(checkout.root, "branch", "--show-current").strip() == "bump/2001.01.1"


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_jobs_run_the_script(name: str) -> None:
    text = (REPO / "examples/ci" / f"{name}.yml").read_text()
    assert yaml.safe_load(text) and text.count("scripts/upstream_job.sh build/upstream\n") == 1
