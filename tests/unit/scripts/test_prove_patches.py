"""scripts/prove_patches.py on a feature of two lines: what it accepts as proof, and what it does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "prove_patches.py"

CONFTEST = """
import pathlib, pytest
def pytest_addoption(parser):
    parser.addoption("--trees")
    parser.addoption("--slow", action="store_true")
def pytest_configure(config):
    for name in ("on", "off", "misuse"):
        config.addinivalue_line("markers", name)
def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers()]
@pytest.fixture
def code(request):
    tree = pathlib.Path(request.config.getoption("--trees"), "up-stream")
    if not tree.is_dir():
        pytest.skip("no tree of up-stream")
    return (tree / "code.py").read_text()
"""
TESTS = """
import pytest
@pytest.mark.on
def test_need(code):
    assert "fixed" in code
@pytest.mark.off
def test_rest(code):
    assert "rest" in code
"""
MUTANT = "feature: thing\nupstream: up-stream\nfile: code.py\nreplace: fixed\nwith: broken\nwhy: the fix goes\n"


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, working on a repository of its own in `tmp_path`, with trees in base/ and patched/."""
    spec = importlib.util.spec_from_file_location("prove_patches", SCRIPT)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    monkeypatch.setitem(sys.modules, "prove_patches", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "REPO", tmp_path)
    monkeypatch.setattr(script, "BEHAVIOUR", tmp_path / "behaviour")
    files = {
        "behaviour/conftest.py": CONFTEST,
        "behaviour/up_stream/test_thing.py": TESTS,
        "behaviour/mutants/thing.yaml": MUTANT,
        "base/up-stream/code.py": "rest\n",
        "patched/up-stream/code.py": "rest\nfixed\n",
        "patched/other/code.py": "other\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return script


def run(script: ModuleType, folder: Path, *more: str) -> int:
    return int(script.main(["--base", str(folder / "base"), "--patched", str(folder / "patched"), *more]))


def test_red_green_and_red_mutant_is_a_proof(
    prove: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patched = tmp_path / "patched/up-stream/code.py"
    before = patched.stat().st_ino, patched.read_text()
    assert run(prove, tmp_path, "--mutants", "--json", str(tmp_path / "out.json")) == 0
    assert "proved: up-stream thing: 1/1 on red unpatched" in capsys.readouterr().out
    (feature,) = json.loads((tmp_path / "out.json").read_text())["features"]
    assert feature["status"] == "proved"
    assert [one["result"] for one in feature["mutants"]["thing"]] == ["failed"]
    assert (patched.stat().st_ino, patched.read_text()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "behaviour", "out.json", "patched"]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("base/up-stream/code.py", "rest\nfixed\n", "base: on test_need passed, must be failed"),
        ("base/up-stream/code.py", "", "base: off test_rest failed, must be passed"),
        ("patched/up-stream/code.py", "rest\n", "patched: on test_need failed"),
        ("behaviour/up_stream/test_thing.py", TESTS + "def test_unmarked(): pass\n", "test_unmarked needs exactly one"),
        ("behaviour/up_stream/test_thing.py", "import nothing_of_this_name\n", "error"),
        ("behaviour/mutants/thing.yaml", MUTANT.replace("fixed", "absent"), "occurs 0 times in code.py"),
        ("behaviour/mutants/thing.yaml", MUTANT.replace("broken", "fixed, too"), "no `on` or `misuse` test fails"),
        ("behaviour/mutants/thing.yaml", MUTANT.replace("thing", "else"), "no mutant"),
        ("behaviour/up_stream/test_thing.py", TESTS.replace("(code)", "(nothing)"), "base: on test_need error"),
    ],
)
def test_what_is_no_proof(
    prove: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, problem: str
) -> None:
    (tmp_path / file).write_text(text)
    assert run(prove, tmp_path, "--mutants") == 1
    out = capsys.readouterr().out
    assert "NOT PROVED: up-stream thing" in out
    assert problem in out


def test_skipped_is_no_proof_and_gives_its_reason(
    prove: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "patched/up-stream").rename(tmp_path / "patched/elsewhere")
    assert run(prove, tmp_path, "--mutants") == 1
    out = capsys.readouterr().out
    assert "skipped: up-stream thing" in out
    assert "3 skipped: no tree of up-stream" in out
    assert out.endswith("1 skipped\n")


def test_mutant_without_tests_is_named(prove: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "behaviour/mutants/gone.yaml").write_text(MUTANT.replace("thing", "gone"))
    assert run(prove, tmp_path, "--mutants") == 1
    assert "mutants/gone.yaml: no test_gone.py of up-stream" in capsys.readouterr().out


def test_a_part_of_a_feature_has_a_file_of_its_own(prove: ModuleType, tmp_path: Path) -> None:
    part = 'import pytest\n@pytest.mark.on\ndef test_part(code):\n    assert "more" in code\n'
    (tmp_path / "behaviour/up_stream/test_thing_part.py").write_text(part)
    (tmp_path / "behaviour/mutants/thing.part_less.yaml").write_text(MUTANT.replace("fixed", "more"))
    (tmp_path / "patched/up-stream/code.py").write_text("rest\nfixed\nmore\n")
    assert run(prove, tmp_path, "--mutants", "--json", str(tmp_path / "out.json")) == 0
    (feature,) = json.loads((tmp_path / "out.json").read_text())["features"]
    assert feature["feature"] == "thing"
    red = {name: [(one["test"], one["result"]) for one in run] for name, run in feature["mutants"].items()}
    # Only the tests of the part ran for the mutation that is named for it; for the other, the feature's own were enough.
    assert red == {"thing": [("test_need", "failed")], "thing.part_less": [("test_part", "failed")]}


MISUSE = """@pytest.mark.misuse
def test_refusal(code):
    assert "refused" in code
"""


def test_a_refusal_taken_out_is_seen_by_misuse_tests(
    prove: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "behaviour/up_stream/test_thing.py").write_text(TESTS + MISUSE)
    (tmp_path / "behaviour/mutants/thing.refuse.yaml").write_text(MUTANT.replace("fixed", "refused"))
    (tmp_path / "patched/up-stream/code.py").write_text("rest\nfixed\nrefused\n")
    assert run(prove, tmp_path, "--mutants", "--json", str(tmp_path / "out.json")) == 0
    assert "2/2 mutants red, 1 by misuse tests" in capsys.readouterr().out
    (feature,) = json.loads((tmp_path / "out.json").read_text())["features"]
    red = {name: [(one["test"], one["result"]) for one in run] for name, run in feature["mutants"].items()}
    # The misuse tests ran for the mutation that the `on` test passes, and for that one only.
    assert red == {
        "thing": [("test_need", "failed")],
        "thing.refuse": [("test_need", "passed"), ("test_refusal", "failed")],
    }
