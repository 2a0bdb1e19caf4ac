"""`--trees` with a folder in another checkout: that checkout's conftest.py takes no part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from patchctl.catalog import evidence
from patchctl.manifest.distribution import Distribution
from patchctl.stack.plan import load_patches

REPO = Path(__file__).parents[2]
TEST = "tests/unit/test_scratch.py"


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """The trees of another checkout, whose conftest.py has the option as well."""
    (tmp_path / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--trees")\n')
    (tmp_path / "build" / "trees").mkdir(parents=True)
    return tmp_path / "build" / "trees"


def collect(*args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *args]
    return subprocess.run(line, cwd=REPO, capture_output=True, text=True, check=False)


@pytest.mark.heavy("pytest in pytest")
def test_a_folder_of_another_checkout(trees: Path) -> None:
    done = collect(TEST, f"--trees={trees}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", [True, False])
def test_as_two_words_it_is_refused_with_what_to_write(trees: Path, first: bool) -> None:
    option = ["--trees", str(trees)]
    done = collect(*option, TEST) if first else collect(TEST, *option)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False), done.stderr
    assert f"{trees.parents[1]}/conftest.py" in done.stderr and f"--trees={trees}" in done.stderr


@pytest.mark.heavy("pytest in pytest")
def test_as_two_words_it_is_taken_where_no_other_conftest_is(tmp_path: Path) -> None:
    assert collect(TEST, "--trees", str(tmp_path)).returncode == 0


def test_tests_that_a_stack_inherits_are_collected(tmp_path: Path) -> None:
    """Where the trees are of that stack: a red one can be run again with pytest alone."""
    dist = Distribution.load(REPO)
    stack, file = next(
        (stack, Path(file))
        for stack in dist.stacks.values()
        for patch in load_patches(dist, stack)
        for file in evidence.tests_of(dist, stack, patch.feature)
        if file.startswith(f"patches/{stack.upstream}/") and f"/{stack.name}/" not in file and "/shared/" not in file
    )
    done = collect(str(file.parent), f"--trees={tmp_path}", f"--stack={stack.upstream}/{stack.name}")
    assert done.returncode == 0 and f"{file}::test_" in done.stdout, done.stdout
