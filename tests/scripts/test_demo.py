"""`make demo`, shortened: twelve steps, stopped after the second and resumed, with everything that it starts on the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from data_and_weights import Scripts

pytest_plugins = ["data_and_weights"]

REPO = Path(__file__).resolve().parents[2]
RUN = REPO / "scripts" / "demo" / "run.py"
LIMIT_S = 1500


def demo(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    mirrors = Path(os.environ["PATCHCTL_MIRRORS"]) if os.environ.get("PATCHCTL_MIRRORS") else None
    given = [f"--mirror={one.name.removesuffix('.git')}={one}" for one in sorted(mirrors.iterdir())] if mirrors else []
    command = [sys.executable, str(RUN), "--out", str(out), *given, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


FEATURES = {"2026.02": ("skip_old_log_prob", "data_rebalance", "sam_proposer"), "2026.11": ("skip_old_log_prob",)}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_few_steps_a_stop_and_a_resume(
    scripts: Scripts, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "2026.02":
        assert scripts.python  # skipped, with the reason, where there is no CPU torch
    elif python := os.environ.get(f"PATCHCTL_TORCH_PYTHON_{name.replace('.', '_')}"):
        monkeypatch.setenv("PATCHCTL_TORCH_PYTHON", python)
    else:
        pytest.skip("PATCHCTL_TORCH_PYTHON_2026_11 names no Python with the packages of release set 2026.11")
    ended = demo(tmp_path / "demo", "--set", name, "--steps", "12", "--stop", "2", "--save", "2")
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout[-3000:]
    (run,) = (tmp_path / "demo").glob("run-*")
    log = (run / "whole.log").read_text(encoding="utf-8", errors="replace")
    assert (run / "reward.png").stat().st_size > 10_000
    # The first run was ended by a signal, and the second one began behind its checkpoint.
    assert "the training ended with 143" in log and "the training ended with 0" in log
    resumed = log.partition("the training ended with 143")[2]
    # Validation comes first: at the step of the checkpoint, and at 0 where nothing was resumed.
    validated, trained = map(int, re.findall(r"step:(\d+) - ", resumed)[:2])
    assert validated >= 2 and validated % 2 == 0 and trained == validated + 1
    assert "equal to the lock before and after" in ended.stdout
    for feature in FEATURES[name]:
        assert feature in ended.stdout


@pytest.mark.parametrize("words", [("--stop", "60"), ("--save", "0"), ("--save", "31")])
def test_there_has_to_be_something_to_resume_from(tmp_path: Path, words: tuple[str, str]) -> None:
    ended = demo(tmp_path / "demo", *words)
    assert ended.returncode == 2 and "something to resume from" in ended.stderr
    assert not (tmp_path / "demo").exists()
