"""What make test leaves to others of the tests that features do what they say."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase

import yaml
from pins import REPO


def test_each_pattern_is_of_a_test_and_each_feature_keeps_one() -> None:
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "on", "patches"]
    done = subprocess.run(collect, cwd=REPO, capture_output=True, text=True, check=True)
    tests = {line for line in done.stdout.splitlines() if "::" in line}
    heavy = yaml.safe_load((REPO / "tests" / "behaviour" / "heavy.yaml").read_text(encoding="utf-8"))
    patterns = [pattern for some in heavy.values() for pattern in some]
    assert [pattern for pattern in patterns if not any(fnmatchcase(test, pattern) for test in tests)] == []
    left = {test for test in tests if not any(fnmatchcase(test, pattern) for pattern in patterns)}
    assert {feature(test) for test in left} == {feature(test) for test in tests} != set()


def feature(test: str) -> str:
    return test.partition("/tests/")[0]
