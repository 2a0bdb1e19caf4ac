"""A public class name is defined once in patchctl/, so that a search and a stack trace tell which class is meant."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "patchctl"


def defined_again(package: Path) -> dict[str, list[str]]:
    """The public class names with several definitions, and their modules."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(package).as_posix())
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_every_public_class_name_is_defined_once() -> None:
    assert defined_again(PACKAGE) == {}


def test_a_name_that_is_defined_again_is_found(tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "objects.py").write_text("class Entry: pass\nclass _Own: pass\n")
    (tmp_path / "pages.py").write_text("if True:\n    class Entry: pass\nclass _Own: pass\n")
    assert defined_again(tmp_path) == {"Entry": ["git/objects.py", "pages.py"]}
