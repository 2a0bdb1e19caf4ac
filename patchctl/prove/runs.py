"""Runs behaviour tests on trees, each file in its own pytest process, and judges the results; makes the mutated trees.

The distribution's root conftest.py must support: `--trees DIR`; `--stack UPSTREAM/STACK` for the stack of each tree;
`--used FILE`, to which it writes the distribution's files read as tests and probes; a property `mark` (on, off, misuse)
for each test in the JUnit report; and `--dropped UPSTREAM/FEATURE`, which runs the tests of a feature whose stack does
not have it.

A mutation is one replacement in one file of a patched tree, after which a test of the feature must be red.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

from patchctl import process_group
from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where
from patchctl.scratch import scratch

MARKS = ("on", "off", "misuse")
TIMEOUT_S = 1800
CACHE = "patchctl-proof-cache-"
# A fixture that runs the probe fails in the set-up of its tests; pytest calls that an error. These are the harness's
# words for a probe that ran and failed, which is as red as an assertion; any other error in set-up is a fault. So is a
# probe that its time limit killed, wherever it ran: on a loaded machine that shows nothing of the code.
PROBE_FAILED = re.compile(r'failed on setup with "AssertionError: \S+ \(rank \d+\) ended with')
LATE = "was killed after"
TIMED_OUT = re.compile(rf"(AssertionError: \S+ \(rank \d+\)|^pytest) {LATE}")
# And so is one that a busy or full machine ended: a mutation that is red by chance is none.
OF_THE_MACHINE = re.compile(
    r"\[Errno (12|23|24|28|98)\]|EADDRINUSE|[Aa]ddress already in use|[Nn]o space left|[Cc]annot allocate memory"
)
# The program's output follows these words; the cause is in its last lines.
PROBE_SAID = re.compile(r"AssertionError: \S+ \(rank \d+\)(?: ended with|:) ")
MESSAGE_CHARS = 200


def _below(cache: Path, trees: Path) -> Path:
    return cache.joinpath(*trees.resolve().parts[1:])


def cores() -> int:
    """How many runs of pytest go on at a time unless told: one a core, and no more than memory bears (a probe of vLLM takes 2 GiB)."""
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class PytestOutcome:
    """The result of one test."""

    test: Annotated[str, Doc("test name", line=True)]
    mark: Annotated[str, Doc("`on`, `off` or `misuse`", line=True)]
    result: Annotated[str, Doc("`passed`, `failed`, `error` or `skipped`", line=True)]
    message: Annotated[str, Doc("first line of pytest's message; empty if the test passed", line=True)]

    @property
    def is_late(self) -> bool:
        return bool(TIMED_OUT.search(self.message))


@dataclass
class PytestRun:
    """The outcomes of one or more runs and the files that they used; for a single run, the `command` that repeats it, its output,
    and the `log` that keeps that."""

    outcomes: list[PytestOutcome] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    command: str = ""
    output: str = ""
    log: Path | None = None
    parts: list[PytestRun] = field(default_factory=list)

    @property
    def skipped(self) -> list[PytestOutcome]:
        return [one for one in self.outcomes if one.result == "skipped"]

    @property
    def late(self) -> bool:
        return any(one.is_late for one in self.outcomes)

    @property
    def red(self) -> PytestOutcome | None:
        return next((one for one in self.outcomes if one.result == "failed"), None)

    def add(self, other: PytestRun) -> None:
        self.outcomes += other.outcomes
        self.used |= other.used
        self.parts.append(other)


@dataclass(frozen=True)
class Bench:
    """Where tests run: the distribution's root, the stack of every tree as UPSTREAM/STACK, the folder that keeps what pytest
    printed of runs that were not green, and one in which runs keep for each other what Python compiled of the trees.
    `jobs` test files run at a time, each for `timeout` seconds at most."""

    root: Path
    stacks: tuple[str, ...]
    logs: Path
    cache: Path
    jobs: int = 1
    timeout: float = TIMEOUT_S

    @staticmethod
    def of(root: Path, stacks: Mapping[str, str], cache: Path, jobs: int = 1, timeout: float = TIMEOUT_S) -> Bench:
        """The bench of a distribution for trees with these stacks, by upstream."""
        return Bench(root, tuple(f"{u}/{s}" for u, s in stacks.items()), root / "edit/prove-logs", cache, jobs, timeout)

    def run(
        self, tests: Sequence[str], trees: Path, marks: str, note: Callable[[str], None], *options: str
    ) -> PytestRun:
        """Run each test file in its own process, slow tests included; `note` is called as each begins."""

        def run_file(test: str) -> PytestRun:
            note(f"{Path(test).name} on the {trees.name} trees, file {tests.index(test) + 1} of {len(tests)}")
            run = self._run(test, trees, marks, *options)
            if run.output and any(one.result in ("failed", "error") for one in run.outcomes):
                run.log = self.logs / f"{Path(test).stem}.{trees.name}.log"
                replace_file(run.log, run.output.encode())
            return run

        runs, total = dict(process_group.each(run_file, tests, self.jobs)), PytestRun()
        for test in tests:
            total.add(runs[test])
        return total

    def _run(self, test: str, trees: Path, marks: str, *options: str) -> PytestRun:
        with scratch("patchctl-proof-") as folder:
            report, used = folder / "report.xml", folder / "used.json"
            command = self._command(test, trees, f"--junitxml={report}", f"--used={used}", f"--basetemp={folder}/tmp")
            command += [*options, *(["-m", marks] if marks else [])]
            typed = self._as_typed(test, trees, marks, *options)
            try:
                done = process_group.run(
                    command,
                    cwd=self.root,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=self.timeout,
                )
            except subprocess.TimeoutExpired:
                late = PytestOutcome(Path(test).name, "", "error", f"pytest {LATE} {self.timeout:.0f} s")
                return PytestRun([late], {test}, typed)
            if not report.exists():
                said = (done.stdout.strip().splitlines() or [""])[-1]
                outcome = PytestOutcome(Path(test).name, "", "error", f"pytest ended with {done.returncode}: {said}")
                return PytestRun([outcome], command=typed, output=done.stdout)
            outcomes = [outcome_of(case) for case in ElementTree.parse(report).iter("testcase")]
            files = {test, *(json.loads(used.read_text()) if used.is_file() else [])}
            return PytestRun(outcomes, files, typed, done.stdout)

    def _command(self, test: str, trees: Path, *options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command += [f"--rootdir={self.root}", f"--confcutdir={self.root}", test, "--slow"]
        return [*command, f"--trees={trees.resolve()}", *(f"--stack={name}" for name in self.stacks), *options]

    def _environment(self) -> dict[str, str]:
        """Records are of programs that were started, not forked."""
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PATCHCTL_TEST_FORKS": "0", "PATCHCTL_PROOF_CACHE": str(self.cache)}
        return os.environ | own

    def debug(self, tests: Sequence[str], name: str, trees: Path) -> int:
        """Run the tests that `name` selects (pytest's -k) on `trees`, with their output on this terminal; return pytest's exit code."""
        command = self._command(tests[0], trees, "-k", name, "-vv", "-s", "--showlocals", *tests[1:])
        print(f"PATCHCTL_TEST_FORKS=0 {shlex.join(command)}", file=sys.stderr, flush=True)
        return subprocess.run(command, cwd=self.root, env=self._environment(), check=False).returncode

    def _as_typed(self, test: str, trees: Path, marks: str, *options: str) -> str:
        """Return the command as a person would type it, without --stack: the workspace knows the stacks of its trees."""
        words = [sys.executable, "-m", "pytest", str(self.root / test), f"--trees={trees.resolve()}", "--slow"]
        return shlex.join([*words, *options, *(["-m", marks] if marks else [])])

    def _judged_late(self, run: PytestRun, test: str, patched: Path, mark: str) -> PytestRun:
        """A run that did not end: failed if the same tests are green on the patched trees now, which is part of what shows it."""
        green = self._run(test, patched, mark)
        if not green.outcomes or any(one.result != "passed" for one in green.outcomes):
            return run
        outcomes = [replace(one, mark=mark, result="failed") if one.is_late else one for one in run.outcomes]
        return PytestRun(outcomes, run.used | green.used, run.command, run.output)

    def run_mutant(self, mutant: Mutant, feature: str, tests: Sequence[str], trees: Path, patched: Path) -> PytestRun:
        """Run tests on the mutated trees until one fails, which is the proof, beginning with the part that it is named for.

        A test that does not end on them in time has failed if it is green on the `patched` trees right afterwards.
        """
        variant = mutant.name.partition(".")[2]

        def is_elsewhere(test: str) -> bool:
            part = Path(test).stem.removeprefix(f"test_{feature}").strip("_")
            return not part or not variant.startswith(part)

        with suppress(OSError):  # nothing is compiled yet, or it is being written
            shutil.copytree(_below(self.cache, patched), _below(self.cache, trees), copy_function=os.link)
        total = PytestRun()
        for test in sorted(tests, key=is_elsewhere):
            for mark in ("on", "misuse"):
                run = self._run(test, trees, mark, "-x")
                total.add(self._judged_late(run, test, patched, mark) if run.late else run)
                if total.red:
                    return total
        return total


def outcome_of(case: ElementTree.Element) -> PytestOutcome:
    """Return the outcome of a test case of pytest's report: `error` where neither the code nor an assertion failed."""
    marks = [prop.get("value", "") for prop in case.iter("property") if prop.get("name") == "mark"]
    name, mark = case.get("name", ""), ", ".join(marks)
    for result in ("error", "failure", "skipped"):
        found = case.find(result)
        if found is not None:
            message = found.get("message") or ""
            if TIMED_OUT.search(message) or OF_THE_MACHINE.search(_cause_of(message)):
                result = "error"
            elif result == "failure" or PROBE_FAILED.search(message):
                result = "failed"
            return PytestOutcome(name, mark, result, summary_of(message))
    return PytestOutcome(name, mark, "passed", "")


def summary_of(message: str) -> str:
    """Return one line of a test's message: its first, and for a failed probe also the error that ended it."""
    first, cause = message.strip().partition("\n")[0], _cause_of(message)
    return f"{first[:MESSAGE_CHARS]}: {cause[:MESSAGE_CHARS]}" if cause else first[:MESSAGE_CHARS]


def _cause_of(message: str) -> str:
    """Return the error that ended a probe; nothing if no probe failed."""
    first, _, rest = message.strip().partition("\n")
    return last_error(rest.rstrip('"')) if PROBE_SAID.search(first) else ""


def last_error(output: str) -> str:
    """Return the line that names the exception of the last traceback, else the last non-blank line."""
    _, found, after = output.rpartition("Traceback (most recent call last):\n")
    lines = [line.rstrip() for line in (after if found else output).splitlines() if line.strip()]
    if found:
        return next((line for line in lines if not line[0].isspace()), "")
    return next((line for line in reversed(lines) if not line.startswith("--- std")), "")


def judge_base(run: PytestRun) -> list[str]:
    """Return what is wrong with a run on unpatched trees: every `on` test must fail, every `off` test pass."""
    problems = [] if any(one.mark == "on" for one in run.outcomes) else ["no `on` test ran on the base"]
    for one in run.outcomes:
        wanted = {"on": "failed", "off": "passed"}.get(one.mark)
        if one.result not in (wanted, "skipped"):
            said = f": {one.message}" if one.message else ""
            problems.append(f"base: {one.mark} {one.test} {one.result}, must be {wanted}{said}")
    return problems


def judge_met(run: PytestRun) -> list[str]:
    """Return what is wrong with a run of only `on` tests on unpatched trees that should meet the need: all must pass."""
    problems = [] if run.outcomes else ["no `on` test ran on the base"]
    for one in run.outcomes:
        if one.result not in ("passed", "skipped"):
            problems.append(f"base: on {one.test} {one.result}: {one.message}")
    return problems


def judge_patched(run: PytestRun) -> list[str]:
    """Return what is wrong with a run on patched trees: every test must have one mark and pass."""
    problems = [] if run.outcomes else ["no test ran on the patched tree"]
    for one in run.outcomes:
        if one.mark not in MARKS:
            wanted = f"exactly one of the marks {', '.join(MARKS)}"
            problems.append(f"{one.test} needs {wanted}; it has {one.mark or 'none'}")
        if one.result not in ("passed", "skipped"):
            problems.append(f"patched: {one.mark} {one.test} {one.result}: {one.message}")
    return problems


def judge_mutant(mutant: Mutant, run: PytestRun) -> list[str]:
    """Return what is wrong if no test detects a mutation: that is a gap in the tests."""
    if any(one.result in ("failed", "skipped") for one in run.outcomes):
        return []
    counts = dict(Counter(one.result for one in run.outcomes))
    first = next((f"; {one.test}: {one.message}" for one in run.outcomes if one.result == "error"), "")
    return [f"mutant {mutant.name}: no `on` or `misuse` test fails ({counts}{first})"]


_KEYS = {"file", "replace", "with", "why"}


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file of a patched tree. `source` is its file below the root."""

    name: str
    source: str
    upstream: str
    file: str
    replace: str
    replacement: str


class MutationError(Exception):
    """The mutation cannot be made: it does not name exactly one place of the patched file."""


def load_mutants(root: Path, upstream: str, files: Iterable[str]) -> list[Mutant]:
    """Raises BadManifest for a file whose keys are not those of a mutation."""
    return [_load(root / file, file, upstream) for file in files]


def _load(path: Path, source: str, upstream: str) -> Mutant:
    import yaml

    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadManifest(f"the mutation cannot be read: {error}", where=Where(source)) from error
    if not isinstance(text, dict) or set(text) != _KEYS:
        raise BadManifest(f"the keys must be {', '.join(sorted(_KEYS))}", where=Where(source))
    file, old, new = (str(text[key]) for key in ("file", "replace", "with"))
    return Mutant(path.stem, source, upstream, file, old, new)


@contextmanager
def mutated(patched: Path, mutant: Mutant) -> Iterator[Path]:
    """A folder of trees like `patched` but for the mutation; nothing in `patched` is touched. Raises MutationError."""
    source = (patched / mutant.upstream).resolve()
    if not source.is_dir():
        # The tests say why they are skipped without it.
        yield patched
        return
    original = source / mutant.file
    text = original.read_text(encoding="utf-8") if original.is_file() else ""
    if (count := text.count(mutant.replace)) != 1:
        raise MutationError(f"mutant {mutant.name}: the text to replace occurs {count} times in {mutant.file}")
    with scratch("patchctl-mutant-", _beside(patched)) as folder:
        _link_tree(source, folder / mutant.upstream)
        _replace(folder / mutant.upstream / mutant.file, text.replace(mutant.replace, mutant.replacement))
        for other in patched.iterdir():
            if other.is_dir() and other.name not in (mutant.upstream, ".patchctl"):
                (folder / other.name).symlink_to(other.resolve())
        yield folder


def _beside(folder: Path) -> Path | None:
    """Where hard links to the folder's files can be made: next to it, when that can be written."""
    parent = folder.resolve().parent
    return parent if os.access(parent, os.W_OK) else None


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(
        source, target, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns(".git", "__pycache__")
    )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _replace(path: Path, text: str) -> None:
    """Writes a new file in place of a hard link, whose other names keep the old content."""
    path.unlink()
    path.write_text(text, encoding="utf-8")
