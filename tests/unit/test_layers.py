"""Which package may import which: layers, no cycle, a docstring for every package, and no module name for two things.

Every import counts: at the top of a module, in a function, for type checkers alone, and by name in a string
("from patchctl.x import y", "patchctl.x:y").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "patchctl"
FOUNDATION = {
    "patchctl",
    "doc",
    "delta",
    "errors",
    "process_group",
    "atomic",
    "scratch",
    "os_errors",
    "extension",
    "language",
    "terminal",
    "python_probe",
}
SOURCES = FOUNDATION | {"patch", "git", "manifest", "source"}
TREES = SOURCES | {"stack", "identify", "workspace"}
PATCHING = TREES | {
    "distributions",
    "findings",
    "requirements",
    "install",
    "bundle",
    "catalog",
    "sbom",
    "importing",
    "pin",
    "drift",
    "rebase",
    "bump",
    "prove",
    "blame",
    "check",
    "image",
    "doctor",
    "cluster",
}
# From the lowest layer up: each package, and what it may import. All of that is further up in this table.
LAYERS: dict[str, set[str]] = {
    "patchctl": set(),
    "doc": set(),
    "delta": set(),
    "language": set(),
    "errors": {"doc", "language"},
    "extension": {"errors"},
    "process_group": set(),
    "atomic": {"errors", "language"},
    "scratch": {"atomic"},
    "os_errors": {"errors", "language"},
    "terminal": {"doc", "errors", "language"},
    "python_probe": {"language", "os_errors", "process_group", "terminal"},
    "findings": {"patchctl", "doc", "errors", "language", "terminal"},
    "patch": {"delta", "errors", "language"},
    "git": {"delta", "errors", "language", "process_group", "atomic"},
    "manifest": FOUNDATION,
    "source": FOUNDATION | {"patch", "git", "manifest"},
    "distributions": SOURCES,
    "stack": SOURCES,
    "identify": SOURCES | {"stack"},
    "workspace": SOURCES | {"stack"},
    "requirements": SOURCES | {"stack"},
    "install": TREES | {"requirements"},
    "bundle": SOURCES | {"stack"},
    "catalog": FOUNDATION | {"patch", "manifest", "stack"},
    "sbom": TREES | {"findings", "distributions", "requirements", "bundle", "catalog"},
    "importing": TREES,
    "pin": SOURCES,
    "drift": SOURCES | {"stack", "catalog"},
    "rebase": TREES | {"catalog", "pin", "drift"},
    "bump": TREES | {"catalog", "drift", "rebase", "requirements"},
    "prove": TREES | {"bundle", "catalog", "drift", "rebase"},
    "blame": TREES | {"catalog"},
    "check": TREES | {"findings", "requirements", "bundle", "catalog", "importing", "drift", "prove"},
    "image": TREES | {"findings", "sbom", "check"},
    "doctor": TREES | {"findings", "requirements", "bundle"},
    "cluster": TREES | {"findings", "bundle", "check", "doctor"},
    "report": PATCHING,
    "cli": PATCHING | {"report"},
    "training/models": TREES | {"findings", "check"},
    "training/recipes": TREES | {"findings", "check", "requirements", "training/models"},
    "training/preflight": PATCHING | {"training/models", "training/recipes"},
    "training/report": PATCHING | {"training/models", "training/recipes", "training/preflight"},
    "training/verbs": PATCHING
    | {"report", "cli", "training/models", "training/recipes", "training/preflight", "training/report"},
    "training": {"extension", "check", "training/models", "training/recipes"},
    "__main__": {"extension", "cli", "cluster", "training"},
}
# By name, as a user would: the process on a node starts where every process of patchctl starts.
STARTS = {("cluster", "__main__")}
# Packages whose modules have the name of what they check, print, run or look at.
NAMED_AFTER = {"check", "report", "training/report", "training/verbs", "training/preflight/checks", "doctor"}
SAME_NAME = {"types"}  # the dataclasses of a package


@dataclass(frozen=True)
class Import:
    """An import, with its line."""

    source: str
    target: str
    line: int


def modules(package: Path) -> dict[str, Path]:
    """Every module by its dotted name, a package by that of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str, package: Path) -> str:
    """The package that a module counts for: a folder of patchctl/, or what has a layer of its own in training/; else the module itself."""
    parts = module.split(".")[1:]
    if not parts:
        return "patchctl"
    below = "/".join(parts[:2])
    return below if parts[0] == "training" and (below in LAYERS or (package / below).is_dir()) else parts[0]


def imports(package: Path) -> list[Import]:
    """Every import of one module of the package by another."""
    known = modules(package)
    found = []
    for name, path in known.items():
        for target, line in _imports(ast.parse(path.read_bytes()), name, path.name == "__init__.py"):
            while target not in known and "." in target:
                target = target.rpartition(".")[0]
            if target in known and target != name:
                found.append(Import(name, target, line))
    return found


def _imports(tree: ast.Module, name: str, is_package: bool) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            by_name = re.findall(r"(?:from |import )(patchctl[\w.]*)|(patchctl(?:\.\w+)*):\w", node.value)
            yield from ((one or other, node.lineno) for one, other in by_name)


def wrong_imports(package: Path, layers: Mapping[str, set[str]] = LAYERS) -> list[str]:
    known = modules(package)
    found = []
    for one in imports(package):
        source, target = package_of(one.source, package), package_of(one.target, package)
        if source == target or (source, target) in STARTS or target in layers.get(source, ()):
            continue
        place = f"{known[one.source].relative_to(package)}:{one.line}"
        found.append(f"{place}: {source} imports {one.target}, and may not import {target}")
    return found


def cycles(package: Path) -> list[str]:
    """Modules that import each other, at whatever time: those that remain after removing, again and again, modules without imports or
    without importers."""
    below: dict[str, set[str]] = {name: set() for name in modules(package)}
    for one in imports(package):
        if not one.source.startswith(f"{one.target}."):  # a package is imported before its modules, always
            below[one.source].add(one.target)
    while True:
        left = set.union(set(), *below.values())
        ends = {name for name, targets in below.items() if not targets or name not in left}
        if not ends:
            return sorted(below)
        below = {name: targets - ends for name, targets in below.items() if name not in ends}


def packages_without_a_docstring(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        if len(text.split("\n\n")[0].split()) < 5:
            found.append(path.parent.relative_to(package.parent).as_posix())
    return found


def names_of_two_things(package: Path) -> dict[str, list[str]]:
    folders_of: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package).as_posix()
        if path.stem not in ("__init__", "__main__") and folder not in NAMED_AFTER:
            folders_of.setdefault(path.stem, []).append(folder)
    return {name: folders for name, folders in folders_of.items() if len(folders) > 1}


def test_no_package_may_import_a_higher_one() -> None:
    order = list(LAYERS)
    for number, (name, allowed) in enumerate(LAYERS.items()):
        assert allowed <= set(order[:number]), name


def test_only_training_and_main_may_import_training() -> None:
    for name, allowed in LAYERS.items():
        assert name.startswith(("training", "__main__")) or not any(a.startswith("training") for a in allowed), name


def test_every_package_has_a_layer() -> None:
    assert {package_of(name, PACKAGE) for name in modules(PACKAGE)} <= LAYERS.keys()


def test_every_import_goes_down() -> None:
    assert wrong_imports(PACKAGE) == []


def test_there_is_no_cycle() -> None:
    assert cycles(PACKAGE) == []


def test_every_package_has_a_docstring() -> None:
    assert packages_without_a_docstring(PACKAGE) == []


def test_a_module_name_stands_for_one_thing() -> None:
    assert names_of_two_things(PACKAGE).keys() == SAME_NAME


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package without faults: `check` imports `manifest`, and the extension `training` imports `check`."""
    package = tmp_path / "patchctl"
    files = {
        "__init__.py": '"""What the package is, in a sentence."""',
        "errors.py": "",
        "manifest/__init__.py": '"""What manifests hold, in a sentence."""',
        "manifest/load.py": "from patchctl.errors import Bad\n",
        "check/__init__.py": '"""What is found, in a sentence."""',
        "check/series.py": "def f():\n    from patchctl.manifest import load\n    return load\n",
        "training/__init__.py": '"""An extension, in a sentence."""',
        "training/recipes/__init__.py": '"""How it is trained, in a sentence."""',
        "training/recipes/resolve.py": "import patchctl.check.series\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def test_a_package_without_faults(package: Path) -> None:
    assert (wrong_imports(package), cycles(package), packages_without_a_docstring(package)) == ([], [], [])
    assert names_of_two_things(package) == {}
    assert len(imports(package)) == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from patchctl.check.series import Series\n", 1),
        ("import patchctl.check.series\n", 1),
        ("from patchctl.check import series\n", 1),
        ("from ..check import series\n", 1),
        ("def f():\n    from patchctl.check.series import Series\n    return Series\n", 2),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from patchctl.check.series import Series\n", 3),
        ('CODE = "import sys; from patchctl.check.series import main; main()"\n', 1),
        ('NAME = "patchctl.check.series:check"\n', 1),
        ('NAME = "patchctl.training.recipes.resolve:resolve"\n', 1),
    ],
)
def test_an_import_of_a_higher_layer_is_found(package: Path, text: str, line: int) -> None:
    (package / "manifest" / "schema.py").write_text(text)
    (found,) = wrong_imports(package)
    assert found.startswith(f"manifest/schema.py:{line}: manifest imports patchctl.")


def test_a_package_without_a_layer_may_import_nothing(package: Path) -> None:
    (package / "unknown").mkdir()
    (package / "unknown" / "old.py").write_text("from patchctl.errors import Bad\n")
    assert wrong_imports(package) == ["unknown/old.py:1: unknown imports patchctl.errors, and may not import errors"]


def test_a_cycle_is_found_even_between_late_imports(package: Path) -> None:
    (package / "check" / "rules.py").write_text("from patchctl.check import pages\n")
    (package / "check" / "pages.py").write_text("def f():\n    from patchctl.check import rules\n    return rules\n")
    assert cycles(package) == ["patchctl.check.pages", "patchctl.check.rules"]
    assert wrong_imports(package) == []


@pytest.mark.parametrize("text", ["", '"""Findings."""\n'])
def test_a_package_without_a_docstring_is_found(package: Path, text: str) -> None:
    (package / "check" / "__init__.py").write_text(text)
    assert packages_without_a_docstring(package) == ["patchctl/check"]


def test_a_module_name_for_two_things_is_found(package: Path) -> None:
    for folder in ("manifest", "check", "training/recipes"):
        (package / folder / "run.py").write_text("")
    assert names_of_two_things(package) == {"run": ["manifest", "training/recipes"]}
