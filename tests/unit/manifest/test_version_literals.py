"""What is pinned stands in manifests alone: a second stack of an upstream meets no version of the first in code that tests it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pins import REPO, distribution

from patchctl.catalog import evidence
from patchctl.stack.plan import load_patches

# Whose versions are those of packages that no manifest pins.
OF_OTHERS = ("old_vllm.py", "test_vllm_import_compat.py")
FOLDERS = ["patchctl", "benchmarks", "standins", "tests/behaviour", "tests/image", "patches/*/*/*/tests"]


def pins() -> re.Pattern[str]:
    """The names of stacks and the versions of their sdists, as whole words."""
    stacks = distribution().stacks.values()
    words = {s.name for s in stacks} | {s.pin.sdist.version for s in stacks if s.pin.sdist}
    return re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![\w.]*\d)")


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every text in code, but for docstrings, which say what was read when they were written."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_version_is_written_outside_manifests(folder: str) -> None:
    pattern, found, files = pins(), [], [*REPO.glob(f"{folder}/**/*.py")]
    for file in files:
        for node in literals(ast.parse(file.read_text(encoding="utf-8"))):
            if pattern.search(str(node.value)) and file.name not in OF_OTHERS:
                found.append(f"{file.relative_to(REPO)}:{node.lineno}: {str(node.value)[:60]!r}")
    assert files and found == []


def test_no_test_names_the_folder_of_another_stack() -> None:
    """What two stacks have lies in shared/, so that one of them can go."""
    folders = {f"patches/{upstream}/{stack}/" for upstream, stack in distribution().stacks}
    found = set()
    for folder in folders:
        for file in (REPO / folder).glob("*/tests/**/*.py"):
            texts = [str(node.value) for node in literals(ast.parse(file.read_text(encoding="utf-8")))]
            named = [text for text in texts for other in folders - {folder} if text.startswith(other)]
            found.update((file.name, text) for text in named)
    assert found == set()


def test_no_run_on_record_read_a_file_of_another_stack() -> None:
    """But of the stack that its tests are inherited from. A file that a record names with its old place, and that moved to shared/ since,
    is not there any more.
    """
    dist = distribution()
    folders = {f"patches/{upstream}/{stack}/" for upstream, stack in dist.stacks}
    found, read = set(), 0
    for (upstream, name), stack in dist.stacks.items():
        for patch in load_patches(dist, stack):
            record = evidence.read_record(dist.root, upstream, name, patch.feature)
            given = (*evidence.tests_of(dist, stack, patch.feature), *evidence.mutants_of(dist, stack, patch.feature))
            inherited = {f"{Path(file).parents[1].as_posix()}/" for file in given}
            for run in [record.tests, *record.mutants.values()] if record else []:
                for file in run.files if run else ():
                    read += 1
                    others = folders - {f"patches/{upstream}/{name}/"}
                    if (
                        any(map(file.startswith, others))
                        and not any(map(file.startswith, inherited))
                        and (dist.root / file).exists()
                    ):
                        found.add((patch.feature, Path(file).name))
    assert read
    assert found == set()
