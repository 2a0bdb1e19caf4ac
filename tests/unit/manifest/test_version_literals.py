"""What is pinned stands in manifests alone: a second stack of an upstream meets no version of the first in code that tests it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from pins import REPO, distribution

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


def _is_ours(text: str) -> bool:
    return text.startswith("patches/") and (REPO / text).exists()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_version_is_written_outside_manifests(folder: str) -> None:
    pattern, found, files = pins(), [], [*REPO.glob(f"{folder}/**/*.py")]
    for file in files:
        for node in literals(ast.parse(file.read_text(encoding="utf-8"))):
            # The path of another stack's probes is no version: what is not there any more fails by itself.
            if pattern.search(str(node.value)) and not _is_ours(str(node.value)):
                found.append(f"{file.relative_to(REPO)}:{node.lineno}: {str(node.value)[:60]!r}")
    assert files and found == []
