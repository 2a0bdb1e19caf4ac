"""scripts/image/find_trees.py: which trees of a profile an interpreter leads to, and whether they are the profile's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution

# More files than the small one has, so that a tree without some of them is still told.
BIG = replace(GREETER, files={**GREETER.files, **{f"greeter/word{n}.py": f"WORD = {n}\n" for n in range(9)}})
SCRIPT = REPO / "scripts/image/find_trees.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("find"), (BIG, CLOCK), lock=True)


@pytest.fixture
def base(made: Made, tmp_path: Path) -> Path:
    """A folder as a base image has it: a checkout of greeter's pin."""
    git(tmp_path, "clone", "-q", str(made.origins / "greeter"), "Greeter")
    return tmp_path


def find(made: Made, path: Sequence[Path], *said: str) -> subprocess.CompletedProcess[str]:
    """The script for an interpreter whose PYTHONPATH these folders are."""
    env = {**os.environ, "PATCHCTL_ROOT": str(made.root), "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, str(SCRIPT), "full", sys.executable, *said]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_tree_is_found_by_what_python_imports(made: Made, base: Path) -> None:
    found = find(made, [base / "Greeter"])
    assert (found.returncode, found.stdout) == (0, f"greeter={base}/Greeter\n"), found.stderr


def test_what_a_build_left_in_it_is_no_matter(made: Made, base: Path) -> None:
    (base / "Greeter/greeter/_kernels.cpython-311-aarch64-linux-gnu.so").write_bytes(b"\x7fELF")
    (base / "Greeter/README.md").unlink()
    assert find(made, [base / "Greeter"]).stdout == f"greeter={base}/Greeter\n"


def test_a_package_without_its_tree(made: Made, base: Path) -> None:
    """As in site-packages."""
    site = base / "site"
    shutil.copytree(base / "Greeter/greeter", site / "greeter")
    assert find(made, [site]).stdout == f"greeter={site}\n"


def test_another_revision_is_refused_by_name(made: Made, base: Path) -> None:
    (base / "Greeter/greeter/hello.py").write_text("def hello(name):\n    return name\n")
    found = find(made, [base / "Greeter"])
    assert (found.returncode, found.stdout) == (3, "")
    assert f"{base}/Greeter, which is not the profile's v1" in found.stderr and "greeter/hello.py" in found.stderr
    assert "--in-place greeter=" in found.stderr


def test_another_revision_is_taken_where_any_base_is(made: Made, base: Path) -> None:
    """`apply --on-this-base` says whether it can be patched."""
    (base / "Greeter/greeter/hello.py").write_text("def hello(name):\n    return name\n")
    found = find(made, [base / "Greeter"], "--on-this-base", "clock=/trees/clock")
    assert (found.returncode, found.stdout) == (0, f"greeter={base}/Greeter\nclock=/trees/clock\n"), found.stderr
    assert "1 file differs, the first is greeter/hello.py; it is patched in place if" in found.stderr


def test_an_unknown_profile_is_one_error(made: Made) -> None:
    env = {**os.environ, "PATCHCTL_ROOT": str(made.root)}
    command = [sys.executable, str(SCRIPT), "ful", sys.executable]
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (
        found.returncode == 2 and found.stderr.startswith("find_trees.py: ") and "did you mean 'full'" in found.stderr
    )


def test_what_is_said_is_not_asked(made: Made, base: Path) -> None:
    (base / "Greeter/greeter/hello.py").write_text("")
    assert find(made, [base / "Greeter"], "greeter=").stdout == ""
    assert find(made, [base / "Greeter"], "greeter=", "clock=/trees/clock").stdout == "clock=/trees/clock\n"


def test_a_name_that_the_profile_has_not(made: Made, base: Path) -> None:
    found = find(made, [], "watch=/trees/watch")
    assert found.returncode == 2 and "watch" in found.stderr and "greeter, clock" in found.stderr
