"""scripts/image/check_python.py: whether a base's Python is the one that a profile's release wants, before anything is fetched."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from distribution import REPO
from pins import distribution, newest

from patchctl.doctor.runtime import fits

PROFILE = "qwen3-32b"


def check(release: str, python: str = sys.executable, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATCHCTL_ROOT": str(REPO), "PATCHCTL_RELEASE": release, **more}
    command = [sys.executable, str(REPO / "scripts/image/check_python.py"), PROFILE, python]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("release", distribution().releases)
def test_the_python_is_that_of_the_release_or_refused_by_name(release: str) -> None:
    wanted, here = distribution().release(release).runtime["python"], platform.python_version()
    found = check(release)
    if fits(here, wanted):
        assert (found.returncode, found.stderr) == (0, "")
        return
    assert found.returncode == 2
    assert f"is Python {here}; {PROFILE} wants {wanted} on release {release}" in found.stderr


def test_two_sets_that_want_other_pythons_are_told_apart() -> None:
    """At most one of them can have this one, so that a refusal is seen wherever this runs."""
    assert 2 in {check(name).returncode for name in distribution().releases}


def test_where_the_lock_is_not_installed_it_is_said_and_no_more() -> None:
    for name in distribution().releases:
        plain, without = check(name), check(name, RUNTIME="no")
        assert without.returncode == 0
        assert plain.stderr.splitlines()[:1] == without.stderr.splitlines()[:1]


def test_an_interpreter_that_is_none_is_refused() -> None:
    for runtime in ("yes", "no"):
        found = check(newest(), "/nowhere/python3", RUNTIME=runtime)
        assert found.returncode == 2 and "/nowhere/python3 of the base cannot be asked" in found.stderr
