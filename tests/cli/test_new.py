"""`patchctl new`: what it begins, what it refuses, and that a template that nobody filled in passes for nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution import REPO, Made, git, write_files
from on_disk import copy_of

from patchctl.check.rules import lint
from patchctl.manifest.series import TO_FILL_IN
from patchctl.prove.new import rendered
from patchctl.stack.patches import load_patch

WARM = "patches/greeter/v1/warm"
TEST, PROBE, MUTANT = f"{WARM}/tests/test_warm.py", f"{WARM}/tests/probe_warm.py", f"{WARM}/mutants/warm.yaml"


@pytest.fixture
def made(small: Made, tmp_path: Path) -> Made:
    """A distribution with behaviour tests, to be changed."""
    own = copy_of(small, tmp_path)
    write_files(own.root, {"tests/behaviour/harness.py": ""})
    return own


def edit_tree(made: Made) -> Path:
    return made.root.parent / "edit/greeter-v1"


def new(made: Made, *args: str) -> subprocess.CompletedProcess[str]:
    return made.patchctl("new", *args, "--dir", str(edit_tree(made)))


def contents(made: Made) -> dict[str, bytes]:
    return {p.relative_to(made.root).as_posix(): p.read_bytes() for p in made.root.rglob("*") if p.is_file()}


def test_a_commit_with_the_header_and_three_files(made: Made) -> None:
    before = contents(made)
    done = new(made, "warm", "--stack", "greeter", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["written"] == [TEST, PROBE, MUTANT] and found["kept"] == []
    assert contents(made).keys() - before.keys() == {TEST, PROBE, MUTANT}
    assert {path: data for path, data in contents(made).items() if path in before} == before
    tree = edit_tree(made)
    assert git(tree, "symbolic-ref", "HEAD").strip() == "refs/heads/patchctl/v1"
    assert git(tree, "rev-parse", "HEAD").strip() == found["tip"]
    assert git(tree, "log", "-4", "--format=%s").splitlines()[1:] == [
        "hello: repeat a shout",
        "hello: add a polite form",
        "hello: spell the greeting right",
    ]
    assert git(tree, "log", "-1", "--format=%an <%ae>").strip() == "patchctl <patchctl@localhost>"
    assert git(tree, "rev-parse", "HEAD^{tree}") == git(tree, "rev-parse", "HEAD~1^{tree}")
    assert git(tree, "status", "--porcelain") == ""
    assert "\nFeature: warm\n" in git(tree, "log", "-1", "--format=%B")


def test_an_empty_commit_becomes_no_patch(made: Made) -> None:
    assert new(made, "warm", "--stack", "greeter/v1").returncode == 0
    before = contents(made)
    done = made.patchctl("export", "greeter", "--dir", str(edit_tree(made)))
    assert done.returncode == 2 and "changes nothing" in done.stderr and "--amend" in done.stderr
    assert contents(made) == before


def test_a_header_that_nobody_filled_in_is_named_line_by_line(made: Made) -> None:
    assert new(made, "warm", "--stack", "greeter").returncode == 0
    tree = edit_tree(made)
    write_files(tree, {"run.sh": "#!/bin/sh\necho warm\n"})
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    made.good("export", "greeter", "--dir", str(tree))
    findings = json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
    file = made.patch("warm").relative_to(made.root).as_posix()
    lines = made.patch("warm").read_text().splitlines()
    marked = [n for n, line in enumerate(lines, 1) if TO_FILL_IN in line]
    found = [f for f in findings if f["rule"] == "filled-in"]
    assert [f["line"] for f in found if f["file"] == file] == marked and len(marked) == 7
    first = {
        name: (made.root / name).read_text().partition(TO_FILL_IN)[0].count("\n") + 1 for name in (TEST, PROBE, MUTANT)
    }
    assert {f["file"]: f["line"] for f in found if f["file"] != file} == first


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("typo", "--stack", "greeter"), "has the feature typo: patches/greeter/v1/typo/0001-bugfix-typo.patch"),
        (("Warm", "--stack", "greeter"), "is no name of a feature"),
        (("_warm", "--stack", "greeter"), "is no name of a feature"),
        (("../warm", "--stack", "greeter"), "is no name of a feature"),
        (("w" * 101, "--stack", "greeter"), "is no name of a feature"),
        (("", "--stack", "greeter"), "is no name of a feature"),
        (("warm", "--stack", "greter"), "greter"),
        (("warm", "--stack", "greeter/v9"), "v9"),
        (("warm",), "--stack"),
    ],
)
def test_what_is_refused_writes_nothing(made: Made, args: tuple[str, ...], said: str) -> None:
    before = contents(made)
    done = new(made, *args)
    assert done.returncode == 2 and said in done.stderr
    assert contents(made) == before and not edit_tree(made).exists()


def test_work_that_was_not_exported_is_never_lost(made: Made) -> None:
    assert new(made, "warm", "--stack", "greeter").returncode == 0
    before, tip = contents(made), git(edit_tree(made), "rev-parse", "HEAD")
    done = new(made, "cold", "--stack", "greeter")
    assert done.returncode == 5 and "not exported" in done.stderr
    assert contents(made) == before and git(edit_tree(made), "rev-parse", "HEAD") == tip


def test_without_a_source_nothing_is_written(made: Made) -> None:
    made.edit("manifests/upstreams.yaml", "/origins/greeter", "/origins/no-greeter")
    shutil.rmtree(made.cache / "git/greeter")
    before = contents(made)
    assert new(made, "warm", "--stack", "greeter").returncode == 3
    assert contents(made) == before and not edit_tree(made).exists()


def test_a_file_that_cannot_be_written_takes_the_others_with_it(made: Made) -> None:
    write_files(made.root, {f"{WARM}/mutants": "no folder\n"})
    before = contents(made)
    done = new(made, "warm", "--stack", "greeter")
    assert done.returncode == 5 and "mutants" in done.stderr, done.stderr
    assert contents(made) == before
    assert git(edit_tree(made), "log", "-1", "--format=%s").strip() == "hello: repeat a shout"
    (made.root / WARM / "mutants").unlink()
    assert new(made, "warm", "--stack", "greeter").returncode == 0  # and the same run goes on


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["openat", "rename"])
@pytest.mark.parametrize("name", [TEST, PROBE, MUTANT])
def test_killed_at_a_file_the_same_run_goes_on(made: Made, tmp_path: Path, name: str, call: str) -> None:
    """What was written before is whole, the branch has no header yet, and nothing has to be cleared away."""
    before = contents(made)
    file = made.root / name
    staged = file.with_name(f".{file.name}.new")
    program = tmp_path / "killed.sh"
    fault = f"inject={call}:signal=SIGKILL:when=1"
    line = f'exec strace -f -o /dev/null -P "{staged}" -e {fault} "{sys.executable}" "$@"\n'
    write_files(tmp_path, {"killed.sh": f"#!/bin/sh\n{line}"})
    args = [
        f"--root={made.root}",
        f"--cache={made.cache}",
        "new",
        "warm",
        "--stack",
        "greeter",
        "--dir",
        str(edit_tree(made)),
    ]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([str(program), "-m", "patchctl", *args], env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (-9, 137), done.stderr
    left = {path: data for path, data in contents(made).items() if not path.endswith(".new")}
    new_ones = left.keys() - before.keys()
    assert new_ones < {TEST, PROBE, MUTANT} and name not in new_ones
    assert "Feature: warm" not in git(edit_tree(made), "log", "-1", "--format=%B")
    assert new(made, "warm", "--stack", "greeter").returncode == 0
    assert contents(made).keys() - before.keys() == {TEST, PROBE, MUTANT}
    assert "Feature: warm" in git(edit_tree(made), "log", "-1", "--format=%B")


def test_what_is_there_is_kept(made: Made) -> None:
    mine = {TEST: "mine\n", MUTANT: "mine too\n"}
    write_files(made.root, mine)
    done = new(made, "warm", "--stack", "greeter", "--json")
    assert json.loads(done.stdout)["kept"] == [TEST, MUTANT] and json.loads(done.stdout)["written"] == [PROBE]
    assert (made.root / TEST).read_text() == "mine\n"


def test_a_feature_of_two_upstreams_has_a_mutation_each(made: Made) -> None:
    assert new(made, "warm", "--stack", "greeter").returncode == 0
    clock = made.root.parent / "edit/clock"
    made.good("new", "warm", "--stack", "clock", "--dir", str(clock))
    assert (made.root / "patches/clock/v2/warm/mutants/warm.yaml").is_file() and (made.root / MUTANT).is_file()


def test_a_distribution_without_behaviour_tests_gets_none(own: Made) -> None:
    tree = own.root.parent / "edit/greeter"
    done = own.good("new", "warm", "--stack", "greeter", "--dir", str(tree))
    assert "has its tests elsewhere, or none" in done and not (own.root / WARM).exists()


def bring_harness(made: Made) -> None:
    """The real one: what tests of features find beside them."""
    behaviour = REPO / "tests/behaviour"
    shared = [REPO / "conftest.py", behaviour / "heavy.yaml", *(REPO / "tests").glob("*.py"), *behaviour.glob("*.py")]
    for file in shared:
        if not file.name.startswith("test_"):
            shutil.copyfile(file, made.root / file.relative_to(REPO))
    shutil.copytree(REPO / "standins", made.root / "standins", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.heavy("pytest in pytest")
def test_the_test_fails_until_it_is_filled_in(made: Made) -> None:
    """With the real harness: every test of it is red, and none is skipped."""
    assert new(made, "warm", "--stack", "greeter").returncode == 0
    bring_harness(made)
    trees = ["--trees", str(made.root), "--stack", "greeter/v1"]
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *trees, TEST]
    done = subprocess.run(line, cwd=made.root, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.search(r"^3 failed in", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert len(re.findall(rf"^E +Failed: {re.escape(TO_FILL_IN)}", done.stdout, re.MULTILINE)) == 3


SAME = """
import pytest
from helper import WHERE
@pytest.mark.on
def test_where():
    assert WHERE == {!r} and __file__.count("/" + WHERE + "/") == 1
"""


@pytest.mark.heavy("pytest in pytest")
def test_files_of_one_name_in_the_folders_of_two_stacks(made: Made) -> None:
    """A second stack begins with a copy of a feature's tests: each test imports what lies beside it."""
    bring_harness(made)
    for stack in ("greeter/v1", "clock/v2"):
        folder, name = f"patches/{stack}/same/tests", stack.partition("/")[0]
        write_files(
            made.root, {f"{folder}/test_same.py": SAME.format(name), f"{folder}/helper.py": f"WHERE = {name!r}\n"}
        )
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "patches"]
    alone = subprocess.run(line, cwd=made.root, capture_output=True, text=True, check=False)
    assert alone.returncode != 0, "pytest finds them by itself now"
    line.remove("--noconftest")
    named = ["--trees", str(made.root), "--stack", "greeter/v1", "--stack", "clock/v2"]
    done = subprocess.run([*line, *named], cwd=made.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


VALUES = {"feature": "warm", "upstream": "greeter", "probe": Path(PROBE).name}


@pytest.mark.parametrize("template", ["test.py", "probe.py"])
def test_templates_of_code_pass_lint(tmp_path: Path, template: str) -> None:
    file = tmp_path / f"{template.partition('.')[0]}_warm.py"
    file.write_text(rendered(template, **VALUES))
    for check in (["check"], ["format", "--check"]):
        line = [sys.executable, "-m", "ruff", *check, "--no-cache", "--config", str(REPO / "pyproject.toml"), str(file)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def filled(text: str) -> str:
    """A header as somebody fills it in, and nothing else of it changed."""
    words = {
        "Switch": "env WARM=1",
        "Upstream-Status": "Pending",
        "Drop-When": "upstream does it itself",
    }
    for key, value in words.items():
        text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", text)
    return re.sub(rf"{re.escape(TO_FILL_IN)}:? ", "", text)


@pytest.mark.parametrize(("write", "rules"), [(str, {"filled-in", "switch-form", "status-form"}), (filled, set())])
def test_the_template_of_a_header_passes_lint_when_it_is_filled_in(
    made: Made, tmp_path: Path, write: Callable[[str], str], rules: set[str]
) -> None:
    subject, _, body = write(rendered("header", feature="warm")).partition("\n")
    sample = (REPO / "tests/lint/filled-in/0001-bugfix-good.patch").read_text()
    head, diff = sample.partition("Subject: ")[0], "---\ndiff " + sample.partition("---\ndiff ")[2]
    file = tmp_path / "0001-feature-warm.patch"
    file.write_text(f"{head}Subject: [PATCH] {subject}\n{body}{diff}")
    assert {finding.rule for finding in lint(load_patch(file, tmp_path))} == rules


def test_the_template_of_a_mutation_has_its_keys() -> None:
    import yaml

    found = yaml.safe_load(rendered("mutant.yaml", **VALUES))
    assert found.keys() == {"file", "replace", "with", "why"}
    assert [key for key, value in found.items() if TO_FILL_IN in value] == ["file", "replace", "with", "why"]
