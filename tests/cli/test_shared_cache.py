"""A cache that two users share. The second one is root without its powers, to whom the first one's files are another's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from distribution import Made
from on_disk import Workspace, command, copy_of, environment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
OTHER = 12345
WITHOUT_POWERS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.fixture
def made(small: Made, tmp_path: Path) -> Made:
    return copy_of(small, tmp_path)


def first_user(made: Made, tmp_path: Path, umask: int) -> None:
    """Fetches and applies with this umask; all of the cache is the first user's afterwards, and of a common group."""
    shutil.rmtree(made.cache)
    line = command(made, "apply", "--profile", "full", "--workspace", str(tmp_path / "first"))
    subprocess.run(line, env=environment(made), umask=umask, check=True, capture_output=True)
    for path in [made.cache, *made.cache.rglob("*")]:
        os.chown(path, OTHER, os.getgid(), follow_symlinks=False)


def second_user(made: Made, tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    line = command(made, "apply", "--profile", "full", "--workspace", str(tmp_path / "second"), *args)
    return subprocess.run(
        [*WITHOUT_POWERS, *line], env=environment(made), umask=0o002, text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize("umask", [0o002, 0o022])
def test_what_one_user_computed_another_can_use(made: Made, tmp_path: Path, umask: int) -> None:
    first_user(made, tmp_path, umask)
    done = second_user(made, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (Workspace(made, tmp_path / name).trees() for name in ("first", "second"))
    assert {p: digest for p, (_, digest) in first.items()} == {p: digest for p, (_, digest) in second.items()}


def test_a_cache_for_the_group_takes_what_another_computes(made: Made, tmp_path: Path) -> None:
    first_user(made, tmp_path, 0o002)
    before = set((made.cache / "stacks").iterdir())
    done = second_user(made, tmp_path, "--without", "polite")
    assert done.returncode == 0, done.stderr
    assert set((made.cache / "stacks").iterdir()) > before


@pytest.mark.parametrize(("umask", "args"), [(0o022, ("--without", "polite")), (0o077, ())], ids=["to-read", "private"])
def test_a_cache_that_cannot_be_used_is_named(made: Made, tmp_path: Path, umask: int, args: tuple[str, ...]) -> None:
    first_user(made, tmp_path, umask)
    done = second_user(made, tmp_path, *args)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert str(made.cache) in done.stderr
    assert not (tmp_path / "second").exists()


def test_what_a_killed_run_left_goes_after_a_day(made: Made, tmp_path: Path) -> None:
    shutil.rmtree(made.cache / "stacks")
    old, new = made.cache / "stacks/.new-0ld", made.cache / "stacks/.new-young"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "pack-1.pack").write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    Workspace(made, tmp_path / "ws").apply("full", "--without", "polite")
    assert new.exists() and not old.exists()
