"""The Makefile's promises: the release that it takes by itself, and which target is in which tier."""

from __future__ import annotations

import re
import subprocess

from pins import REPO, profile_on

MAKEFILE = (REPO / "Makefile").read_text(encoding="utf-8")
TIERS = dict(re.findall(r"^([a-z0-9.-]+):.*## \[([a-z ]+)\]", MAKEFILE, re.MULTILINE))


def test_the_release_is_the_one_that_apply_takes_by_itself() -> None:
    command = ["make", "-s", "--no-print-directory", "--eval", "said: ; @echo $(RELEASE)", "said"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [profile_on(None).release]


def test_what_make_test_leaves_out_is_run_by_test_all_or_says_where() -> None:
    """A target that is in no tier is one that nobody runs."""
    recipes = re.findall(r"^(?:test-all|shares-of-the-[a-z]+):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert len(recipes) == 3
    run = {name for name in TIERS if re.search(rf"(?<![\w-]){name}(?![\w-])", "".join(recipes))}
    assert run | {"test-behaviour"} == {name for name, tier in TIERS.items() if tier == "all"}
    assert set(TIERS.values()) == {"test", "all", "weekly", "mirrors", "by hand"}
    tests = {name for name in re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE) if name.startswith("test-")}
    assert tests - TIERS.keys() == {"test-all"}
