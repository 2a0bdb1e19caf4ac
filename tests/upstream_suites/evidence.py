"""What a comparison leaves behind: which trees, which programs, counts and differences, without paths of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPORT_VERSION = 1
PACKAGES = ("torch", "numpy", "transformers", "tensordict", "ray", "pytest", "pydantic")
# What a build or an sdist adds to a tree; bytes of Python are made by whoever imported it.
GENERATED = (
    "PKG-INFO",
    "**/*.egg-info/**",
    "**/__pycache__/**",
    "vllm/_version.py",
    "vllm_ascend/_build_info.py",
)
GIT_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LANG": "C"}


@dataclass(frozen=True)
class Difference:
    """A test id whose outcome is not the same; `alone` holds the outcomes of its reruns by itself on each side;
    `expected` is the reason for which it may differ with a feature on."""

    test: str
    base: str
    patched: str
    alone_base: list[str] = field(default_factory=list)
    alone_patched: list[str] = field(default_factory=list)
    expected: str = ""

    @property
    def flaky(self) -> bool:
        """Whether it differs within one tree too, run by itself."""
        return len(set(self.alone_base)) > 1 or len(set(self.alone_patched)) > 1


@dataclass
class Comparison:
    """One suite on both sides; `not_passed` holds the ids that do not pass on the unpatched tree either."""

    suite: str
    upstream: str
    pytest_args: list[str]
    deselected: dict[str, str]
    feature: str = ""  # the feature that was on; empty with every switch off
    skipped: str = ""
    problems: list[str] = field(default_factory=list)
    base: dict[str, int] = field(default_factory=dict)
    patched: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    not_passed: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    ranks: int = 1
    edited: dict[str, str] = field(default_factory=dict)  # file of the tests -> why it is changed, on both sides
    absent: list[str] = field(default_factory=list)  # folders of tests that the tree does not carry
    kept: bool = False  # the unpatched tree was not run: the patched one gave what is on record for it

    @property
    def real(self) -> list[Difference]:
        return [one for one in self.differences if not one.flaky and not one.expected]

    @property
    def title(self) -> str:
        return f"{self.suite}, {self.feature} on" if self.feature else self.suite

    @property
    def status(self) -> str:
        if self.skipped:
            return "skipped"
        return "DIFFERENT" if self.real or self.problems else "same"


def count(outcomes: dict[str, str]) -> dict[str, int]:
    return dict(sorted(Counter(outcomes.values()).items()))


def tree_of(folder: Path, objects: Path) -> str:
    """git's id of the folder's content less what is generated, computed in the object database `objects`.

    For a tree from git this is the id of the pin's tree, because ignored files that are tracked count.
    """
    environment = {**GIT_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "GIT_DIR": str(objects)}
    if not objects.exists():
        subprocess.run(["git", "init", "-q", "--bare", str(objects)], env=environment, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment["GIT_INDEX_FILE"] = f"{scratch}/index"
        add = ["git", "-c", "core.bare=false", "-c", "core.autocrlf=false", f"--work-tree={folder}", "add", "-Af", "."]
        add += [f":(exclude,glob){pattern}" for pattern in GENERATED]
        subprocess.run(add, cwd=folder, env=environment, check=True, capture_output=True)
        done = subprocess.run(["git", "write-tree"], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def base_trees(names: Iterable[str], base: Path) -> dict[str, str]:
    """The id of each unpatched tree."""
    with tempfile.TemporaryDirectory() as scratch:
        return {name: tree_of(base / name, Path(scratch, "objects.git")) for name in sorted(names)}


def revisions(names: list[str], base: Path, patched: Path) -> dict[str, dict[str, Any]]:
    """For each upstream: the tree id on either side, and the files in which they differ."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        objects = Path(scratch, "objects.git")
        for name in names:
            trees = {side: tree_of(folder / name, objects) for side, folder in (("base", base), ("patched", patched))}
            command = ["git", f"--git-dir={objects}", "diff-tree", "-r", "--name-only", trees["base"], trees["patched"]]
            changed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            found[name] = {**trees, "changed": changed}
    return found


def programs(python: Path) -> dict[str, str]:
    """Versions of the interpreter that runs the suites, and of the packages that matter."""
    code = (
        "import json, platform, importlib.metadata as m\n"
        "def version(name):\n"
        "    try: return m.version(name)\n"
        "    except m.PackageNotFoundError: return 'absent'\n"
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {PACKAGES}}}}}))"
    )
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def write(page: Path, command: str, facts: dict[str, Any], comparisons: list[Comparison]) -> None:
    """Writes the page and, beside it, the same as JSON."""
    page.parent.mkdir(parents=True, exist_ok=True)
    suites = [{**asdict(one), "status": one.status} for one in comparisons]
    report = {"version": REPORT_VERSION, "command": command, **facts, "suites": suites}
    page.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    page.write_text(_markdown(command, facts, comparisons), encoding="utf-8")


def _markdown(command: str, facts: dict[str, Any], comparisons: list[Comparison]) -> str:
    lines = ["# Upstream's own suites on the unpatched and the patched trees", ""]
    lines += [f"Generated by `{command}` on {facts['date']}.", ""]
    lines += ["Programs: " + ", ".join(f"{name} {version}" for name, version in facts["programs"].items()) + ".", ""]
    lines += ["| upstream | unpatched tree | patched tree | files that differ |", "|---|---|---|---|"]
    for name, tree in facts["revisions"].items():
        changed = ", ".join(f"`{path}`" for path in tree["changed"]) or "none"
        lines.append(f"| {name} | `{tree['base']}` | `{tree['patched']}` | {changed} |")
    lines += ["", "| suite | unpatched | patched | seconds | outcome of each test id |", "|---|---|---|---|---|"]
    lines += [_row(one) for one in comparisons]
    for one in comparisons:
        lines += _section(one)
    return "\n".join(lines) + "\n"


def _row(one: Comparison) -> str:
    if one.skipped:
        return f"| {one.title} | | | | skipped: {one.skipped} |"
    counts = [", ".join(f"{number} {name}" for name, number in side.items()) for side in (one.base, one.patched)]
    seconds = " / ".join(
        f"{one.seconds[side]:.0f}" if side in one.seconds else "on record" for side in ("base", "patched")
    )
    return f"| {one.title} | {counts[0]} | {counts[1]} | {seconds} | {one.status}{_besides(one)} |"


def _besides(one: Comparison) -> str:
    expected = sum(bool(diff.expected) for diff in one.differences)
    flaky = len(one.differences) - len(one.real) - expected
    return (f", {expected} differ as they must" if expected else "") + (f", {flaky} flaky" if flaky else "")


def _section(one: Comparison) -> list[str]:
    ranks = f", in {one.ranks} ranks" if one.ranks > 1 else ""
    lines = ["", f"## {one.title}", "", f"`pytest {' '.join(one.pytest_args)}`{ranks}", ""]
    lines += [f"- not in the tree, and not run: `{folder}`" for folder in one.absent]
    lines += [f"- edited on both sides: `{file}`: {reason}" for file, reason in one.edited.items()]
    lines += [f"- not run: `{test}`: {reason}" for test, reason in one.deselected.items()]
    lines += [f"- {problem}" for problem in one.problems]
    for diff in one.differences:
        if diff.expected:
            lines.append(f"- differs as it must: `{diff.test}`: {diff.base} / {diff.patched}: {diff.expected}")
            continue
        kind = "flaky" if diff.flaky else "differs"
        alone = f"alone: {', '.join(diff.alone_base)} / {', '.join(diff.alone_patched)}"
        lines.append(f"- {kind}: `{diff.test}`: {diff.base} / {diff.patched} ({alone})")
    return lines if lines[-1] else lines[:-1]
