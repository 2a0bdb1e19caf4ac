"""docs/hostile-input.md has a row for each family of hostile inputs; each has at least ten cases here, and no fewer than the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "hostile-input.md"
LEAST = 10
# A run of pytest that collects and counts: each case by the mark that is nearest to it.
COUNT = """
import collections, json, sys, pytest
class Counter:
    def pytest_collection_finish(self, session):
        found = collections.Counter()
        for item in session.items:
            mark = item.get_closest_marker("family")
            found[mark.args[0] if mark else "no family"] += 1
        print("COUNTED " + json.dumps(found))
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", sys.argv[1]], plugins=[Counter()]))
"""


def rows() -> dict[str, int]:
    """The families of the page and the number of cases that it states."""
    return {
        name: int(count) for name, count in re.findall(r"(?m)^\| ([A-Z][^|]*?) \| (\d+) \|", PAGE.read_text("utf-8"))
    }


def counted() -> Counter[str]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(REPO / "tests/hostile")],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Counter(json.loads(re.findall(r"(?m)^COUNTED (.*)$", done.stdout)[0]))


def test_every_family_has_at_least_ten_cases_and_the_page_counts_them() -> None:
    stated, found = rows(), counted()
    assert len(stated) == 20
    assert set(found) - {"no family"} == set(stated)
    assert {name: n for name, n in found.items() if n < LEAST and name in stated} == {}
    assert {name: n for name, n in stated.items() if found[name] < n} == {}
