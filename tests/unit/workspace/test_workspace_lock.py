"""The lock of a workspace: one holder at a time, although each takes the file away that it made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchctl.errors import WorkspaceBusy, WrongUse
from patchctl.workspace.workspace_lock import workspace_lock

# Each process takes the lock again and again; who holds it makes a file that must not be there.
RUNNER = """
import os, sys
from pathlib import Path
from patchctl.errors import WorkspaceBusy
from patchctl.workspace.workspace_lock import workspace_lock
workspace, marker, held = Path(sys.argv[1]), sys.argv[2], 0
while held < 25:
    try:
        with workspace_lock(workspace):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            os.unlink(marker)
            held += 1
    except WorkspaceBusy:
        pass
"""


def test_two_never_hold_it_at_once(tmp_path: Path) -> None:
    workspace = tmp_path / "a" / "ws"
    line = [sys.executable, "-c", RUNNER, str(workspace), str(tmp_path / "held")]
    runs = [subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for run in runs:
        _, error = run.communicate(timeout=120)
        assert run.returncode == 0, error
    assert not (workspace / ".patchctl").exists() and not (tmp_path / "held").exists()


def test_a_link_to_nothing_is_not_busy(tmp_path: Path) -> None:
    (tmp_path / "ws").symlink_to(tmp_path / "unmounted/disk")
    with pytest.raises(WrongUse, match="a link to nothing") as caught, workspace_lock(tmp_path / "ws"):
        pass
    assert str(tmp_path / "ws") in str(caught.value.where)


@pytest.mark.parametrize("file", ["a", "a/ws", "a/ws/.patchctl"])
def test_a_file_in_its_place_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("mine")
    with pytest.raises(WrongUse) as refused, workspace_lock(tmp_path / "a" / "ws"):
        raise AssertionError("it is held in a file")
    assert str(tmp_path / file) in str(refused.value) and (tmp_path / file).read_text() == "mine"


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt, OSError])
def test_nothing_is_left_where_nothing_was(tmp_path: Path, ending: type[BaseException] | None) -> None:
    workspace = tmp_path / "a" / "ws"
    try:
        with workspace_lock(workspace):
            (workspace / ".patchctl/new/greeter.git").mkdir(parents=True)
            (workspace / ".patchctl/journal.json.new").touch()
            if ending is not None:
                raise ending
    except (KeyboardInterrupt, OSError):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["state.json", "journal.json", "kept", "into", "something"])
def test_what_somebody_needs_stays(tmp_path: Path, name: str) -> None:
    with workspace_lock(tmp_path / "ws"):
        (tmp_path / "ws/.patchctl" / name).touch()
    assert sorted(os.listdir(tmp_path / "ws/.patchctl")) == sorted(["lock", name])


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with workspace_lock(tmp_path):
        with pytest.raises(WorkspaceBusy, match=f"process {os.getpid()}"), workspace_lock(tmp_path):
            raise AssertionError("it is held twice")
        assert (tmp_path / ".patchctl/lock").is_file()  # the one that was refused took nothing away
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
