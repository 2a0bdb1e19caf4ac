"""scripts/upstream_job.sh: the steps of a morning's job, run against an upstream that changes between two mornings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from distribution import CLOCK, GIT_ENV, GREETER, REPO, Made, git
from test_bump import TICK, both_go_on, conflict, goes_on, made
from test_drift import sdist

pytestmark = pytest.mark.heavy("whole bumps")
__all__ = ["made"]

EVIDENCE = REPO / "docs/evidence"
NEW = "2001.01.1"
# greeter is asked first, and for its newest release.
NAMES_OTHERS = "    sdist: greeter\n    companions: {file: none, revisions: {clock: '(x)'}}\n"


@pytest.fixture
def checkout(made: Made) -> Made:
    """The distribution as a repository, with its pages left out."""
    (made.root / ".gitignore").write_text("edit/\nbuild/\n")
    git(made.root, "init", "--quiet", "--initial-branch=main")
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "-m", "the distribution")
    have_a_name(made.root)
    return made


def have_a_name(clone: Path) -> None:
    git(clone, "config", "user.name", "patchctl")
    git(clone, "config", "user.email", "patchctl@localhost")


def morning(made: Made, tmp_path: Path, **more: str) -> tuple[str, Path]:
    """One run of the job's script; its output, and what it left."""
    out, program = made.root / "build" / "upstream", tmp_path / "bin" / "patchctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m patchctl --cache="{made.cache}" "$@"\n')
    program.chmod(0o755)
    env = {**GIT_ENV, "HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PIP_NO_INDEX": "1", **more}
    env["PATH"] = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = ["bash", str(REPO / "scripts/upstream_job.sh"), str(out)]
    done = subprocess.run(line, cwd=made.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out


def test_two_mornings(checkout: Made, tmp_path: Path) -> None:
    said, out = morning(checkout, tmp_path)
    assert "0 upstreams to move\n" in said and not (out / "branch").exists()
    both_go_on(checkout)
    said, out = morning(checkout, tmp_path)
    assert (out / "branch").read_text() == "bump/2001.01.1\n" and (out / "title").read_text() == "Release 2001.01.1\n"
    assert "2 of 2 upstreams have something newer" in (out / "outdated.txt").read_text()
    assert "| step | same |" in (out / "body.md").read_text()
    assert git(checkout.root, "branch", "--show-current").strip() == "bump/2001.01.1"
    assert "manifests/releases/2001.01.1.yaml" in git(checkout.root, "show", "--stat=200", "--format=%s")
    assert git(checkout.root, "status", "--porcelain") == ""


def test_a_conflict_is_a_draft_too(checkout: Made, tmp_path: Path) -> None:
    conflict(checkout)
    said, out = morning(checkout, tmp_path)
    assert "on branch bump/2001.01.1\n" in said and "next: patchctl bump --continue" in said
    assert "## Stopped at step of clock" in (out / "body.md").read_text()
    assert (checkout.root / "edit" / "clock-bump-2001.01.1" / "clock/tick.py").is_file()
    assert git(checkout.root, "branch", "--show-current").strip() == "bump/2001.01.1"


def test_what_cannot_be_had_stays_and_is_named(checkout: Made, tmp_path: Path) -> None:
    both_go_on(checkout)
    (checkout.origins / "greeter").rename(checkout.origins / "away")
    said, out = morning(checkout, tmp_path)
    assert "stays: greeter: " in said and "tried" in (out / "outdated.txt").read_text()
    body = (out / "body.md").read_text()
    assert "| clock | v2 | v3 |" in body and "## Stays, as its sources could not be had\n\n- greeter: " in body


def test_a_version_without_a_repository_stays(checkout: Made, tmp_path: Path) -> None:
    """The index has it, and to pin it by its archive alone is for a person to say."""
    goes_on(checkout, "clock", "v3", {"README": "again\n"})
    checkout.edit(
        "manifests/upstreams.yaml", "    summary: The greeter.\n", f"    summary: The greeter.\n{NAMES_OTHERS}"
    )
    git(checkout.root, "commit", "--quiet", "--all", "-m", "greeter is on an index, too")
    sdist(checkout, "9.0", GREETER.files)
    said, _ = morning(checkout, tmp_path, PIP_FIND_LINKS=str(checkout.index))
    assert "stays: greeter: no place tells which commit 9.0 is" in said


def steps_of(name: str) -> list[str]:
    """The commands of a job's file, in their order."""
    job = yaml.safe_load((REPO / "examples/ci" / f"{name}.yml").read_text())
    return [s["run"] for s in job["jobs"]["bump"]["steps"] if "run" in s] if name == "github" else job["bump"]["script"]


def artifact_of(name: str, checkout: Path, to: Path) -> Path:
    """The folder that a job's file keeps, as the services keep it: plain files without links and modes."""
    job = yaml.safe_load((REPO / "examples/ci" / f"{name}.yml").read_text())
    kept = (
        job["jobs"]["bump"]["steps"][-1]["with"]["path"] if name == "github" else job["bump"]["artifacts"]["paths"][0]
    )
    to.mkdir()
    for file in (checkout / kept).rglob("*"):
        shutil.copyfile(file, to / file.name)
    return to


HOOK = "#!/bin/sh\nenv | sed -n 's/^GIT_PUSH_OPTION_[0-9]*=//p' >>../options\n"


@pytest.fixture
def service(checkout: Made) -> Path:
    """What a job pushes to, and a folder of programs: patchctl, and for gh and pip what notes how they are called."""
    place = checkout.root.parent / "service"
    git(checkout.root.parent, "clone", "--quiet", "--bare", str(checkout.root), str(place / "patches.git"))
    git(place / "patches.git", "config", "receive.advertisePushOptions", "true")
    programs = {
        "gh": f'[ "$2" = create ] && printf "%s\\n" "$@" >>{place}/gh.log',
        "pip": f'echo "$@" >>{place}/pip.log',
    }
    programs["patchctl"] = f'exec {sys.executable} -m patchctl --cache="{checkout.cache}" "$@"'
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    (place / "patches.git/hooks/post-receive").write_text(HOOK)
    (place / "patches.git/hooks/post-receive").chmod(0o755)
    return place


def run_job(name: str, service: Path, number: int) -> Path:
    """A morning's job, from a fresh clone with the cache of the one before; returns the checkout. gh's answer to `pr view` is that there is none."""
    checkout = service / f"checkout-{number}"
    git(service, "clone", "--quiet", str(service / "patches.git"), str(checkout))
    shutil.copy(REPO / "scripts/upstream_job.sh", checkout / "scripts/upstream_job.sh")
    (checkout / ".git/info/exclude").write_text("/scripts/upstream_job.sh\n")
    if (
        kept := yaml.safe_load((REPO / "examples/ci" / f"{name}.yml").read_text()).get("bump", {}).get("cache")
    ) is not None:
        (checkout / kept["paths"][0]).mkdir(parents=True)
        (checkout / kept["paths"][0] / "index.html").write_text("of the morning before")
    env = {**GIT_ENV, "HOME": str(service), "PYTHONPATH": str(REPO), "PIP_NO_INDEX": "1", "CI_PROJECT_PATH": "x"}
    env |= {"CI_SERVER_HOST": "gitlab.example", "PUSH_TOKEN": "t", "PATH": f"{service}:{os.environ['PATH']}"}
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{service}/patches.git.insteadOf"}
    env |= {"GIT_CONFIG_VALUE_0": "https://oauth2:t@gitlab.example/x.git"}
    for step in steps_of(name):
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step], cwd=checkout, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    return checkout


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_very_steps_of_the_jobs(name: str, checkout: Made, service: Path, tmp_path: Path) -> None:
    """Three mornings: nothing is newer, all arrives, one conflicts. A person goes on from the last one's artifact."""
    run_job(name, service, 1)
    assert "install ." in (service / "pip.log").read_text() and "bump/" not in git(service / "patches.git", "branch")

    both_go_on(checkout)
    run_job(name, service, 2)
    assert above_diffs(request_of(name, service)) == above_diffs((EVIDENCE / "draft-arrived.md").read_text())
    assert "stacks:\n  greeter: v1.5\n  clock: v3\n" in git(
        service / "patches.git", "show", f"bump/{NEW}:manifests/releases/{NEW}.yaml"
    )

    goes_on(checkout, "clock", "v4", {TICK: CLOCK.files[TICK].replace("return count + 1", "return 1 + count")})
    there = run_job(name, service, 3)
    assert request_of(name, service).strip() == (EVIDENCE / "draft-conflict.md").read_text().strip()

    desk = artifact_of(name, there, tmp_path / "artifact")
    assert "step: git cannot merge it into v4" in (desk / "status.txt").read_text()
    own = tmp_path / "own"
    git(tmp_path, "clone", "--quiet", "--branch", f"bump/{NEW}", str(service / "patches.git"), str(own))
    have_a_name(own)
    subprocess.run(["tar", "-xzf", desk / "edit.tar.gz"], cwd=own, check=True)
    assert (own / "edit/.bump.json").is_file() and [*(own / "edit/.resolutions/clock").iterdir()]
    shutil.rmtree(there)
    tree = own / "edit" / f"clock-bump-{NEW}"
    solved = CLOCK.files[TICK].replace("count):", "count, step=1):").replace("count + 1", "step + count")
    (tree / TICK).write_text(solved)
    git(tree, "add", TICK)
    done = replace(checkout, root=own).patchctl("bump", "--continue", "--json")
    assert done.returncode == 20, done.stdout + done.stderr
    (step,) = json.loads(done.stdout)["patches"]["clock"]
    assert (step["kind"], step["merge"]) == ("content", "resolved")
    assert git(own, "log", "--format=%s", f"origin/bump/{NEW}..") == f"Release {NEW}, as `patchctl bump` made it\n"
    assert git(own, "status", "--short", "--branch").splitlines() == [f"## bump/{NEW}...origin/bump/{NEW} [ahead 1]"]


def above_diffs(body: str) -> str:
    """Without what another git may write otherwise."""
    return body.partition("<details>")[0].strip()


def request_of(name: str, service: Path) -> str:
    """The body of the last draft request that a job asked for."""
    if name == "github":
        draft, head, branch, _, title, _, file = (service / "gh.log").read_text().splitlines()[-7:]
        assert (draft, head, branch, title) == ("--draft", "--head", f"bump/{NEW}", f"Release {NEW}")
        return max(service.glob("checkout-*")).joinpath(file).read_text()
    options = [line for line in (service / "options").read_text().splitlines() if line]
    assert f"merge_request.title=Draft: Release {NEW}" in options
    body = [line for line in options if line.startswith("merge_request.description=")][-1]
    return body.partition("=")[2].replace("\\n", "\n")
