"""Every hostile patch through the tool itself, while the system watches: `apply` of each, `verify` of each family in every format.

Nothing outside the cache and the home is written, nothing inside the workspace, no program but git runs, and whatever is
printed steers neither a terminal nor a CI system.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from corpus import BASE, FAMILIES
from distribution import Made, Upstream, make_distribution
from harmless import assert_harmless
from on_disk import snapshot
from watched import Watched, run_all

from patchctl.manifest.series import SeriesPatch

pytestmark = pytest.mark.heavy("thousands of changed inputs")

CODES = {"patch": 2, "does-not-apply": 4}
FORMATS = ("text", "json", "github", "gitlab", "sarif", "junit")
STACK = "manifests/stacks/greeter/v1.yaml"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A distribution whose one upstream is the corpus's base, with a cache that has it."""
    files = {path.decode(): data.decode() for path, data in BASE.items()}
    made = make_distribution(tmp_path_factory.mktemp("base"), (Upstream("greeter", "v1", files),))
    made.good("fetch", "--profile", "full")
    return made


def patch_path(name: str) -> str:
    return SeriesPatch("greeter", "v1", name).path


def with_patches(made: Made, root: Path, patches: list[bytes]) -> Path:
    """The distribution with these files as its series, in `root`."""
    shutil.copytree(made.root, root)
    names = [f"{number:04}-feature-x{number}.patch" for number in range(1, len(patches) + 1)]
    for name, data in zip(names, patches, strict=True):
        (root / patch_path(name)).parent.mkdir(parents=True)
        (root / patch_path(name)).write_bytes(data)
    text = (root / STACK).read_text().replace("patches: []", "patches:")
    (root / STACK).write_text(text + "".join(f"  - {name}\n" for name in names))
    return root


def assert_only_git_ran(done: Watched) -> None:
    names = {os.path.basename(path) for path in done.executed or ()}
    assert names <= {"git"} | {n for n in names if n.startswith("python")}, names


@pytest.mark.parametrize("family", FAMILIES)
def test_apply_of_each_is_refused_and_writes_nothing(family: str, base: Made, tmp_path: Path) -> None:
    cases = {k: c for k, c in FAMILIES[family].items() if sum(map(len, c.patches)) < 100_000}
    home, lines = tmp_path / "home", []
    for number, case in enumerate(cases.values()):
        root = with_patches(base, tmp_path / f"roots/{number}", list(case.patches))
        lines.append(
            [f"--root={root}", f"--cache={base.cache}", "apply", "-p", "full", "-w", str(tmp_path / f"ws/{number}")]
        )
    before = {top: snapshot(top) for top in (tmp_path / "roots", base.origins, base.cache / "git")}
    done = run_all(lines, home=home, results=tmp_path / "results")
    assert done.outside(base.cache, home, tmp_path / "results") == []
    assert_only_git_ran(done)
    assert {top: snapshot(top) for top in before} == before
    assert not (tmp_path / "ws").exists()
    for (fault, case), run in zip(cases.items(), done.runs, strict=True):
        name = patch_path(f"{len(case.patches):04}-feature-x{len(case.patches)}.patch")
        assert run.code == CODES[case.kind], (fault, run)
        assert re.search(case.message, run.stderr), (fault, run.stderr)
        assert (f"{name}:{case.line}:" if case.line else name) in run.stderr, (fault, run.stderr)
        assert run.stdout == "", fault
        assert_harmless(run.stderr, where=fault)


@pytest.mark.parametrize("family", FAMILIES)
def test_verify_prints_nothing_that_acts(family: str, base: Made, tmp_path: Path) -> None:
    patches = [c.patches[-1] for c in FAMILIES[family].values() if sum(map(len, c.patches)) < 1_000_000]
    root, home = with_patches(base, tmp_path / "root", patches), tmp_path / "home"
    before = snapshot(root)
    lines = [[f"--root={root}", f"--cache={base.cache}", "verify", "--static", "--format", f] for f in FORMATS]
    done = run_all(lines, home=home, results=tmp_path / "results")
    assert done.outside(base.cache, home, tmp_path / "results") == []
    assert snapshot(root) == before
    for form, run in zip(FORMATS, done.runs, strict=True):
        assert run.code in (1, 2), run
        assert_harmless(run.stdout, run.stderr, where=form, form=form)
