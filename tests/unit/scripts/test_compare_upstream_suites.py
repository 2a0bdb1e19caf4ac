"""scripts/compare_upstream_suites.py on a suite of three tests, run by the interpreter that runs this."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Pin, Release, Stack

pytestmark = pytest.mark.heavy("runs pytest in processes of its own")

FIRST, SECOND, THIRD = "2001.02", "2001.03", "2001.04"
SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "compare_upstream_suites.py"

SUITES = """
suites:
  - name: small
    upstream: thing
    copy: [tests]
    env: {SEEN: "{scratch}", PYTEST_DISABLE_PLUGIN_AUTOLOAD: "1"}
    args: [tests]
    deselect: [{id: "tests/test_it.py::test_left_out", reason: needs a network}]
"""
# The tree on PYTHONPATH decides, as with a patch.
TESTS = """
import os, pytest, thing
def test_same(): assert os.path.isdir(os.environ["SEEN"])
class TestValue:
    @pytest.mark.parametrize("limit", [1, 2])
    def test_value(self, limit): assert thing.VALUE <= limit
def test_red(): assert False
def test_left_out(): assert False
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with one suite; trees in base/ and patched/ of `tmp_path` are the same."""
    spec = importlib.util.spec_from_file_location("compare_upstream_suites", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SUITES", tmp_path)
    extends = {FIRST: None, SECOND: None, THIRD: SECOND}
    releases = {name: Release(1, name, "One.", base) for name, base in extends.items()}
    made = Distribution(tmp_path, {}, {}, {}, {}, releases=releases)
    monkeypatch.setattr(module, "distribution", lambda: made)
    monkeypatch.setenv("PATCHCTL_TORCH_PYTHON", sys.executable)
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES)
    for side in ("base", "patched"):
        tests = tmp_path / side / "thing" / "tests"
        tests.mkdir(parents=True)
        (tests / "test_it.py").write_text(TESTS)
        (tests.parent / "thing.py").write_text("VALUE = 1\n")
    return module


def run(script: ModuleType, folder: Path, *more: str, release: str = FIRST) -> int:
    options = [
        "--release",
        release,
        "--base",
        str(folder / "base"),
        "--patched",
        str(folder / "patched"),
        "--out",
        str(folder / "out"),
    ]
    return int(script.main([*options, *more]))


def report(folder: Path) -> dict[str, object]:
    (suite,) = json.loads((folder / "out/upstream-suites-2001.02.json").read_text())["suites"]
    return dict(suite)


def test_same_outcomes(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "programs", lambda python: {"python": "3"})
    assert run(script, tmp_path) == 0
    suite = report(tmp_path)
    assert suite["status"] == "same"
    assert suite["base"] == suite["patched"] == {"failed": 1, "passed": 3}
    assert suite["not_passed"] == {"tests/test_it.py::test_red": "failed"}
    for path in (tmp_path / "out").iterdir():
        assert str(tmp_path) not in path.read_text()
    assert "needs a network" in (tmp_path / "out/upstream-suites-2001.02.md").read_text()


def test_what_is_on_record_of_the_unpatched_tree_is_not_run_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "programs", lambda python: {"python": "3"})
    assert run(script, tmp_path, "--kept") == 0
    assert "on record" not in capsys.readouterr().out
    assert run(script, tmp_path, "--kept") == 0
    assert "unpatched 1 failed, 3 passed (on record)" in capsys.readouterr().out
    assert report(tmp_path)["seconds"].keys() == {"patched"}  # type: ignore[attr-defined]
    (tmp_path / "patched/thing/thing.py").write_text("VALUE = 2\n")
    assert run(script, tmp_path, "--kept") == 1
    assert "differs: tests/test_it.py::TestValue::test_value[1]: passed / failed" in capsys.readouterr().out
    (tmp_path / "base/thing/thing.py").write_text("VALUE = 2\n")  # of other unpatched trees nothing is on record
    assert run(script, tmp_path, "--kept") == 0
    assert "on record" not in capsys.readouterr().out


def test_difference_is_rerun_and_named(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "patched/thing/thing.py").write_text("VALUE = 2\n")
    assert run(script, tmp_path) == 1
    (difference,) = report(tmp_path)["differences"]  # type: ignore[misc]
    assert difference == {
        "test": "tests/test_it.py::TestValue::test_value[1]",
        "base": "passed",
        "patched": "failed",
        "alone_base": ["passed"] * 3,
        "alone_patched": ["failed"] * 3,
        "expected": "",
    }
    assert "differs: tests/test_it.py::TestValue::test_value[1]: passed / failed" in capsys.readouterr().out
    assert "| thing.py |" in (tmp_path / "out/upstream-suites-2001.02.md").read_text().replace("`", "")


def test_flaky_is_what_differs_within_one_tree(script: ModuleType, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    # Runs 1 and 2 are those of the suite, then base and patched take turns: base alone gives red, green, red.
    flaky = f"""
import pathlib
def test_flaky():
    counter = pathlib.Path({str(counter)!r})
    number = int(counter.read_text()) + 1
    counter.write_text(str(number))
    assert number in (1, 4, 5, 6, 8)
"""
    for side in ("base", "patched"):
        (tmp_path / side / "thing/tests/test_flaky.py").write_text(flaky)
    assert run(script, tmp_path) == 0
    (difference,) = report(tmp_path)["differences"]  # type: ignore[misc]
    assert difference["test"] == "tests/test_flaky.py::test_flaky"
    assert difference["alone_base"] == ["failed", "passed", "failed"]
    assert "1 flaky" in (tmp_path / "out/upstream-suites-2001.02.md").read_text()


def test_file_that_cannot_be_collected_is_a_difference(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RERUNS", 1)  # each test of the file differs
    (tmp_path / "patched/thing/thing.py").write_text("raise RuntimeError\n")
    assert run(script, tmp_path) == 1
    assert report(tmp_path)["status"] == "DIFFERENT"


def test_absent_tree_or_tests_are_skipped_with_the_reason(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "patched/thing/tests").rename(tmp_path / "elsewhere")
    assert run(script, tmp_path) == 1
    assert "skipped: small: patched: the tree of thing carries no tests\n" in capsys.readouterr().out
    (tmp_path / "base/thing").rename(tmp_path / "else")
    assert run(script, tmp_path) == 1
    assert "base: no tree of thing" in capsys.readouterr().out


def test_of_a_partial_tree_what_is_there_is_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = SUITES.replace("args: [tests]", "args: [tests/test_it.py, tests/of_another_form]\n    partial: true")
    (tmp_path / f"suites-{FIRST}.yaml").write_text(suites)
    assert run(script, tmp_path) == 0
    assert "unpatched 1 failed, 3 passed; " in (said := capsys.readouterr().out)
    assert "    not in the tree: tests/of_another_form\n" in said
    assert "not run: `tests/of_another_form`\n" in (tmp_path / "out/upstream-suites-2001.02.md").read_text()
    for side in ("base", "patched"):
        (tmp_path / side / "thing/tests/test_it.py").unlink()
    assert run(script, tmp_path) == 1
    assert "the tree of thing carries no tests/test_it.py, tests/of_another_form\n" in capsys.readouterr().out


def test_unknown_suite_names_the_known_ones(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script, tmp_path, "--only", "big") == 1
    assert "no suite big; there are: small" in capsys.readouterr().err


SWITCH = """
    switches:
      - feature: larger
        file: thing.py
        replace: "VALUE = 1"
        with: "VALUE = 2"
        differs: [{id: "tests/test_it.py::TestValue::test_value[1]", reason: it asserts upstream's value}]
"""


def both(folder: Path) -> list[dict[str, object]]:
    return list(json.loads((folder / "out/upstream-suites-2001.02.json").read_text())["suites"])


def test_feature_on_by_another_default(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + SWITCH.lstrip("\n"))
    assert run(script, tmp_path) == 0
    off, on = both(tmp_path)
    assert (off["feature"], off["status"], off["differences"]) == ("", "same", [])
    assert (on["feature"], on["status"], on["patched"]) == ("larger", "same", {"failed": 2, "passed": 2})
    page = (tmp_path / "out/upstream-suites-2001.02.md").read_text()
    assert "| small, larger on |" in page and "it asserts upstream's value" in page
    assert (tmp_path / "patched/thing/thing.py").read_text() == "VALUE = 1\n"
    assert run(script, tmp_path, "--off-only") == 0
    assert len(both(tmp_path)) == 1


def test_quick_leaves_slow_suites_out_and_says_so(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + "    slow: true\n")
    assert run(script, tmp_path, "--quick") == 1  # nothing else was there to compare
    assert "left out: small: slow; `make test-upstream` runs it" in capsys.readouterr().out
    assert run(script, tmp_path) == 0


def test_feature_on_that_changes_a_test_is_a_difference(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RERUNS", 1)
    switch = SWITCH.replace("test_value[1]", "test_value[2]").lstrip("\n")
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + switch)
    assert run(script, tmp_path) == 1
    assert [one["status"] for one in both(tmp_path)] == ["same", "DIFFERENT"]


def test_feature_on_by_a_variable(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "RERUNS", 1)
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + "    switches: [{feature: larger, env: {LARGER: '1'}}]\n")
    (tmp_path / "patched/thing/thing.py").write_text("import os\nVALUE = 2 if os.environ.get('LARGER') else 1\n")
    assert run(script, tmp_path) == 1
    assert [one["status"] for one in both(tmp_path)] == ["same", "DIFFERENT"]


def test_feature_that_the_stack_lacks_is_not_switched_on(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + SWITCH.lstrip("\n"))
    made = script.distribution()
    patches = ["0001-feature-larger.patch"]
    for held, runs in ((patches, 2), ([], 1)):
        stack = Stack(1, "thing", "v1", Pin("0" * 40, "0" * 40), held)
        releases = {FIRST: Release(1, FIRST, "One.", stacks={"thing": "v1"})}
        made = replace(made, upstreams={"thing": None}, stacks={("thing", "v1"): stack}, releases=releases)
        script.distribution = lambda made=made: made
        assert run(script, tmp_path) == 0
        assert len(both(tmp_path)) == runs


def test_default_that_is_not_in_one_place(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + SWITCH.lstrip("\n").replace("VALUE = 1", "VALUE"))
    (tmp_path / "patched/thing/thing.py").write_text("VALUE = 1\nOTHER = VALUE\n")
    with pytest.raises(ValueError, match="holds 'VALUE' 2 times"):
        run(script, tmp_path)


def test_plugin_edits_and_ranks(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin on the path of two ranks that share a folder; an edited test; one that is red on one rank only."""
    monkeypatch.setattr(sys.modules["suite_runs"], "SUITES", tmp_path)
    plugin = tmp_path / "plugins/quiet/quiet_plugin.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("SEEN = 1\n")
    ranks = """
import os, quiet_plugin
def test_edited(tmp_path_factory):
    ranks = tmp_path_factory.mktemp("any").parent.parent
    assert quiet_plugin.SEEN == 2 and os.environ["WORLD_SIZE"] == "2" and ranks.name == "tmp"
def test_one_rank(): assert os.environ["RANK"] == "0"
"""
    for side in ("base", "patched"):
        (tmp_path / side / "thing/tests/test_ranks.py").write_text(ranks)
    edit = '[{file: tests/test_ranks.py, replace: "SEEN == 2", with: "SEEN == 1", reason: the plugin has one}]'
    own = SUITES.replace("args: [tests]", f"args: [tests/test_ranks.py]\n    edits: {edit}")
    (tmp_path / f"suites-{FIRST}.yaml").write_text(own + "    plugin: quiet\n    procs: 2\n")
    assert run(script, tmp_path) == 0
    suite = report(tmp_path)
    assert suite["base"] == suite["patched"] == {"failed": 1, "passed": 1}
    assert suite["not_passed"] == {"tests/test_ranks.py::test_one_rank": "failed"}
    page = (tmp_path / "out/upstream-suites-2001.02.md").read_text()
    assert "the plugin has one" in page and "in 2 ranks" in page


def test_edit_that_upstream_has_overtaken(script: ModuleType, tmp_path: Path) -> None:
    edit = "[{file: tests/test_it.py, replace: nothing like it, with: more, reason: it is slow}]"
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + f"    edits: {edit}\n")
    with pytest.raises(ValueError, match="does not hold 'nothing like it'"):
        run(script, tmp_path)
    (tmp_path / f"suites-{FIRST}.yaml").write_text(SUITES + "    edits: [{file: a, replace: b, with: c, reason: ''}]\n")
    with pytest.raises(ValueError, match="each edit needs a reason"):
        run(script, tmp_path)


def test_another_release_has_files_of_its_own(script: ModuleType, tmp_path: Path) -> None:
    """Its list alone is read, or that of the one which it extends, and its evidence leaves that of the others as it is."""
    (tmp_path / f"suites-{SECOND}.yaml").write_text(SUITES.replace("small", "newer"))
    assert run(script, tmp_path) == 0
    for name in (SECOND, THIRD):
        before = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
        assert run(script, tmp_path, release=name) == 0
        after = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
        assert after.keys() - before.keys() == {f"upstream-suites-{name}.json", f"upstream-suites-{name}.md"}
        assert before.items() <= after.items()
        newer = json.loads(after[f"upstream-suites-{name}.json"])
        assert [one["suite"] for one in newer["suites"]] == ["newer"] and f"--release {name}" in newer["command"]
