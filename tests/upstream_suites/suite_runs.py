"""Runs one of upstream's suites on one tree, and reads what became of each test."""

from __future__ import annotations

import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

SUITES = Path(__file__).resolve().parent
sys.path[:0] = [str(SUITES.parent / "behaviour"), str(SUITES.parent)]

# The second name is the harness's own; a suite's ranks and a probe's are told who they are in the same words.
from harness import clean_environment, rank_variables  # noqa: E402  (found through the line above)
from processes import Finished, free_port, run_group  # noqa: E402
from trees import given_trees  # noqa: E402

# The worst is kept when a test has several entries: one that passes and whose tear-down fails is an error.
SEVERITY = ("passed", "skipped", "failed", "error")
COPY_WITHOUT = shutil.ignore_patterns(".git", "__pycache__")


@dataclass(frozen=True)
class Switch:
    """How a feature is turned on for tests that know nothing of it: a variable, or another default in one file."""

    feature: str
    env: dict[str, str] = field(default_factory=dict)
    file: str = ""
    replace: str = ""
    replacement: str = ""
    differs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """A change of the copied tests, the same on both sides, with which they can run here."""

    file: str
    replace: str
    replacement: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """One entry of suites.yaml, which says what the fields mean."""

    name: str
    upstream: str
    args: list[str]
    need: list[str] = field(default_factory=list)
    standins: list[str] = field(default_factory=list)
    plugin: str = ""
    procs: int = 1
    copy: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    deselect: dict[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    one_at_a_time: bool = False
    slow: bool = False
    partial: bool = False
    switches: list[Switch] = field(default_factory=list)
    added: dict[str, Path] = field(default_factory=dict)

    @property
    def edited(self) -> dict[str, str]:
        """Each edited file with the reasons, in the order of the edits and each once."""
        files = dict.fromkeys(one.file for one in self.edits)
        return {file: "; ".join(dict.fromkeys(one.reason for one in self.edits if one.file == file)) for file in files}

    @property
    def upstreams(self) -> list[str]:
        return [self.upstream, *self.need]


@dataclass(frozen=True)
class Run:
    """One run on one tree: the outcome of each test id, and how pytest itself ended (of several ranks the worst)."""

    outcomes: dict[str, str]
    finished: Finished


def load_suites(path: Path) -> list[Suite]:
    """Reads suites.yaml; raises TypeError on an unknown key and ValueError on what is left out or edited without a reason."""
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["suites"]
    for entry in entries:
        deselected = entry.get("deselect", [])
        if any(not one.get("reason") for one in deselected):
            raise ValueError(f"{path.name}: {entry['name']}: each deselected test needs a reason")
        entry["deselect"] = {one["id"]: one["reason"] for one in deselected}
        entry["edits"] = [Edit(replacement=one.pop("with"), **one) for one in entry.get("edits", [])]
        if any(not one.reason for one in entry["edits"]):
            raise ValueError(f"{path.name}: {entry['name']}: each edit needs a reason")
        entry["switches"] = [read_switch(one) for one in entry.get("switches", [])]
    return [Suite(**entry) for entry in entries]


def read_switch(entry: dict[str, Any]) -> Switch:
    """One entry under `switches`; raises ValueError on a test that is to differ without a reason."""
    differs = entry.pop("differs", [])
    if any(not one.get("reason") for one in differs):
        raise ValueError(f"switch {entry['feature']}: each test that differs needs a reason")
    entry["replacement"] = entry.pop("with", "")
    return Switch(**entry, differs={one["id"]: one["reason"] for one in differs})


def switched_on(trees: Path, upstream: str, switch: Switch, scratch: Path) -> Path:
    """A folder with the same trees, in which the feature's default is on. Raises ValueError when that is not one place."""
    if not switch.file:
        return trees
    source = trees / upstream / switch.file
    text = source.read_text(encoding="utf-8")
    if text.count(switch.replace) != 1:
        raise ValueError(f"{switch.feature}: {switch.file} holds {switch.replace!r} {text.count(switch.replace)} times")
    scratch.mkdir(parents=True)
    for tree in trees.iterdir():
        if tree.name != upstream:
            (scratch / tree.name).symlink_to(tree.resolve())
    shutil.copytree(trees / upstream, scratch / upstream, symlinks=True, ignore=COPY_WITHOUT)
    (scratch / upstream / switch.file).write_text(text.replace(switch.replace, switch.replacement), encoding="utf-8")
    return scratch


def carried(suite: Suite, trees: Path) -> tuple[Suite, list[str]]:
    """The suite with those of its tests that a tree carries, where it may be `partial`, and what was left out."""
    if not suite.partial:
        return suite, []
    tests = [one for one in suite.args if not one.startswith("-")]
    absent = [one for one in tests if not (trees / suite.upstream / one).exists()]
    return replace(suite, args=[one for one in suite.args if one not in absent]), absent


def missing(suite: Suite, trees: Path) -> str:
    """Why the suite cannot run on these trees; empty when it can."""
    for name in suite.upstreams:
        if not (trees / name).is_dir():
            return f"no tree of {name}"
    some, _ = carried(suite, trees)
    if any(not one.startswith("-") for one in some.args):
        suite = some
    paths = [*suite.copy, *(one for one in suite.args if not one.startswith("-"))]
    absent = [one for one in paths if not (trees / suite.upstream / one.partition("::")[0]).exists()]
    # What lies in a folder that is absent need not be named.
    named = [one for one in dict.fromkeys(absent) if not any(one.startswith(f"{other}/") for other in absent)]
    return f"the tree of {suite.upstream} carries no {', '.join(named)}" if named else ""


def run_suite(suite: Suite, trees: Path, python: Path, scratch: Path, only: Sequence[str] = ()) -> Run:
    """Runs the suite, or `only` the given node ids of it, in a new folder under `scratch`."""
    folder = scratch / "tests"
    scratch.mkdir(parents=True)
    _copy_out(suite, trees / suite.upstream, folder)
    environment = _environment(suite, trees, python, scratch)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
    command += ["-p", f"{suite.plugin}_plugin"] if suite.plugin else []
    if only:
        command += [*(one for one in suite.args if one.startswith("-")), *only]
    else:
        command += [*suite.args, *(f"--deselect={one}" for one in suite.deselect)]
    reports = [scratch / f"report{rank}.xml" for rank in range(suite.procs)]
    ranks: list[dict[str, str]] = [{}] if suite.procs == 1 else rank_variables(suite.procs)
    environments = [
        # Tests of several ranks share what lies beside the folders of the ranks.
        environment | variables | {"PYTEST_ADDOPTS": f"--junitxml={report} --basetemp={scratch}/tmp/{rank}"}
        for rank, (variables, report) in enumerate(zip(ranks, reports, strict=True))
    ]
    (scratch / "tmp").mkdir()
    finished = run_group(command, environments, folder, suite.timeout)
    return Run(worst([read_report(one) for one in reports]), max(finished, key=_how_bad))


def _how_bad(finished: Finished) -> int:
    return sys.maxsize if finished.returncode is None else abs(finished.returncode)


def worst(reports: Sequence[dict[str, str]]) -> dict[str, str]:
    """The outcome of each test over the reports of all ranks; a rank that did not report it makes it an error."""
    tests = {test for report in reports for test in report}
    return {test: max((report.get(test, "error") for report in reports), key=SEVERITY.index) for test in sorted(tests)}


def _environment(suite: Suite, trees: Path, python: Path, scratch: Path) -> dict[str, str]:
    environment = clean_environment(python, given_trees(trees), suite.upstreams, suite.standins, scratch)
    if suite.plugin:
        environment["PYTHONPATH"] += f"{os.pathsep}{SUITES / 'plugins' / suite.plugin}"
    for name, value in suite.env.items():
        environment[name] = value.format(suites=SUITES, scratch=scratch, port=free_port())
    return environment


def _copy_out(suite: Suite, tree: Path, folder: Path) -> None:
    if not suite.copy:
        shutil.copytree(tree, folder, symlinks=True, ignore=COPY_WITHOUT)
    for name in suite.copy:
        folder.mkdir(exist_ok=True)
        if (tree / name).is_dir():
            shutil.copytree(tree / name, folder / name, symlinks=True, ignore=COPY_WITHOUT)
        else:
            shutil.copy(tree / name, folder / name)
    for name, file in suite.added.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / name)
    for edit in suite.edits:
        _apply(edit, folder)


def _apply(edit: Edit, folder: Path) -> None:
    """Raises ValueError when the text is not there: upstream has changed, and the edit has to be looked at."""
    text = (folder / edit.file).read_text(encoding="utf-8")
    if edit.replace not in text:
        raise ValueError(f"{edit.file} does not hold {edit.replace!r}, which the edit of the suite replaces")
    (folder / edit.file).write_text(text.replace(edit.replace, edit.replacement), encoding="utf-8")


def read_report(path: Path) -> dict[str, str]:
    """Test id -> passed, failed, error, skipped; empty when pytest wrote no report."""
    outcomes: dict[str, str] = {}
    if not path.exists():
        return outcomes
    for case in ElementTree.parse(path).iter("testcase"):
        found = next((one for one in ("error", "failure", "skipped") if case.find(one) is not None), "passed")
        outcome = {"failure": "failed"}.get(found, found)
        name = node_id(case)
        outcomes[name] = max(outcomes.get(name, "passed"), outcome, key=SEVERITY.index)
    return outcomes


def node_id(case: ElementTree.Element) -> str:
    """The id that pytest takes on its command line: file::class::name. A file that cannot be collected has no name."""
    file, classes, name = case.get("file") or "", case.get("classname") or "", case.get("name") or ""
    if not file:
        return f"{classes}::{name}" if classes else name
    module = file.removesuffix(".py").replace("/", ".")
    inner = classes.removeprefix(module).strip(".")
    return "::".join([file, *filter(None, inner.split(".")), name])
