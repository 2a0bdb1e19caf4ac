"""What scripts of the distribution say that they import: PEP 723's block, read and never run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from patchctl.errors import BadManifest, Where

FOLDER = "scripts"
# As PEP 723 has it; dependencies alone, written as a list of plain strings. Python 3.10 has no tomllib.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_DEPENDENCIES = re.compile(r"(?ms)^dependencies\s*=\s*(\[.*?\])\s*$")


def declared_by_scripts(root: Path) -> dict[str, tuple[str, ...]]:
    """The dependencies of every script below scripts/ that declares some, by its path below the root.

    Raises BadManifest for a block that cannot be read.
    """
    found: Mapping[str, tuple[str, ...]] = {
        file.relative_to(root).as_posix(): dependencies(file) for file in sorted((root / FOLDER).rglob("*.py"))
    }
    return {path: needs for path, needs in found.items() if needs}


def dependencies(file: Path) -> tuple[str, ...]:
    """The dependencies of one script, normalised; none without a block."""
    text = file.read_text(encoding="utf-8")
    block = _BLOCK.search(text)
    if block is None:
        return ()
    where = Where(str(file), text.count("\n", 0, block.start()) + 1)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    listed = _DEPENDENCIES.search(content)
    try:
        return tuple(str(Requirement(text)) for text in ast.literal_eval(listed[1])) if listed else ()
    except (ValueError, SyntaxError, TypeError, InvalidRequirement) as error:
        reason = str(error).partition("\n")[0].partition(": <ast.")[0]  # literal_eval names an object by its address
        what = f"the block of the script's dependencies cannot be read: {reason}"
        raise BadManifest(what, where=where, hint='write dependencies = ["NAME", "NAME>=1"] (PEP 723)') from error


def imported(file: Path) -> set[str]:
    """The top-level packages that a script imports anywhere and that neither Python nor its own folder has."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    beside = {path.stem for path in file.parent.glob("*.py")}
    return names - set(sys.stdlib_module_names) - beside - {"__future__"}
