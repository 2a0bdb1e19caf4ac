"""The fixed share of `make torture` that every change is tried with: of each way to stop a run, points that lie evenly over it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seccomp
from scenario import Scenario
from scenarios import ALL
from torture import KINDS

SHARE = int(os.environ.get("PATCHCTL_TORTURE", 8))
RUN = Path(__file__).with_name("run.py")
SKIP = seccomp.why_not()


@pytest.mark.skipif(SKIP is not None, reason=str(SKIP))
@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_stopped_at_a_share_of_its_calls(scenario: Scenario, tmp_path: Path) -> None:
    if SHARE == 1 and scenario.name.startswith("install-"):
        pytest.skip("half a minute of pip: `make torture-share` takes it; `install` is the same from another start")
    name, share = scenario.name, -(-SHARE // scenario.weight)
    line = [sys.executable, str(RUN), "--only", name, "--jobs", "1", "--share", str(SHARE), "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if "skipped: " in done.stdout:
        pytest.skip(done.stdout.strip())
    rows = [json.loads(line) for line in (tmp_path / f"{name}.0.jsonl").read_text().splitlines()]
    points = rows[0]["points"]
    assert len(rows) - 1 == sum(min(share, points[k.name]) for k in KINDS)
    reached = [r for r in rows[1:] if r["call"] != "not reached"]
    assert len(reached) >= 0.9 * (len(rows) - 1) - 1  # what git writes can differ by a call from run to run


@pytest.mark.skipif(SKIP is not None, reason=str(SKIP))
def test_every_call_of_every_process_is_held_in_order(tmp_path: Path) -> None:
    """What the rest is built on: an exact list, across processes, of a program whose calls are known."""
    held: list[seccomp.Call] = []

    def child() -> int:
        os.chdir(tmp_path)
        Path("a").write_bytes(b"one")
        subprocess.run(["mv", "a", "b"], check=True)
        os.mkdir("folder")
        try:
            os.mkdir("folder")
        except FileExistsError:
            pass
        Path("b").read_bytes()
        os.unlink("b")
        return 7

    def watch(call: seccomp.Call, first: int) -> seccomp.Answer:
        held.append(call)
        return seccomp.GO_ON

    ended = seccomp.run(child, watch, 20)
    assert (ended.status, ended.hung, ended.err) == (7, False, "")
    seen = [(c.name.removesuffix("at").removesuffix("at2"), Path(c.path).name) for c in held if c.changes]
    assert seen == [("open", "a"), ("write", "a"), ("rename", "a"), ("mkdir", "folder"), ("unlink", "b")]
    assert len({c.pid for c in held if c.changes}) == 2


@pytest.mark.skipif(SKIP is not None, reason=str(SKIP))
def test_a_call_fails_or_kills_as_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a"

    def child() -> int:
        try:
            file.write_bytes(b"one")
        except OSError as error:
            return error.errno or 0
        return 0

    refused = seccomp.run(child, lambda c, first: seccomp.Answer(28) if c.name == "write" else seccomp.GO_ON, 20)
    assert refused.status == 28
    assert file.read_bytes() == b""
    file.unlink()
    killed = seccomp.run(child, lambda c, first: seccomp.Answer(kill=(c.pid,)) if c.opens else seccomp.GO_ON, 20)
    assert killed.status == -9
    assert not file.exists()
