"""`patchctl script` and `patchctl train`: scripts of the distribution, wherever it is; and what --version says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distribution import Made, git, make_distribution

from patchctl import __version__

TRAIN = (
    '#!/usr/bin/env bash\n# Trains a recipe: in words. docs/scripts.md\nprintf "%s\\n" "$PATCHCTL_ROOT" "$@"\nexit 3\n'
)
LOOK = '#!/usr/bin/env python3\n"""Look at a log.\n\nMore."""\nimport sys\n\nprint(sys.executable, *sys.argv[1:])\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("scripts"), lock=True)
    (made.root / "scripts").mkdir()
    (made.root / "scripts/train.sh").write_text(TRAIN)
    (made.root / "scripts/look.py").write_text(LOOK)
    (made.root / "scripts/common.sh").write_text("# shellcheck shell=bash\n")
    return made


def test_scripts_are_listed_with_what_they_do(made: Made) -> None:
    assert made.good("script") == "look.py   Look at a log\ntrain.sh  Trains a recipe\n"


@pytest.mark.parametrize("line", [("train",), ("script", "train.sh")])
def test_a_script_gets_every_word_and_ends_the_run(made: Made, line: tuple[str, ...]) -> None:
    done = made.patchctl(*line, "full", "grpo", "--json", "-n", "8", "key=value with a blank")
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == [str(made.root), "full", "grpo", "--json", "-n", "8", "key=value with a blank"]


def test_a_script_speaks_the_language_that_was_asked_for(made: Made) -> None:
    said = LOOK.replace("sys.executable, *sys.argv[1:]", 'os.environ.get("PATCHCTL_LANG")').replace(
        "import sys", "import os"
    )
    (made.root / "scripts/says.py").write_text(said)
    try:
        assert made.good("--lang", "zh-CN", "script", "says.py") == "zh-CN\n"
        assert made.good("script", "says.py") == "None\n"
    finally:
        (made.root / "scripts/says.py").unlink()


def test_python_scripts_run_in_the_python_of_training(made: Made, tmp_path: Path) -> None:
    assert made.good("script", "look.py", "--out", "x") == f"{sys.executable} --out x\n"
    (tmp_path / "python").symlink_to(sys.executable)
    env = {"PATCHCTL_TORCH_PYTHON": str(tmp_path / "python")}
    assert made.good("script", "look.py", env=env) == f"{tmp_path / 'python'}\n"


@pytest.mark.parametrize("name", ["trian.sh", "common.sh", "../scripts/train.sh"])
def test_what_is_no_script_is_refused(made: Made, name: str) -> None:
    done = made.patchctl("script", name)
    assert done.returncode == 2 and f"the distribution has no script {name!r}" in done.stderr
    assert "`patchctl script` lists them" in done.stderr


def test_a_distribution_without_scripts_says_so(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    assert made.good("script") == "this distribution has no scripts\n"
    assert "try:" not in made.patchctl("script", "train.sh").stderr


def test_the_version_names_the_distribution(made: Made, tmp_path: Path) -> None:
    lines = [f"patchctl {__version__}", f"distribution: {made.root}", "releases: none"]
    assert made.good("--version").splitlines() == lines
    git(made.root, "init", "--quiet")
    git(made.root, "commit", "--quiet", "--allow-empty", "-m", "one")
    commit = git(made.root, "rev-parse", "HEAD").strip()
    assert made.good("--version").splitlines()[1] == f"distribution: {made.root}, commit {commit}"
    nothing = made.good("--root", str(tmp_path), "--version")
    assert nothing.splitlines()[0] == lines[0] and f"--root names {tmp_path}, which has no" in nothing
