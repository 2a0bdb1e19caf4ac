"""`action.yml`: its steps run by bash as GitHub's runner would, on a small distribution; the jobs that docs/ci.md shows for GitLab and
Jenkins, in the same way; and the project's own workflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from distribution import REPO, Made, make_distribution
from packages import Env

from patchctl.cli import verbs as all_verbs

ACTION: dict[str, Any] = yaml.safe_load((REPO / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
CI = yaml.safe_load((REPO / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")


@dataclass
class Runner:
    """Runs the action's `run:` steps in a checkout, each as `bash -eo pipefail` does, until one fails.

    Python is that of a new environment, as setup-python would have it; the cache starts empty.
    """

    made: Made
    env: Env
    folder: Path

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PYTHON", "VIRTUAL_ENV"))}
        return env | {"PATH": f"{self.env.folder / 'bin'}:{env['PATH']}", "XDG_CACHE_HOME": str(self.folder / "cache")}

    def bash(self, text: str, env: dict[str, str]) -> tuple[int, str]:
        script = self.folder / "step.sh"
        script.write_text(text)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], env=env, cwd=self.made.root,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def action(self, **given: str) -> tuple[int, str, dict[str, str]]:
        """The exit code, what is printed, and the outputs."""
        inputs = {name: one["default"] for name, one in ACTION["inputs"].items()} | given
        known = {f"inputs.{name}": value for name, value in inputs.items()} | {"runner.temp": str(self.folder / "temp")}
        outputs = self.folder / "outputs"
        outputs.write_text("")
        temp = self.folder / "temp"
        temp.mkdir(exist_ok=True)
        env = self.environment() | {"GITHUB_OUTPUT": str(outputs), "GITHUB_ACTION_PATH": str(REPO)}
        env |= {"GITHUB_STEP_SUMMARY": str(self.folder / "summary"), "RUNNER_TEMP": str(temp)}
        text, code = "", 0
        for step in (step for step in STEPS if "run" in step):
            own = {
                name: EXPRESSION.sub(lambda found: known[found[1]], value)
                for name, value in step.get("env", {}).items()
            }
            code, said = self.bash(step["run"], env | own)
            text += said
            if code:
                break
        return code, text, dict(line.split("=", 1) for line in outputs.read_text().splitlines())


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Env:
    return Env(tmp_path_factory.mktemp("python") / "env", "pip")


@pytest.fixture
def runner(environment: Env, tmp_path: Path) -> Runner:
    return Runner(make_distribution(tmp_path / "made", lock=True), environment, tmp_path)


def annotations(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("::")]


@pytest.mark.heavy("builds and installs patchctl with its dependencies")
def test_the_action(runner: Runner) -> None:
    code, text, outputs = runner.action(profile="full", sarif="found.sarif")
    assert (code, outputs) == (0, {"exit-code": "0"}), text
    assert not [line for line in annotations(text) if line.startswith("::error")]
    assert "3 patches" in text and (runner.folder / "temp/patchctl-workspace/greeter/greeter/manners.py").is_file()
    assert json.loads((runner.made.root / "found.sarif").read_text())["version"] == "2.1.0"

    code, text, outputs = runner.action(static="true", args="--proven  --quiet")
    assert (code, outputs) == (1, {"exit-code": "1"}) and "typo" in "\n".join(annotations(text)), text

    runner.made.edit(runner.made.patch("typo"), "hello: spell the greeting right", "hello: spell the greeting right.")
    code, text, outputs = runner.action(static="true", sarif="found.sarif", profile="full")
    file = runner.made.patch("typo").relative_to(runner.made.root).as_posix()
    assert (code, outputs) == (1, {"exit-code": "1"}), text
    assert f"::error file={file},line=4,title=subject-form::" in text and "tip" not in text
    (run,) = json.loads((runner.made.root / "found.sarif").read_text())["runs"]
    assert "subject-form" in {one["ruleId"] for one in run["results"]}


@pytest.mark.heavy("builds and installs patchctl with its dependencies")
def test_drift_is_in_the_summary(runner: Runner) -> None:
    """Of a job in the morning, and it fails nothing."""
    code, text, outputs = runner.action(static="true", drift="true")
    summary = (runner.folder / "summary").read_text()
    assert (code, outputs) == (0, {"exit-code": "0"}) and "greeter" in summary, text + summary


def shown(start: str) -> str:
    """The job of docs/ci.md that begins with this line."""
    return re.findall(rf"(?s)```\n({re.escape(start)}.*?)```", (REPO / "docs/ci.md").read_text(encoding="utf-8"))[-1]


@pytest.mark.heavy("builds and installs patchctl with its dependencies")
@pytest.mark.parametrize(
    ("lines", "report"),
    [
        (yaml.safe_load(shown("patches:"))["patches"]["script"], "quality.json"),
        (re.findall(r"sh '(.*)'", shown("pipeline {")), "verify.xml"),
    ],
    ids=["GitLab", "Jenkins"],
)
def test_the_jobs_of_other_systems(runner: Runner, lines: list[str], report: str) -> None:
    """Each command by itself, as both do; patchctl from here in place of the address."""
    assert sum('"git+URL@TAG"' in line for line in lines) == 1
    for fault in (False, True):
        if fault:
            runner.made.edit(runner.made.patch("typo"), "the greeting right", "the greeting right.")
        for line in lines:
            code, text = runner.bash(line.replace("git+URL@TAG", str(REPO)), runner.environment())
            assert code == (fault and line == lines[-1]), text
        assert ("subject-form" in (runner.made.root / report).read_text()) == fault


def test_inputs_reach_the_shell_as_variables_alone() -> None:
    """An expression in a script would be run as code."""
    assert [step["run"] for step in STEPS if EXPRESSION.search(step.get("run", ""))] == []
    assert all(one["description"] for one in ACTION["inputs"].values())
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(STEPS)))
    assert used == {*ACTION["inputs"]}


def test_the_runner_knows_all_that_a_step_has() -> None:
    assert {key for step in STEPS if "run" in step for key in step} <= {"name", "id", "shell", "env", "run"}
    assert {step["shell"] for step in STEPS if "run" in step} == {"bash"}


def test_the_workflow_runs_what_is_there() -> None:
    runs = [step["run"] for job in CI["jobs"].values() for step in job["steps"] if "run" in step]
    assert any(".ci/run" in run for run in runs) and (REPO / ".ci/run").is_file()
    (test_tool,) = [run for run in runs if run.startswith("make ")]
    done = subprocess.run([*test_tool.split(), "--dry-run"], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and '-m "not heavy"' in done.stdout, done.stderr
    (own,) = [step for step in CI["jobs"]["verify"]["steps"] if step.get("uses") == "./"]
    assert {*own["with"]} <= {*ACTION["inputs"]}


def test_the_workflow_has_every_python() -> None:
    sys.path.insert(0, str(REPO / "scripts"))
    from test_pythons import VERSIONS

    assert CI["jobs"]["tool"]["strategy"]["matrix"]["python"] == VERSIONS


def test_the_templates_name_what_is_there() -> None:
    """Commands that patchctl has, files that are there, targets of make."""
    templates = [*(REPO / ".github/ISSUE_TEMPLATE").glob("*.yml"), REPO / ".github/PULL_REQUEST_TEMPLATE.md"]
    text = "\n".join(one.read_text(encoding="utf-8") for one in templates)
    verbs = set(re.findall(r"`patchctl ([a-z]\w*)", text))
    assert len(verbs) > 5 and verbs <= {*all_verbs()}
    files = set(re.findall(r"[\w/-]+\.md", text))
    assert len(files) > 3 and [name for name in files if not (REPO / name).is_file()] == []
    targets = re.findall(r"`make ([\w-]+)", text)
    assert targets and all(f"\n{name}:" in (REPO / "Makefile").read_text() for name in targets)
