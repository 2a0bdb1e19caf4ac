"""Temporary folders: gone with their run, and those of killed runs with the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchctl.scratch import scratch

HOLD = (
    "import os, sys; from pathlib import Path; from patchctl.scratch import scratch\n"
    "with scratch('mine-', Path(sys.argv[1])) as folder:\n"
    "    (folder / 'big').write_text('trees')\n"
    "    print(folder.name, flush=True); sys.stdin.readline(); os._exit(9)\n"
)


def test_what_a_killed_run_left_goes_and_what_a_live_one_holds_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a file\n")
    (tmp_path / "other-1").mkdir()
    (tmp_path / "mine-link").symlink_to("other-1")
    live = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert live.stdin is not None and live.stdout is not None
    name = live.stdout.readline().strip()
    with scratch("mine-", tmp_path) as folder:
        assert (tmp_path / name / "big").exists() and folder.name.startswith("mine-")
        folder.joinpath("inner").mkdir()
    live.communicate("\n")
    assert live.returncode == 9 and (tmp_path / name).exists()
    with scratch("mine-", tmp_path):
        assert not (tmp_path / name).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine-link", "mine.txt", "other-1"]


def test_folders_that_may_not_be_written_go_too(tmp_path: Path) -> None:
    with scratch("mine-", tmp_path) as folder:
        (folder / "closed").mkdir()
        (folder / "closed" / "file").write_text("a module cache\n")
        (folder / "closed").chmod(0o500)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_removed_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be written: the run ends as it would have, and the next one sweeps."""
    with scratch("mine-", tmp_path) as folder:
        (folder / "inner").mkdir()
        (tmp_path / "theirs").mkdir(mode=0o750)
        (folder / "link").symlink_to(tmp_path / "theirs")
        monkeypatch.setattr("shutil.rmtree", lambda *args, **options: None)
    assert folder.exists() and (tmp_path / "theirs").stat().st_mode & 0o777 == 0o750
    monkeypatch.undo()
    with scratch("mine-", tmp_path):
        assert not folder.exists()
