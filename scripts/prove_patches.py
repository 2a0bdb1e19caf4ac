#!/usr/bin/env python3
"""Proves each patch by its behaviour tests: red without it, green with it, red again when its core is taken out.

For every feature, by its tests/behaviour/<upstream>/test_<feature>.py and, of a feature with several parts, its
test_<feature>_<part>.py:

- on the unpatched trees (--base) every `on` test fails and every `off` test passes;
- on the patched trees (--patched) every `on`, `off` and `misuse` test passes;
- with --mutants, on a copy of the patched tree with one mutation of tests/behaviour/mutants/*.yaml at least one `on` or
  `misuse` test fails, for each mutation. A file's `misuse` tests, which alone see a refusal that is taken out, run where
  its `on` tests pass; how many mutations only they saw is said.

Exit status: 0 when all that could be run is so, 1 when something is not or when nothing could be run. What was skipped
is listed with its reason and counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from patchctl.catalog.features import feature_tested

REPO = Path(__file__).resolve().parents[1]
BEHAVIOUR = REPO / "tests" / "behaviour"
MARKS = ("on", "off", "misuse")
REPORT_VERSION = 1
RUN_TIMEOUT_S = 3600
# A fixture that runs the probe fails in the set-up of its tests; pytest calls that an error. These are the harness's
# words for a probe that ran and failed, which is as red as an assertion; any other error in set-up is a fault.
PROBE_FAILED = re.compile(r'failed on setup with "AssertionError: \S+ \(rank \d+\) (ended with|was killed after)')


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file of a patched tree."""

    name: str
    feature: str
    upstream: str
    file: str
    replace: str
    replacement: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """What became of one test: `result` is passed, failed, error or skipped."""

    test: str
    mark: str
    result: str
    message: str


@dataclass
class Verdict:
    """What was shown for one feature of one upstream."""

    feature: str
    upstream: str
    base: list[Outcome] = field(default_factory=list)
    patched: list[Outcome] = field(default_factory=list)
    mutants: dict[str, list[Outcome]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        return [*self.base, *self.patched, *(one for run in self.mutants.values() for one in run)]

    @property
    def skipped(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.result == "skipped"]

    @property
    def status(self) -> str:
        if self.problems:
            return "NOT PROVED"
        return "skipped" if self.skipped else "proved"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    mutants = load_mutants(BEHAVIOUR / "mutants")
    tests = {
        (upstream, feature): files
        for (upstream, feature), files in find_tests(BEHAVIOUR, mutants).items()
        if not options.feature or feature in options.feature
    }
    if unknown := set(options.feature) - {feature for _, feature in tests}:
        print(f"no tests of {', '.join(sorted(unknown))} under {BEHAVIOUR.relative_to(REPO)}", file=sys.stderr)
        return 1
    verdicts = []
    for (upstream, feature), files in tests.items():
        verdict = Verdict(feature, upstream)
        prove(verdict, files, options.base, options.patched, mutants if options.mutants else None)
        print(line(verdict), flush=True)
        for text in details(verdict):
            print(f"    {text}", flush=True)
        verdicts.append(verdict)
    orphans = [] if options.feature else orphaned(mutants, tests)
    for text in orphans:
        print(text)
    counts = Counter(verdict.status for verdict in verdicts)
    print(", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "nothing to prove")
    if options.json:
        write_json(options.json, verdicts, orphans)
    return 0 if counts["proved"] and not counts["NOT PROVED"] and not orphans else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, metavar="DIR", help="unpatched trees: DIR/verl, ...")
    parser.add_argument("--patched", type=Path, required=True, metavar="DIR", help="patched trees: DIR/verl, ...")
    parser.add_argument("--mutants", action="store_true", help="also show that each mutation turns a test red")
    parser.add_argument("--feature", action="append", default=[], metavar="NAME", help="this feature only (repeatable)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was shown, test by test")
    return parser.parse_args(arguments)


def find_tests(folder: Path, mutants: Sequence[Mutant]) -> dict[tuple[str, str], list[Path]]:
    """The test files in the folders of upstreams, by upstream and feature."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*/test_*.py")):
        found.setdefault((upstream_of(path), feature_of(path, mutants)), []).append(path)
    return found


def feature_of(test: Path, mutants: Sequence[Mutant]) -> str:
    """The feature that the file is named after; where no mutation is for that one, the feature whose part it tests."""
    features = {mutant.feature for mutant in mutants if mutant.upstream == upstream_of(test)}
    return feature_tested(test.stem.removeprefix("test_"), features)


def upstream_of(test: Path) -> str:
    """The upstream's name; folders are written with _ so that they can be packages."""
    return test.parent.name.replace("_", "-")


def load_mutants(folder: Path) -> list[Mutant]:
    """Reads every mutation; raises ValueError naming the file when a key is missing or unknown."""
    keys = {"feature", "upstream", "file", "replace", "with", "why"}
    mutants = []
    for path in sorted(folder.glob("*.yaml")):
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(text, dict) or set(text) != keys:
            raise ValueError(f"{path.relative_to(REPO)}: the keys must be {', '.join(sorted(keys))}")
        text["replacement"] = text.pop("with")
        mutants.append(Mutant(name=path.stem, **{key: str(value) for key, value in text.items()}))
    return mutants


def orphaned(mutants: Sequence[Mutant], tests: Collection[tuple[str, str]]) -> list[str]:
    """One sentence for each mutation that no test file is for."""
    return [
        f"mutants/{mutant.name}.yaml: no test_{mutant.feature}.py of {mutant.upstream}"
        for mutant in mutants
        if (mutant.upstream, mutant.feature) not in tests
    ]


def prove(verdict: Verdict, tests: Sequence[Path], base: Path, patched: Path, mutants: Sequence[Mutant] | None) -> None:
    """Runs one feature's tests on all trees; `mutants` is None when mutations are not asked for."""
    verdict.base = [one for test in tests for one in run_tests(test, base, "on or off")]
    verdict.patched = [one for test in tests for one in run_tests(test, patched, "")]
    verdict.problems += judge_base(verdict.base) + judge_patched(verdict.patched)
    if mutants is None:
        return
    own = [one for one in mutants if (one.feature, one.upstream) == (verdict.feature, verdict.upstream)]
    if not own:
        verdict.problems.append("no mutant")
    for mutant in own:
        try:
            with mutated(patched, mutant) as trees:
                verdict.mutants[mutant.name] = run_mutant(mutant, tests, trees)
        except MutationError as error:
            verdict.problems.append(str(error))
            continue
        verdict.problems += judge_mutant(mutant, verdict.mutants[mutant.name])


def run_mutant(mutant: Mutant, tests: Sequence[Path], trees: Path) -> list[Outcome]:
    """Runs the tests on the mutated trees until one is red, which is proof: first those of the part that it is named for."""
    variant = mutant.name.partition(".")[2]

    def is_elsewhere(test: Path) -> bool:
        part = test.stem.removeprefix(f"test_{mutant.feature}").strip("_")
        return not part or not variant.startswith(part)

    outcomes: list[Outcome] = []
    for test in sorted(tests, key=is_elsewhere):
        for mark in ("on", "misuse"):
            outcomes += run_tests(test, trees, mark, "-x")
            if any(one.result == "failed" for one in outcomes):
                return outcomes
    return outcomes


def judge_base(outcomes: Sequence[Outcome]) -> list[str]:
    problems = [] if any(one.mark == "on" for one in outcomes) else ["no `on` test ran on the base"]
    for one in outcomes:
        wanted = {"on": "failed", "off": "passed"}.get(one.mark)
        if one.result not in (wanted, "skipped"):
            problems.append(f"base: {one.mark} {one.test} {one.result}, must be {wanted}")
    return problems


def judge_patched(outcomes: Sequence[Outcome]) -> list[str]:
    problems = [] if outcomes else ["no test ran on the patched tree"]
    for one in outcomes:
        if one.mark not in MARKS:
            problems.append(
                f"{one.test} needs exactly one of the marks {', '.join(MARKS)}; it has {one.mark or 'none'}"
            )
        if one.result not in ("passed", "skipped"):
            problems.append(f"patched: {one.mark} {one.test} {one.result}: {one.message}")
    return problems


def judge_mutant(mutant: Mutant, outcomes: Sequence[Outcome]) -> list[str]:
    if any(one.result in ("failed", "skipped") for one in outcomes):
        return []
    return [f"mutant {mutant.name}: no `on` or `misuse` test fails ({dict(Counter(one.result for one in outcomes))})"]


def run_tests(test: Path, trees: Path, marks: str, *options: str) -> list[Outcome]:
    """Runs a test file, slow tests too, with pytest in a process of its own; reads the outcomes from its JUnit report."""
    with tempfile.TemporaryDirectory(prefix="prove-") as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command += [str(test.relative_to(REPO)), f"--trees={trees.resolve()}", f"--junitxml={report}", "--slow"]
        command += [f"--basetemp={scratch}/tmp", *options, *(["-m", marks] if marks else [])]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if not report.exists():
            return [Outcome(test.name, "", "error", f"pytest ended with {done.returncode}: {_last_line(done.stdout)}")]
        return [_outcome(case) for case in ElementTree.parse(report).iter("testcase")]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _outcome(case: ElementTree.Element) -> Outcome:
    marks = [prop.get("value", "") for prop in case.iter("property") if prop.get("name") == "mark"]
    name, mark = case.get("name", ""), ", ".join(marks)
    for result in ("error", "failure", "skipped"):
        found = case.find(result)
        if found is not None:
            message = found.get("message") or ""
            if result == "failure" or PROBE_FAILED.search(message):
                result = "failed"
            return Outcome(name, mark, result, _shortened(message))
    return Outcome(name, mark, "passed", "")


def _shortened(message: str) -> str:
    return message.strip().partition("\n")[0][:200]


class MutationError(Exception):
    """The mutation cannot be made: it does not name exactly one place of the patched file."""


@contextmanager
def mutated(patched: Path, mutant: Mutant) -> Iterator[Path]:
    """A folder of trees like `patched` but for the mutation; nothing in `patched` is touched."""
    source = (patched / mutant.upstream).resolve()
    if not source.is_dir():
        # The tests say why they are skipped without it.
        yield patched
        return
    original = source / mutant.file
    text = original.read_text(encoding="utf-8") if original.is_file() else ""
    if (count := text.count(mutant.replace)) != 1:
        raise MutationError(f"mutant {mutant.name}: the text to replace occurs {count} times in {mutant.file}")
    folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=_beside(patched)))
    try:
        _link_tree(source, folder / mutant.upstream)
        _replace(folder / mutant.upstream / mutant.file, text.replace(mutant.replace, mutant.replacement))
        for other in patched.iterdir():
            if other.is_dir() and other.name != mutant.upstream:
                (folder / other.name).symlink_to(other.resolve())
        yield folder
    finally:
        shutil.rmtree(folder)


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
    """Writes a new file in the place of a hard link, whose other names keep the old content."""
    path.unlink()
    path.write_text(text, encoding="utf-8")


def line(verdict: Verdict) -> str:
    """The one line that sums up a feature."""
    shown = [
        _ratio(verdict.base, "on", "failed", "on red unpatched"),
        _ratio(verdict.base, "off", "passed", "off green unpatched"),
        *(_ratio(verdict.patched, mark, "passed", f"{mark} green patched") for mark in MARKS),
    ]
    if verdict.mutants:
        red = [next((one.mark for one in run if one.result == "failed"), None) for run in verdict.mutants.values()]
        by_misuse = f", {count} by misuse tests" if (count := red.count("misuse")) else ""
        shown.append(f"{len(red) - red.count(None)}/{len(red)} mutants red{by_misuse}")
    if verdict.skipped:
        shown.append(f"{len(verdict.skipped)} skipped")
    return f"{verdict.status}: {verdict.upstream} {verdict.feature}: {', '.join(filter(None, shown))}"


def _ratio(outcomes: Sequence[Outcome], mark: str, result: str, meaning: str) -> str:
    marked = [one for one in outcomes if one.mark == mark]
    return f"{sum(one.result == result for one in marked)}/{len(marked)} {meaning}" if marked else ""


def details(verdict: Verdict) -> list[str]:
    """What is wrong, and why tests were skipped."""
    reasons = Counter(one.message for one in verdict.skipped)
    return verdict.problems + [f"{number} skipped: {reason}" for reason, number in reasons.items()]


def write_json(path: Path, verdicts: Sequence[Verdict], orphans: Sequence[str]) -> None:
    features = [{**asdict(verdict), "status": verdict.status} for verdict in verdicts]
    report = {"version": REPORT_VERSION, "features": features, "problems": list(orphans)}
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
