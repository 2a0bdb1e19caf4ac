"""`make lint` reads what git tracks: ruff each Python file, mypy the tool, the scripts, the benchmarks and the stand-ins.

An exclusion once hid patchctl/workspace and its tests from ruff.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ruff", reason="pip install '.[lint]'")
REPO = Path(__file__).parents[2]
# Unused and badly spaced, in whatever file it ends: a finding of both of ruff's commands.
FAULT = "import   colorsys\n"


def _tracked() -> list[str]:
    """Names that end in .py, and scripts whose first line names python."""
    run = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True)
    names = [name for name in run.stdout.split("\0") if name and (REPO / name).is_file()]
    return [name for name in names if name.endswith(".py") or ("." not in Path(name).name and _is_python(REPO / name))]


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(re.match(rb"#!.*\bpython", file.readline(200)))


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A copy of the Python files and of ruff's settings, with a fault at the end of each file."""
    settings = subprocess.run(
        ["git", "ls-files", "*pyproject.toml", "*ruff.toml", "*.gitignore"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in (*settings.stdout.split(), *_tracked()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, tmp_path / name)
    for name in _tracked():
        with (tmp_path / name).open("a") as file:
            file.write(FAULT)
    return tmp_path


def _ruff(folder: Path, *args: str) -> str:
    line = [sys.executable, "-m", "ruff", *args, "--no-cache", "."]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_ruff_checks_every_file(faulty: Path) -> None:
    found = json.loads(_ruff(faulty, "check", "--output-format", "json"))
    seen = {Path(one["filename"]).relative_to(faulty.resolve()).as_posix() for one in found}
    assert sorted(seen) == sorted(_tracked())


def test_ruff_formats_every_file(faulty: Path) -> None:
    """But for tests that are in the form of an upstream's."""
    _ruff(faulty, "format")
    left = [name for name in _tracked() if (faulty / name).read_text().endswith(FAULT)]
    assert {Path(name).parts[4:5] for name in left} <= {("pull_request",)}


def test_mypy_reads_the_tool_the_scripts_and_the_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """By mypy's own reading of its settings, as of `mypy` without arguments, which is what the Makefile has."""
    main = pytest.importorskip("mypy.main", reason="pip install '.[lint]'")
    monkeypatch.chdir(REPO)
    assert re.search(r"^\t\S*mypy$", (REPO / "Makefile").read_text(), re.MULTILINE)
    sources, options = main.process_options([])
    typed = ("patchctl/", "scripts/", "benchmarks/", "standins/")
    assert sorted(source.path for source in sources) == sorted(n for n in _tracked() if n.startswith(typed))
    assert [s.path for s in sources if options.clone_for_module(s.module).ignore_errors] == []
    ours = [options.clone_for_module(source.module) for source in sources if source.path.startswith("patchctl/")]
    assert all(one.disallow_untyped_defs and one.disallow_any_generics and one.warn_return_any for one in ours)
