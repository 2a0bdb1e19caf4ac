"""scripts/hdp_calibrate.py: costs that made-up updates were made with are found again; runs that tell none are refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
SHARE, SECONDS = 0.12, 3e-6
COSTS = ("--quadratic-length", "40000", "--ring-step", "0")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def update(tmp_path: Path, ranks: int, seed: int, noise: float = 1.0) -> str:
    """A run whose seconds are those of hdp_pays.py's plain context parallelism with a ring's share of SHARE."""
    rng = random.Random(seed)
    file, tokens = tmp_path / f"{ranks}-{seed}.txt", 32768 // ranks
    file.write_text(" ".join(str(rng.randrange(500, 9000)) for _ in range(64)))
    arguments = ("--ranks", str(ranks), "--max-tokens", str(tokens), "--ring-share", str(SHARE), "--json")
    done = run("hdp_pays.py", str(file), *COSTS, *arguments)
    return f"{ranks},{tokens},{SECONDS * noise * json.loads(done.stdout)['plain']},{file}"


def fitted(*runs: str) -> dict:
    done = run("hdp_calibrate.py", *COSTS, "--json", *runs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_costs_of_made_up_updates_are_found_again(tmp_path: Path) -> None:
    found = fitted(*(update(tmp_path, ranks, ranks) for ranks in (2, 4, 8)))
    assert found["ring_share"] == pytest.approx(SHARE) and found["seconds"] == pytest.approx(SECONDS)
    assert all(abs(miss) < 1e-9 for miss in found["misses"].values())


def test_measurements_that_spread_are_fitted_and_their_misses_told(tmp_path: Path) -> None:
    runs = [update(tmp_path, ranks, seed, 1 + 0.02 * (-1) ** seed) for ranks in (2, 8) for seed in range(6)]
    found = fitted(*runs)
    assert found["ring_share"] == pytest.approx(SHARE, rel=0.1)
    assert 0.01 < max(map(abs, found["misses"].values())) < 0.03


def test_the_line_to_set_is_printed(tmp_path: Path) -> None:
    done = run("hdp_calibrate.py", *COSTS, update(tmp_path, 2, 1), update(tmp_path, 8, 1))
    *_, line, variable = done.stdout.splitlines()
    assert line.endswith(".hybrid_data_parallel_costs.ring_share=0.120")
    assert variable.startswith("MEGATRON_DYNAMIC_CP_COSTS=ring_share=0.120 ")


def test_runs_that_tell_no_cost_are_refused(tmp_path: Path) -> None:
    same = [update(tmp_path, 4, seed) for seed in (1, 2)]
    done = run("hdp_calibrate.py", *COSTS, *same)
    assert done.returncode == 2 and "another context parallel size" in done.stderr
    two, eight = update(tmp_path, 2, 1), update(tmp_path, 8, 1, noise=0.3)
    done = run("hdp_calibrate.py", *COSTS, two, eight)
    assert done.returncode == 2 and "no cost of a ring explains these runs" in done.stderr
    for wrong in ("8,4608,1654", "8,4608,soon,a.txt", "0,4608,1,a.txt", "8,4608,1,nowhere.txt"):
        done = run("hdp_calibrate.py", *COSTS, wrong, two)
        assert done.returncode == 2 and wrong.split(",")[-1] in done.stderr and len(done.stderr.splitlines()) == 1
