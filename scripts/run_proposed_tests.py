#!/usr/bin/env python3
"""Runs the tests that `export --for-upstream` proposes (FEATURE/pull_request) in upstream's own suites, on both trees.

Each file runs as the first suite of its upstream in tests/upstream_suites does: under upstream's conftest and pytest settings. Of each
feature at least one test has to fail on the unpatched tree and pass on the patched one, and none may fail on the patched one.
PATCHCTL_TORCH_PYTHON names the interpreter, of the same release as the trees.

Exit status: 0 when that holds for each feature that was run, 1 when it does not or one that was named proposes none.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from compare_upstream_suites import distribution, list_of
from suite_runs import Run, Suite, load_suites, run_suite

from patchctl.stack.export import proposed_files
from patchctl.stack.plan import load_patches

# Of a suite's arguments: these choose its tests.
_CHOICE = ("--ignore", "--deselect", "--override-ini=python_files")


def main() -> int:
    asked = _parse()
    python, failed, ran = Path(os.environ["PATCHCTL_TORCH_PYTHON"]).absolute(), False, 0
    for suite, features in _chosen(asked.release, asked.features):
        runs = _both(suite, asked.base.resolve(), asked.patched.resolve(), python)
        outcomes = [run.outcomes for run in runs]
        for feature, files in features.items():
            of = [{t: o for t, o in side.items() if t.partition("::")[0] in files} for side in outcomes]
            wrong = _wrong(*of)
            counts = ["; ".join(f"{n} {o}" for o, n in Counter(side.values()).items()) or "none" for side in of]
            print(
                f"{'WRONG' if wrong else 'right'}: {suite.upstream} {feature}: unpatched {counts[0]}; patched {counts[1]}"
            )
            for line in wrong:
                print(f"    {line}")
            if wrong:
                print(runs[1].finished.tail())
            failed, ran = failed or bool(wrong), ran + 1
    print(f"{ran} features")
    return 1 if failed or ran < len(asked.features) else 0  # a release may propose none


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="*", metavar="FEATURE", help="these only [default: all that propose tests]")
    parser.add_argument("--base", type=Path, required=True, metavar="DIR", help="unpatched trees: DIR/verl, ...")
    parser.add_argument("--patched", type=Path, required=True, metavar="DIR", help="patched trees: DIR/verl, ...")
    parser.add_argument("--release", required=True, help="the trees' release")
    return parser.parse_args()


def _chosen(release: str, names: list[str]) -> Iterator[tuple[Suite, dict[str, set[str]]]]:
    """A suite for each upstream, of the proposed files alone, and which of them are of which feature."""
    dist = distribution()
    suites = {suite.upstream: suite for suite in reversed(load_suites(list_of(release)))}
    for upstream, name in dist.releases[release].stacks.items():
        features, added = dict[str, set[str]](), dict[str, Path]()
        for patch in load_patches(dist, dist.stack(upstream, name)):
            files = proposed_files(patch.file.parent)
            if files and (not names or patch.feature in names):
                features[patch.feature] = set(files)
                added |= files
        if features:
            suite = suites[upstream]
            options = [one for one in suite.args if one.startswith("-") and not one.startswith(_CHOICE)]
            options.append("--continue-on-collection-errors")  # what a feature lacks is not the next one's fault
            tests = [one for one in added if Path(one).name.startswith("test_")]
            yield replace(suite, args=[*options, *tests], deselect={}, added=added, procs=1), features


def _both(suite: Suite, base: Path, patched: Path, python: Path) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="proposed-", ignore_cleanup_errors=True) as scratch:
        places = [(trees, Path(scratch) / name) for name, trees in (("base", base), ("patched", patched))]
        with ThreadPoolExecutor(max_workers=1 if suite.one_at_a_time else 2) as pool:
            return list(pool.map(lambda at: run_suite(suite, at[0], python, at[1]), places))


def _wrong(base: dict[str, str], patched: dict[str, str]) -> list[str]:
    """What is not as it has to be. A file that cannot even be collected on the unpatched tree has failed there."""
    found = [
        f"{test}: {outcome} on the patched tree" for test, outcome in patched.items() if outcome in ("failed", "error")
    ]
    broken = {test.partition("::")[0] for test, outcome in base.items() if outcome == "error"}
    red = [
        test
        for test, outcome in patched.items()
        if outcome == "passed" and (base.get(test) == "failed" or test.partition("::")[0] in broken)
    ]
    return found + ([] if red else ["no test fails on the unpatched tree and passes on the patched one"])


if __name__ == "__main__":
    sys.exit(main())
