"""`doctor` and `preflight` in the formats that CI systems read, beside what the same run says as JSON; and `verify` for GitLab."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import formats
import pytest
from distribution import GREETER, REPO, make_distribution, run_patchctl
from machines import npu_smi, write_machine

PREFLIGHT = ("preflight", "-p", "qwen3-235b", "-r", "grpo", "--accept", "cann", "--machine")


def settled(text: str) -> str:
    """Without the disk's free space, which other tests change between two runs."""
    return re.sub(r"[\d.]+ \wiB free at", "some free at", text)


@dataclass(frozen=True)
class Run:
    """One verb on one machine; exit code and output in any format."""

    line: tuple[str, ...]
    home: Path
    path: str | None = None

    def __call__(self, form: str) -> tuple[int, str]:
        env = {} if self.path is None else {"PATH": self.path}
        done = run_patchctl(*self.line, "--format", form, home=self.home, env=env)
        assert done.stdout and "Traceback" not in done.stderr, done.stderr
        return done.returncode, settled(done.stdout)

    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("json")[1])["findings"]
        return found


@pytest.fixture(scope="module")
def doctor(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Where no source can be had, and no torch, which nothing needs."""
    folder = tmp_path_factory.mktemp("doctor")
    made = make_distribution(folder, (GREETER,), lock=True)
    made.edit("manifests/upstreams.yaml", (made.origins / "greeter").as_uri(), "file:///nowhere/greeter")
    line = (f"--root={made.root}", f"--cache={folder / 'empty'}", "doctor")
    return Run(line, folder / "home")


@pytest.fixture(scope="module")
def preflight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A machine with a sick device, whose limits nobody recorded, with another CANN, which is accepted."""
    folder = tmp_path_factory.mktemp("preflight")
    machine = write_machine(
        folder / "node", npu_smi=npu_smi(health={(3, 1): "Critical"}), limits=None, cann="version=8.3.RC1\n"
    )
    line = (f"--root={REPO}", f"--cache={folder / 'cache'}", *PREFLIGHT, str(machine))
    return Run(line, folder / "home")


@pytest.fixture(params=["doctor", "preflight"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def weight(finding: dict[str, Any]) -> str:
    """What stops is an error; what else is not as it should be, a warning, unless it says that it is a note."""
    return "error" if finding["blocks"] else finding["level"] if finding["level"] in ("ok", "note") else "warning"


def test_format_json_is_json(run: Run) -> None:
    done = run_patchctl(*run.line, "--json", home=run.home)
    assert (done.returncode, settled(done.stdout)) == run("json")


def test_junit_has_a_case_for_everything_that_was_looked_at(run: Run) -> None:
    code, text = run("junit")
    expected = {(f"patchctl.{f['area']}", f["name"], f["what"]): f for f in run.findings()}
    assert code == 1 and any(f["blocks"] for f in expected.values())
    cases = formats.junit(text)
    assert len(cases) == len(expected)
    for case, found in zip(cases, expected.values(), strict=True):
        assert (case.get("classname"), case.get("name")) == (f"patchctl.{found['area']}", found["name"])
        parts = {part.tag: part.get("message") or part.text or "" for part in case}
        unknown = found["level"] == "unknown" and not found["blocks"]
        result = "failure" if found["blocks"] else "skipped" if unknown else "system-out"
        assert set(parts) == (set() if found["level"] == "ok" else {result}), parts
        if found["level"] != "ok":
            assert parts[result].startswith(found["what"][:200])
            assert found["todo"] is None or f"(try: {found['todo'][:40]}" in parts[result]


def test_sarif_has_a_result_for_everything_that_is_not_as_it_should_be(run: Run) -> None:
    code, text = run("sarif")
    results = formats.sarif(text)
    wrong = [f for f in run.findings() if f["level"] != "ok"]
    assert code == 1
    assert [(r["ruleId"], r["level"]) for r in results] == [(f"{f['area']}/{f['name']}", weight(f)) for f in wrong]
    assert all(r["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == r["ruleId"] for r in results)


def test_github_annotations(run: Run) -> None:
    code, text = run("github")
    wrong = [f for f in run.findings() if f["level"] != "ok"]
    assert code == 1
    levels = {"error": "error", "warning": "warning", "note": "notice"}
    assert [(level, p) for level, p, _ in formats.github(text)] == [
        (levels[weight(f)], {"title": f"{f['area']}/{f['name']}"}) for f in wrong
    ]


def test_gitlab_issues(run: Run) -> None:
    code, text = run("gitlab")
    wrong = [f for f in run.findings() if f["level"] != "ok"]
    assert code == 1
    severities = {"error": "critical", "warning": "minor", "note": "info"}
    assert [(i["check_name"], i["severity"]) for i in formats.gitlab(text)] == [
        (f"{f['area']}/{f['name']}", severities[weight(f)]) for f in wrong
    ]


def test_the_places_that_had_no_source_are_in_every_format(doctor: Run) -> None:
    (missing,) = [f for f in doctor.findings() if f["area"] == "sources"]
    assert missing["blocks"] and missing["tried"]
    for form in ("text", "github", "gitlab", "sarif", "junit"):
        assert missing["tried"][0]["place"] in doctor(form)[1].replace("%3A", ":"), form


def test_verify_for_gitlab(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,), lock=True)
    typo = made.patch("typo")
    made.edit(typo, "Upstream-Status: Pending", "Upstream-Status: maybe")
    found = json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
    done = made.patchctl("verify", "--static", "--format", "gitlab")
    issues = formats.gitlab(done.stdout)
    assert done.returncode == 1 and len(issues) == len(found) >= 2
    (status,) = [i for i in issues if i["check_name"] == "status-form"]
    assert status["location"] == {"path": str(typo.relative_to(made.root)), "lines": {"begin": 14}}
    typo.write_text(typo.read_text().replace("Risk: ", "It is one more line.\n\nRisk: ", 1))
    again = formats.gitlab(made.patchctl("verify", "--static", "--format", "gitlab").stdout)
    (later,) = [i for i in again if i["check_name"] == "status-form"]
    assert later["location"]["lines"]["begin"] > 14 and later["fingerprint"] == status["fingerprint"]
