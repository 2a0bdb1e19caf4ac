"""Requirements that the distribution's scripts declare in PEP 723 blocks, read without running them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from patchctl.errors import BadManifest, Where

FOLDER = "scripts"
# The format of PEP 723; only dependencies, as a list of string literals. Python 3.10 has no tomllib.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_DEPENDENCIES = re.compile(r"(?ms)^dependencies\s*=\s*(\[.*?\])\s*$")


def declared_by_scripts(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of every script below scripts/ that declares some, by path below the root.

    Raises BadManifest for an unreadable block.
    """
    found: Mapping[str, tuple[str, ...]] = {
        file.relative_to(root).as_posix(): dependencies(file) for file in sorted((root / FOLDER).rglob("*.py"))
    }
    return {path: needs for path, needs in found.items() if needs}


def dependencies(file: Path) -> tuple[str, ...]:
    """Return the dependencies of one script, normalised; empty without a block."""
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
        reason = (
            str(error).partition("\n")[0].partition(": <ast.")[0]
        )  # literal_eval's message contains an object's address
        what = f"cannot read the script's dependencies: {reason}"
        raise BadManifest(what, where=where, hint='write dependencies = ["NAME", "NAME>=1"] (PEP 723)') from error


def imported(file: Path) -> set[str]:
    """Return top-level packages a script imports that are neither in Python nor in its own folder."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    beside = {path.stem for path in file.parent.glob("*.py")}
    return names - set(sys.stdlib_module_names) - beside - {"__future__"}
