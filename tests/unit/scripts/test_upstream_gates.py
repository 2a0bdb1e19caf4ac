"""scripts/upstream_gates.py: what upstream's checks say of the patched tree and not of the unpatched one, by the real linters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/upstream_gates.py"
SETTINGS = '[tool.ruff]\nline-length = 40\n[tool.ruff.lint]\nselect = ["E", "F", "I"]\n'
UPSTREAMS_OWN = "import os\n"  # F401 in both trees
CHECK = "tests/special_sanity/check_license.py"
LICENCE = """import sys, pathlib
for file in pathlib.Path("verl").glob("*.py"):
    assert "Copyright" in file.read_text(), f"file {file.absolute()} does not contain license"
"""


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    for side in ("base", "patched"):
        for upstream in ("verl", "megatron-lm"):
            tree = tmp_path / side / upstream
            (tree / "verl").mkdir(parents=True)
            (tree / "pyproject.toml").write_text(SETTINGS)
            (tree / "verl/one.py").write_text(f"# Copyright\n{UPSTREAMS_OWN}")
    return tmp_path


def run(trees: Path) -> tuple[int, str]:
    sides = ["--base", str(trees / "base"), "--patched", str(trees / "patched")]
    ended = subprocess.run([sys.executable, str(SCRIPT), *sides], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def line(said: str, gate: str) -> str:
    return next(one for one in said.splitlines() if one.startswith(gate))


def test_what_upstream_has_itself_does_not_count_wherever_it_stands(trees: Path) -> None:
    (trees / "patched/verl/verl/one.py").write_text(f"# Copyright\n# ours\n{UPSTREAMS_OWN}")
    code, said = run(trees)
    assert code == 0, said
    assert "1 of upstream's, 0 more" in line(said, "verl         ruff")


@pytest.mark.parametrize(
    ("text", "gate", "complaint"),
    [
        (f"{UPSTREAMS_OWN}# {'long ' * 10}\n", "verl         ruff", "verl/one.py: E501 Line too long"),
        (f"{UPSTREAMS_OWN}import sys\n", "verl         ruff", "verl/one.py: F401"),
        (f"{UPSTREAMS_OWN}x = [ 1 ]\n", "verl         format", "verl/one.py: unformatted"),
    ],
)
def test_one_complaint_more_is_named_and_fails(trees: Path, text: str, gate: str, complaint: str) -> None:
    (trees / "patched/verl/verl/one.py").write_text(f"# Copyright\n{text}")
    code, said = run(trees)
    assert code == 1
    assert "0 more" not in line(said, gate) and complaint in said


def test_an_upstream_script_that_stops_is_told_and_one_that_is_not_there_is_not_run(trees: Path) -> None:
    code, said = run(trees)
    assert code == 0 and f"the source distribution has no {CHECK}" in line(said, "verl         licences")
    for side in ("base", "patched"):
        (trees / side / "verl" / CHECK).parent.mkdir(parents=True)
        (trees / side / "verl" / CHECK).write_text(f"# Copyright\n{LICENCE}")
    (trees / "patched/verl/verl/two.py").write_text("")
    code, said = run(trees)
    assert code == 1 and "AssertionError: file verl/two.py does not contain license" in said


def test_formatters_are_given_the_files_that_patches_change(trees: Path) -> None:
    untidy = "x = [ 1 ]\n"
    for side in ("base", "patched"):
        (trees / side / "megatron-lm/verl/upstreams_own.py").write_text(untidy)
    assert "0 of upstream's, 0 more" in line(run(trees)[1], "megatron-lm  black")
    (trees / "patched/megatron-lm/verl/ours.py").write_text(untidy)
    code, said = run(trees)
    assert code == 1 and "would reformat verl/ours.py" in said


def test_no_trees_is_an_error(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == 1 and "no gate could be run" in said


def test_a_linter_without_upstreams_settings_is_nobodys_gate(trees: Path) -> None:
    """As with a source distribution that leaves .pylintrc out."""
    for side in ("base", "patched"):
        (trees / side / "megatron-lm/.pylintrc").write_text("[MESSAGES CONTROL]\ndisable=all\nenable=line-too-long\n")
    long = f"{UPSTREAMS_OWN}# {'long ' * 30}\n"
    (trees / "patched/megatron-lm/verl/one.py").write_text(long)
    code, said = run(trees)
    assert code == 1 and "1 more" in line(said, "megatron-lm  pylint")
    for side in ("base", "patched"):
        (trees / side / "megatron-lm/.pylintrc").unlink()
    said = run(trees)[1]
    assert "not run: the source distribution has no .pylintrc" in line(said, "megatron-lm  pylint")
