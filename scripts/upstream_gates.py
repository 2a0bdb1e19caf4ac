#!/usr/bin/env python3
"""Runs upstream's own gates on the unpatched and on the patched trees: what a maintainer's checks would say of our patches.

A gate is a command that upstream's pre-commit or CI runs on its sources, with upstream's settings: licences, device names,
docstrings, linters, formatters. Only what it says of the patched tree and not of the unpatched one counts, line numbers left out.
MindSpeed has no gates. vllm-ascend and verl pin other versions of ruff than the one at hand, which says the same of both trees.

Exit status: 0 when no gate has more to say, 1 when one has or none could be run.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(sys.executable).parent
CHECKS = "tests/special_sanity/"
# A place in a file, without line and column: `path:12:3: E501 ...` and `path:12: C0301 ...`
PLACE = re.compile(r"^(\S+\.\w+)(?::\d+)+:? ?(.*)$")


@dataclass(frozen=True)
class Gate:
    """A command of `upstream`, run in its tree. With `changed` it is given the Python files that our patches change or bring.
    `settings` are files of upstream's that may say what the command holds, beside pyproject.toml."""

    upstream: str
    name: str
    command: tuple[str, ...]
    changed: bool = False
    settings: tuple[str, ...] = ()

    def lacks_settings(self, tree: Path) -> str | None:
        """The file with upstream's settings that a source distribution lacks; a tool's own are nobody's gate."""
        if not self.settings or any((tree / name).is_file() for name in self.settings):
            return None
        project = tree / "pyproject.toml"
        return None if project.is_file() and f"[tool.{self.name}" in project.read_text() else self.settings[0]

    @property
    def script(self) -> str | None:
        """Upstream's own script, which a source distribution may lack; None for a tool."""
        return self.command[0] if self.command[0].endswith(".py") else None

    def says(self, tree: Path, files: Sequence[str]) -> Counter[str]:
        """What it has against a tree, one entry a complaint."""
        if self.changed and not files:
            return Counter()
        program = [sys.executable, *self.command] if self.script else [str(TOOLS / self.command[0]), *self.command[1:]]
        ended = subprocess.run([*program, *files], cwd=tree, capture_output=True, text=True, timeout=600, check=False)
        if ended.returncode == 0:
            return Counter()
        lines = [line.replace(f"{tree}/", "") for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        places = [f"{found[1]}: {found[2]}" for line in lines if (found := PLACE.match(line))]
        named = [line for line in lines if re.match("would reformat|ERROR: ", line)]
        # A script of upstream's stops at its first complaint, which is its last line.
        return Counter(places + named or lines[-1:] or [f"exit status {ended.returncode}"])


CONCISE = ("--no-cache", "--output-format", "concise")
RUFF = (("ruff", ("ruff", "check", *CONCISE)), ("format", ("ruff", "format", "--check", *CONCISE)))
GATES = [
    Gate(
        "verl",
        "licences",
        (f"{CHECKS}check_license.py", "--directories", *["examples", "recipe", "scripts", "tests", "verl", "setup.py"]),
    ),
    Gate("verl", "device names", (f"{CHECKS}check_device_api_usage.py", "--directory", "./verl")),
    Gate("verl", "device names of recipes", (f"{CHECKS}check_device_api_usage.py", "--directory", "./recipe")),
    Gate("verl", "docstrings", (f"{CHECKS}check_docstrings.py",)),
    Gate("verl", "dates of documents", (f"{CHECKS}check_docs_time_info.py",)),
    Gate("verl", "places of tests", (f"{CHECKS}validate_structure.py",)),
    *(Gate(upstream, name, command) for upstream in ("verl", "vllm", "vllm-ascend") for name, command in RUFF),
    Gate("megatron-lm", "black", ("black", "--check", "--skip-magic-trailing-comma"), changed=True),
    Gate("megatron-lm", "isort", ("isort", "--check"), changed=True, settings=(".isort.cfg",)),
    Gate("megatron-lm", "pylint", ("pylint", "--score=n"), changed=True, settings=(".pylintrc",)),
]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="the unpatched trees, a folder an upstream")
    parser.add_argument("--patched", type=Path, required=True, help="the patched ones")
    asked = parser.parse_args(arguments)
    more, ran = 0, 0
    for gate in GATES:
        trees = [(side / gate.upstream).resolve() for side in (asked.base, asked.patched)]
        if reason := _missing(gate, trees):
            print(f"{gate.upstream:12} {gate.name:24} not run: {reason}")
            continue
        changed = list(changed_files(*trees)) if gate.changed else []
        before, after = (gate.says(tree, [file for file in changed if (tree / file).is_file()]) for tree in trees)
        new = after - before
        print(f"{gate.upstream:12} {gate.name:24} {before.total():5} of upstream's, {new.total()} more")
        for complaint in sorted(new.elements()):
            print(f"  {complaint}")
        more, ran = more + new.total(), ran + 1
    if not ran:
        print("no gate could be run", file=sys.stderr)
    return 0 if ran and not more else 1


def changed_files(base: Path, patched: Path) -> Iterator[str]:
    """Python files of the patched tree that are other, or not there, in the base tree."""
    for file in sorted(patched.rglob("*.py")):
        name = str(file.relative_to(patched))
        if not (base / name).is_file() or not filecmp.cmp(base / name, file, shallow=False):
            yield name


def _missing(gate: Gate, trees: Sequence[Path]) -> str | None:
    for tree in trees:
        if not tree.is_dir():
            return f"no {tree}"
        if gate.script and not (tree / gate.script).is_file():
            return f"the source distribution has no {gate.script}"
        if file := gate.lacks_settings(tree):
            return f"the source distribution has no {file}, upstream's settings"
    return None


if __name__ == "__main__":
    sys.exit(main())
