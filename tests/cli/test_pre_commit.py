"""`.pre-commit-hooks.yaml`, run by the real pre-commit on a small distribution, and `verify --lint`, which one hook is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from distribution import REPO, Made, git, make_distribution

HOOKS = ("patchctl-lint", "patchctl-verify", "patchctl-lock")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_distribution(tmp_path / "made", lock=True)


def test_lint_is_about_patch_files_alone(made: Made) -> None:
    """A lock that has to be made anew is no matter of a patch file."""
    assert "checked 4 patches" in made.good("verify", "--lint")
    made.edit("patches/greeter/v1/polite/files/greeter/manners.py", ", please", ", pray")
    assert made.patchctl("verify", "--static").returncode == 1
    assert made.patchctl("verify", "--lint").returncode == 0
    made.edit(made.patch("typo"), "hello: spell the greeting right", "hello: spell the greeting right.")
    done = made.patchctl("verify", "--lint", "--quiet")
    assert done.returncode == 1 and "[subject-form]" in done.stdout


@pytest.mark.parametrize("other", [("--proven",), ("--alone",), ("--workspace", ".")])
def test_lint_goes_with_no_other_check(made: Made, other: tuple[str, ...]) -> None:
    done = made.patchctl("verify", "--lint", *other)
    assert done.returncode == 2 and "--lint is for" in done.stderr


def test_a_hook_is_a_command_that_is_there() -> None:
    hooks = yaml.safe_load((REPO / ".pre-commit-hooks.yaml").read_text())
    assert sorted(hook["id"] for hook in hooks) == sorted(HOOKS)
    for hook in hooks:
        program, *words = hook["entry"].split()
        done = subprocess.run(
            [sys.executable, "-m", program, *words, "--help"], cwd=REPO, capture_output=True, check=False
        )
        assert (program, done.returncode, hook["pass_filenames"]) == ("patchctl", 0, False), hook


@dataclass
class Committing:
    """A repository of a distribution whose commits run the hooks."""

    made: Made
    program: Path
    folder: Path

    def hooks(self) -> subprocess.CompletedProcess[str]:
        git(self.made.root, "add", "--all")
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PATCHCTL_", "XDG_", "GIT_", "VIRTUAL_ENV", "PYTHON"))
        }
        env |= {"PRE_COMMIT_HOME": str(self.folder / "home"), "PATCHCTL_CACHE": str(self.folder / "cache")}
        line = [str(self.program), "run", "--all-files", "--color", "never"]
        return subprocess.run(
            line, env=env, cwd=self.made.root, capture_output=True, text=True, timeout=900, check=False
        )


@pytest.fixture
def committing(made: Made, tmp_path: Path) -> Committing:
    venv, tool = tmp_path / "venv", tmp_path / "tool"
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", str(venv)], check=True)
    install = [
        sys.executable,
        "scripts/uv_as_pip.py",
        "pip",
        "install",
        "--quiet",
        "--python",
        str(venv / "bin/python"),
        "pre-commit",
    ]
    subprocess.run(install, cwd=REPO, check=True)
    listed = git(REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in (name for name in listed if name and not name.startswith(("tests/", "benchmarks/"))):
        (tool / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tool / name)
    for repo in (tool, made.root):
        git(repo, "init", "--quiet", "--initial-branch=main")
    git(tool, "add", "--all")
    git(tool, "commit", "--quiet", "-m", "a release")
    config = {
        "repo": str(tool),
        "rev": git(tool, "rev-parse", "HEAD").strip(),
        "hooks": [{"id": name} for name in HOOKS],
    }
    (made.root / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [config]}))
    return Committing(made, venv / "bin/pre-commit", tmp_path)


@pytest.mark.heavy("installs pre-commit, which builds and installs patchctl")
def test_pre_commit_runs_the_hooks(committing: Committing) -> None:
    done = committing.hooks()
    assert done.returncode == 0 and done.stdout.count("Passed") == 3, done.stdout + done.stderr
    made = committing.made
    made.edit("patches/greeter/v1/polite/files/greeter/manners.py", ", please", ", pray")
    done = committing.hooks()
    said = done.stdout.split("patchctl: ")[1:]
    assert [("Passed" in part, "hook id" in part) for part in said] == [(True, False), (False, True), (False, True)], (
        done.stdout
    )
    made.edit(made.patch("typo"), "hello: spell the greeting right", "hello: spell the greeting right.")
    assert "[subject-form]" in committing.hooks().stdout.split("patchctl: ")[1]
