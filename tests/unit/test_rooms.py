"""The plan of the house: which room may import which, no circle, a sentence for every room, a file name for one thing.

Every import counts: at the top of a module, in a function, for type checkers alone, and by name in a text
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
GROUND = {
    "patchctl",
    "doc",
    "delta",
    "errors",
    "process_group",
    "atomic",
    "scratch",
    "denied",
    "given",
    "extension",
    "terminal",
}
SOURCES = GROUND | {"patch", "git", "manifest", "source"}
TREES = SOURCES | {"stack", "identify", "workspace"}
FIRST_WING = TREES | {
    "findings",
    "requirements",
    "install",
    "bundle",
    "catalog",
    "importing",
    "pin",
    "drift",
    "rebase",
    "prove",
    "blame",
    "check",
    "doctor",
    "cluster",
}
# From the ground up: each room, and what it may import. All of it stands further up in this table.
ROOMS: dict[str, set[str]] = {
    "patchctl": set(),
    "doc": set(),
    "delta": set(),
    "errors": {"doc"},
    "extension": {"errors"},
    "process_group": set(),
    "atomic": {"errors"},
    "scratch": {"atomic"},
    "denied": {"errors"},
    "given": {"errors"},
    "terminal": {"doc", "errors"},
    "findings": {"patchctl", "doc", "errors", "terminal"},
    "patch": {"delta", "errors"},
    "git": {"delta", "errors", "atomic"},
    "manifest": GROUND,
    "output": GROUND | {"manifest"},
    "source": GROUND | {"patch", "git", "manifest"},
    "stack": SOURCES,
    "identify": SOURCES | {"stack"},
    "workspace": SOURCES | {"stack"},
    "requirements": SOURCES | {"identify"},
    "install": TREES | {"requirements"},
    "bundle": SOURCES | {"stack"},
    "catalog": GROUND | {"patch", "manifest", "stack"},
    "importing": TREES,
    "pin": SOURCES,
    "drift": SOURCES | {"stack", "catalog"},
    "rebase": TREES | {"catalog", "pin", "drift"},
    "prove": TREES | {"catalog"},
    "blame": TREES | {"catalog"},
    "check": TREES | {"findings", "requirements", "catalog", "importing", "drift", "prove"},
    "doctor": TREES | {"findings", "requirements", "bundle"},
    "cluster": TREES | {"findings", "bundle", "check", "doctor"},
    "report": FIRST_WING | {"output"},
    "cli": FIRST_WING | {"output", "report"},
    "training/models": TREES | {"findings", "check"},
    "training/recipes": TREES | {"findings", "check", "requirements", "training/models"},
    "training/preflight": FIRST_WING | {"output", "training/models", "training/recipes"},
    "training/report": FIRST_WING | {"training/models", "training/recipes", "training/preflight"},
    "training/verbs": FIRST_WING
    | {"report", "cli", "training/models", "training/recipes", "training/preflight", "training/report"},
    "training": {"extension", "check", "training/models", "training/recipes"},
    "__main__": {"extension", "cli", "cluster", "training"},
}
# By name, as an operator would: the process on a node begins where every process of patchctl begins.
STARTS = {("cluster", "__main__")}
# Rooms whose files have the name of what they check, print, run or look at.
NAMED_AFTER = {"check", "report", "training/report", "training/verbs", "training/preflight/checks", "doctor"}
SAME_NAME = {
    "types": "the data of a room",
    "read": "reads the format that a room owns: a bundle, recipes, what a machine's tools print",
    "check": "the faults of what a room reads: manifests, recipes",
    "compare": "two of what a room is about: trees, environments, nodes, recipes",
    "files": "the files that a room reads and writes: of manifests, of a work tree",
    "cache": "what a room remembers: validated manifests, fetched sources",
    "apply": "hunks on bytes, and a profile on a workspace: `apply` is the word for both",
    "index": "git's, and that of packages: `index` is the word for both",
    "lock": "what stacks must give, and one writer a workspace: `lock` is the word for both",
    "changes": "of one foreign patch, and of one tree of a workspace",
}


@dataclass(frozen=True)
class Arrow:
    """An import, with where it stands."""

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


def room_of(module: str, package: Path) -> str:
    """The folder below the package; in the wing of training the folder below that; else the module itself."""
    parts = module.split(".")[1:]
    if not parts:
        return "patchctl"
    if parts[0] == "training" and len(parts) > 1 and (package / parts[0] / parts[1]).is_dir():
        return "/".join(parts[:2])
    return parts[0]


def arrows(package: Path) -> list[Arrow]:
    """Every import of one module of the package by another."""
    known = modules(package)
    found = []
    for name, path in known.items():
        for target, line in _imports(ast.parse(path.read_bytes()), name, path.name == "__init__.py"):
            while target not in known and "." in target:
                target = target.rpartition(".")[0]
            if target in known and target != name:
                found.append(Arrow(name, target, line))
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


def wrong_arrows(package: Path, rooms: Mapping[str, set[str]] = ROOMS) -> list[str]:
    known = modules(package)
    found = []
    for arrow in arrows(package):
        source, target = room_of(arrow.source, package), room_of(arrow.target, package)
        if source == target or (source, target) in STARTS or target in rooms.get(source, ()):
            continue
        place = f"{known[arrow.source].relative_to(package)}:{arrow.line}"
        found.append(f"{place}: {source} imports {arrow.target}, and may not import {target}")
    return found


def circles(package: Path) -> list[str]:
    """Modules that import each other, however late: what is left when those that import nothing more are taken away, from
    both ends."""
    below: dict[str, set[str]] = {name: set() for name in modules(package)}
    for arrow in arrows(package):
        if not arrow.source.startswith(f"{arrow.target}."):  # a package is imported before its modules, always
            below[arrow.source].add(arrow.target)
    while True:
        left = set.union(set(), *below.values())
        ends = {name for name, targets in below.items() if not targets or name not in left}
        if not ends:
            return sorted(below)
        below = {name: targets - ends for name, targets in below.items() if name not in ends}


def rooms_without_a_sentence(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        if len(text.split("\n\n")[0].split()) < 5:
            found.append(path.parent.relative_to(package.parent).as_posix())
    return found


def names_of_two_things(package: Path) -> dict[str, list[str]]:
    rooms: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package).as_posix()
        if path.stem not in ("__init__", "__main__") and folder not in NAMED_AFTER:
            rooms.setdefault(path.stem, []).append(folder)
    return {name: folders for name, folders in rooms.items() if len(folders) > 1}


def test_no_room_may_import_one_above_it() -> None:
    order = list(ROOMS)
    for number, (room, allowed) in enumerate(ROOMS.items()):
        assert allowed <= set(order[:number]), room


def test_nothing_of_the_first_wing_may_import_training() -> None:
    for room, allowed in ROOMS.items():
        assert room.startswith(("training", "__main__")) or not any(a.startswith("training") for a in allowed), room


def test_every_room_has_its_place() -> None:
    assert {room_of(name, PACKAGE) for name in modules(PACKAGE)} <= ROOMS.keys()


def test_every_arrow_goes_down() -> None:
    assert wrong_arrows(PACKAGE) == []


def test_there_is_no_circle() -> None:
    assert circles(PACKAGE) == []


def test_every_room_says_what_it_is_for() -> None:
    assert rooms_without_a_sentence(PACKAGE) == []


def test_a_file_name_stands_in_two_rooms_with_a_reason() -> None:
    assert names_of_two_things(PACKAGE).keys() == SAME_NAME.keys()


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package as it should be: `cli` on `check` on `manifest`, and training beside."""
    package = tmp_path / "patchctl"
    files = {
        "__init__.py": '"""What the package is, in a sentence."""',
        "errors.py": "",
        "manifest/__init__.py": '"""What manifests hold, in a sentence."""',
        "manifest/load.py": "from patchctl.errors import Bad\n",
        "check/__init__.py": '"""What is found, in a sentence."""',
        "check/series.py": "def f():\n    from patchctl.manifest import load\n    return load\n",
        "training/__init__.py": '"""Another wing, in a sentence."""',
        "training/recipes/__init__.py": '"""How it is trained, in a sentence."""',
        "training/recipes/resolve.py": "import patchctl.check.series\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def test_a_house_as_it_should_be(house: Path) -> None:
    assert (wrong_arrows(house), circles(house), rooms_without_a_sentence(house)) == ([], [], [])
    assert names_of_two_things(house) == {}
    assert len(arrows(house)) == 3


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
def test_an_arrow_back_up_is_found(house: Path, text: str, line: int) -> None:
    (house / "manifest" / "schema.py").write_text(text)
    (found,) = wrong_arrows(house)
    assert found.startswith(f"manifest/schema.py:{line}: manifest imports patchctl.")


def test_a_room_without_a_place_imports_nothing(house: Path) -> None:
    (house / "attic").mkdir()
    (house / "attic" / "old.py").write_text("from patchctl.errors import Bad\n")
    assert wrong_arrows(house) == ["attic/old.py:1: attic imports patchctl.errors, and may not import errors"]


def test_a_circle_is_found_however_late_it_is_imported(house: Path) -> None:
    (house / "check" / "rules.py").write_text("from patchctl.check import pages\n")
    (house / "check" / "pages.py").write_text("def f():\n    from patchctl.check import rules\n    return rules\n")
    assert circles(house) == ["patchctl.check.pages", "patchctl.check.rules"]
    assert wrong_arrows(house) == []


@pytest.mark.parametrize("text", ["", '"""Findings."""\n'])
def test_a_room_without_a_sentence_is_found(house: Path, text: str) -> None:
    (house / "check" / "__init__.py").write_text(text)
    assert rooms_without_a_sentence(house) == ["patchctl/check"]


def test_a_name_of_two_things_is_found(house: Path) -> None:
    for room in ("manifest", "check", "training/recipes"):
        (house / room / "run.py").write_text("")
    assert names_of_two_things(house) == {"run": ["manifest", "training/recipes"]}
