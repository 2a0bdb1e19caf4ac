"""The distribution that both Dockerfiles put into an image says of itself what the checkout says. `make image-test` builds
images; this needs none: it copies what the `COPY` lines name and .dockerignore lets in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, run_patchctl

INSIDE = "/opt/patchctl/distribution/"


def copied(dockerfile: str) -> list[tuple[str, str]]:
    """(path in the checkout, path below the distribution) of every COPY of the file."""
    found = []
    for line in re.findall(r"^COPY (?!--from)(.+)$", (REPO / dockerfile).read_text(), re.MULTILINE):
        *sources, target = line.split()
        if f"{target}/".startswith(INSIDE):
            below = target.removeprefix(INSIDE.rstrip("/")).lstrip("/")
            found += [(s, below + s if target.endswith("/") else below) for s in sources]
    return found


def let_in() -> set[str]:
    """What .dockerignore takes back from its `*`."""
    lines = (REPO / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


@pytest.fixture(params=["Dockerfile", "Dockerfile.into"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "distribution"
    for source, target in copied(request.param):
        assert source in let_in(), f"the build context lacks {source}"
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        if (REPO / source).is_dir():
            shutil.copytree(REPO / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPO / source, folder / target)
    return folder


def said(root: Path, home: Path, *args: str) -> Any:
    done = run_patchctl(f"--root={root}", f"--cache={home}/cache", *args, "--json", home=home)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.heavy("verifies the whole distribution")
def test_it_has_no_finding_that_the_checkout_has_not(root: Path, tmp_path: Path) -> None:
    """Pages name tests and mutations: without those, every page looked stale in an image."""

    def findings(where: Path) -> set[tuple[str, str, str]]:
        report = said(where, tmp_path / "home", "verify", "--static")
        assert report["checked"]["patches"] > 30
        return {(f["rule"], f["file"], f["message"]) for f in report["findings"]}

    assert findings(root) - findings(REPO) == set()


def test_show_names_the_tests_of_a_patch(root: Path, tmp_path: Path) -> None:
    inside, here = (said(where, tmp_path / "home", "show", "dataproto_concat") for where in (root, REPO))
    assert inside == here
    assert "/dataproto_concat/tests/test_dataproto_concat.py" in json.dumps(inside)
