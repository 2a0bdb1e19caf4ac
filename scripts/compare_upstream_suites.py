#!/usr/bin/env python3
"""Runs upstream's own test suites on the unpatched and on the patched trees, and compares the outcome of each test id.

The suites are listed in tests/upstream_suites/suites-RELEASE.yaml, of the release or of the one that it extends.
PATCHCTL_TORCH_PYTHON names the interpreter that runs them, of the same release as the trees.
A test id whose outcome is not the same is run by itself three times on each side, and is called flaky only if it also
differs within one tree; when many differ none is run again. After the comparison with every switch off, each suite is run
again with each feature on that it lists, by a variable or by another default in a copy of the tree, against the unpatched
tree.

Exit status: 0 when every suite that ran gave the same, 1 on any difference or when no suite could be run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

from patchctl.__main__ import compose
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import feature_of

REPO = Path(__file__).resolve().parents[1]
SUITES = REPO / "tests" / "upstream_suites"
sys.path.insert(0, str(SUITES))

from evidence import Comparison, Difference, base_trees, count, programs, revisions, write  # noqa: E402  (see the line above)
from suite_runs import Run, Suite, Switch, carried, load_suites, missing, run_suite, switched_on  # noqa: E402
from unpatched import Unpatched  # noqa: E402

RERUNS = 3
MANY = 12  # more that differ have one cause, and are not rerun
ABSENT = "absent"
# pytest's exit status when tests ran, whether or not all passed.
RAN = (0, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    python = os.environ.get("PATCHCTL_TORCH_PYTHON")
    if not python:
        print("PATCHCTL_TORCH_PYTHON is not set: it names a Python 3.11 that has a CPU torch", file=sys.stderr)
        return 1
    sides = {"base": options.base.resolve(), "patched": options.patched.resolve()}
    suites = load_suites(list_of(options.release))
    if unknown := set(options.only) - {suite.name for suite in suites}:
        print(f"no suite {', '.join(sorted(unknown))}; there are: {', '.join(s.name for s in suites)}", file=sys.stderr)
        return 1
    chosen = [suite for suite in suites if not options.only or suite.name in options.only]
    if options.quick:
        for suite in chosen:
            if suite.slow:
                print(f"left out: {suite.name}: slow; `make test-upstream` runs it")
        chosen = [suite for suite in chosen if not suite.slow]
    kept = None
    if options.kept:
        names = {name for suite in chosen if not missing(suite, sides["base"]) for name in suite.upstreams}
        kept = Unpatched(
            SUITES / f"unpatched-{options.release}.json", Path(python).absolute(), base_trees(names, sides["base"])
        )
    runs = [
        (suite, switch)
        for suite in chosen
        for switch in [None, *([] if options.off_only else _switches(suite, options.release))]
    ]
    done: dict[int, Comparison] = {}
    # A suite whose unpatched side is on record takes one core.
    for alone in (False, True):
        numbers = [number for number, (suite, _) in enumerate(runs) if suite.one_at_a_time == alone]
        with ThreadPoolExecutor(max_workers=2 if kept and not alone else 1) as pool:
            for number, comparison in zip(
                numbers,
                pool.map(lambda n: _compared(*runs[n], sides, Path(python).absolute(), kept), numbers),
                strict=True,
            ):
                done[number] = comparison
                print(summary(comparison), flush=True)
    comparisons = [done[number] for number in range(len(runs))]
    if options.out:
        _write_evidence(options, sides, Path(python).absolute(), chosen, comparisons)
    statuses = [one.status for one in comparisons]
    print(", ".join(f"{statuses.count(one)} {one}" for one in sorted(set(statuses))))
    return 0 if "same" in statuses and "DIFFERENT" not in statuses else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, metavar="DIR", help="unpatched trees: DIR/verl, ...")
    parser.add_argument("--patched", type=Path, required=True, metavar="DIR", help="patched trees: DIR/verl, ...")
    parser.add_argument("--release", required=True, choices=list(distribution().releases), help="the trees' release")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this suite only (repeatable)")
    parser.add_argument("--off-only", action="store_true", help="leave out the runs with a feature on")
    parser.add_argument("--quick", action="store_true", help="leave out the suites that are marked slow")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="do not run on the unpatched trees what is on record for them; record the rest",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write upstream-suites-RELEASE.md and .json there")
    return parser.parse_args(arguments)


@cache
def distribution() -> Distribution:
    compose()
    return Distribution.load(REPO)


def list_of(release: str) -> Path:
    """The suites of a release: its own list, else that of the release which it extends."""
    files = [SUITES / f"suites-{name}.yaml" for name in distribution().lineage(release)]
    return next((file for file in files if file.is_file()), files[0])


def _switches(suite: Suite, release: str) -> list[Switch]:
    """Those of features that the release's stack has: releases that extend another share its list of suites."""
    dist, switches = distribution(), list[Switch](suite.switches)
    if (stack := dist.releases[release].stacks.get(suite.upstream)) is None:
        return switches
    features = {feature_of(patch.file) for patch in dist.patches(dist.stack(suite.upstream, stack))}
    return [one for one in switches if one.feature in features]


def _compared(
    suite: Suite, switch: Switch | None, sides: dict[str, Path], python: Path, kept: Unpatched | None
) -> Comparison:
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        return compare(suite, sides, python, Path(scratch), switch, kept)


def compare(
    suite: Suite,
    sides: dict[str, Path],
    python: Path,
    scratch: Path,
    switch: Switch | None = None,
    kept: Unpatched | None = None,
) -> Comparison:
    """Runs one suite on both sides, side by side unless it says otherwise, and reruns what differs.

    What is `kept` of the unpatched side is run there only if the patched side gives something else. With a switch its
    feature is on in the patched tree; a variable is given to both sides, and nothing in the unpatched one reads it.
    """
    reasons = {side: missing(suite, trees) for side, trees in sides.items()}
    suite, absent = carried(suite, sides["base"])
    result = Comparison(suite.name, suite.upstream, suite.args, suite.deselect, switch.feature if switch else "")
    result.ranks, result.edited, result.absent = suite.procs, suite.edited, absent
    if any(reasons.values()):
        result.skipped = "; ".join(f"{side}: {reason}" for side, reason in reasons.items() if reason)
        return result
    if switch:
        suite = replace(suite, env=suite.env | switch.env)
        sides = sides | {"patched": switched_on(sides["patched"], suite.upstream, switch, scratch / "on")}
    runs: dict[str, Run] = {}
    if kept and not switch and kept.knows(suite):
        runs["patched"] = run_suite(suite, sides["patched"], python, scratch / "patched")
        if kept.same(suite, runs["patched"].outcomes):
            runs["base"] = runs["patched"]
            result.kept = True
    to_run = {side: trees for side, trees in sides.items() if side not in runs}
    with ThreadPoolExecutor(max_workers=1 if suite.one_at_a_time else len(sides)) as pool:
        running = {side: pool.submit(run_suite, suite, trees, python, scratch / side) for side, trees in to_run.items()}
    runs |= {side: future.result() for side, future in running.items()}
    result.base, result.patched = count(runs["base"].outcomes), count(runs["patched"].outcomes)
    result.seconds = {
        side: runs[side].finished.seconds for side in ("base", "patched") if side == "patched" or not result.kept
    }
    result.problems = [text for side, run in runs.items() for text in problems(side, run)]
    result.not_passed = {test: one for test, one in runs["base"].outcomes.items() if one != "passed"}
    outcomes = {
        test: tuple(runs[side].outcomes.get(test, ABSENT) for side in ("base", "patched"))
        for test in sorted(runs["base"].outcomes | runs["patched"].outcomes)
    }
    differing = {test: both for test, both in outcomes.items() if both[0] != both[1]}
    for number, (test, both) in enumerate(differing.items()):
        expected = switch.differs.get(test, "") if switch else ""
        if expected or len(differing) > MANY:
            result.differences.append(Difference(test, *both, expected=expected))
        else:
            alone = rerun(suite, test, sides, python, scratch / f"rerun{number}")
            result.differences.append(Difference(test, *both, alone["base"], alone["patched"]))
    if kept and not switch and not result.kept and not result.differences and not result.problems:
        kept.keep(suite, runs["base"].outcomes)
    return result


def problems(side: str, run: Run) -> list[str]:
    """What keeps a run from being compared at all: pytest was killed or broke off, or collected nothing."""
    status = run.finished.returncode
    if status in RAN and run.outcomes:
        return []
    ended = "was killed" if status is None else f"ended with {status}"
    return [f"{side}: pytest {ended} after {run.finished.seconds:.0f} s, {len(run.outcomes)} outcomes"]


def rerun(suite: Suite, test: str, sides: dict[str, Path], python: Path, scratch: Path) -> dict[str, list[str]]:
    """The outcomes of one test run by itself, RERUNS times on each side, alternating."""
    alone: dict[str, list[str]] = {side: [] for side in sides}
    for number in range(RERUNS):
        for side, trees in sides.items():
            run = run_suite(suite, trees, python, scratch / f"{side}{number}", only=[test])
            alone[side].append(run.outcomes.get(test, ABSENT))
    return alone


def summary(one: Comparison) -> str:
    """The lines that are printed for a suite."""
    if one.skipped:
        return f"skipped: {one.title}: {one.skipped}"
    counts = [", ".join(f"{number} {name}" for name, number in side.items()) for side in (one.base, one.patched)]
    unpatched = f"{counts[0]} (on record)" if one.kept else counts[0]
    lines = [f"{one.status}: {one.title}: unpatched {unpatched}; patched {counts[1]}"]
    lines += [f"    not in the tree: {folder}" for folder in one.absent]
    lines += [f"    {text}" for text in one.problems]
    for diff in one.differences:
        if diff.expected:
            lines.append(f"    differs as it must: {diff.test}: {diff.base} / {diff.patched}: {diff.expected}")
            continue
        alone = f"alone {', '.join(diff.alone_base)} / {', '.join(diff.alone_patched)}"
        lines.append(f"    {'flaky' if diff.flaky else 'differs'}: {diff.test}: {diff.base} / {diff.patched}; {alone}")
    return "\n".join(lines)


def _write_evidence(
    options: argparse.Namespace,
    sides: dict[str, Path],
    python: Path,
    suites: Sequence[Suite],
    comparisons: list[Comparison],
) -> None:
    names = {name for suite in suites for name in suite.upstreams}
    present = sorted(name for name in names if all((trees / name).is_dir() for trees in sides.values()))
    more = "".join(f" --only {name}" for name in options.only) + (" --off-only" if options.off_only else "")
    trees = f"--base BASE --patched PATCHED --release {options.release}"
    command = f"scripts/compare_upstream_suites.py {trees}{more} --out DIR"
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "programs": programs(python),
        "revisions": revisions(present, sides["base"], sides["patched"]),
    }
    write(options.out / f"upstream-suites-{options.release}.md", command, facts, comparisons)


if __name__ == "__main__":
    sys.exit(main())
