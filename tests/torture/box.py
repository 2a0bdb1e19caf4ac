"""The place in which a run is tried: one folder, always the same, filled from a copy that was prepared once."""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import seccomp
import stacks
from distribution import REPO, Made, git
from on_disk import Snapshot, snapshot

SECONDS = 60.0


@dataclass(frozen=True)
class Box:
    """Everything that a run can reach, below one folder. `made` is the distribution with its cache."""

    folder: Path

    @property
    def made(self) -> Made:
        return Made(self.folder / "distribution", self.folder / "origins", self.folder / "cache")

    @property
    def ws(self) -> Path:
        return self.folder / "ws"

    @property
    def beside(self) -> Path:
        """What is the user's and nothing of ours."""
        return self.folder / "beside"

    def at(self, name: str) -> Path:
        return self.folder / name

    def run(self, args: Sequence[str], decide: seccomp.Decide | None = None) -> seccomp.Ended:
        """`patchctl ARGS` on this distribution, forked off this process, which has its modules loaded already."""
        line = [f"--root={self.made.root}", f"--cache={self.made.cache}", *args]
        return seccomp.run(self.body(lambda: _patchctl(line)), decide, SECONDS)

    def good(self, *args: str) -> str:
        done = self.run(args)
        assert done.status == 0, f"{args} ended with {done.status}\n{done.out}\n{done.err}"
        return done.out

    def body(self, what: Callable[[], int]) -> Callable[[], int]:
        """`what` in the box's home and environment, ended as an interpreter ends."""

        def child() -> int:
            signal.alarm(round(2 * SECONDS))
            os.chdir(self.folder / "home")
            environment = self._environment()
            os.environ.clear()
            os.environ.update(environment)
            tempfile.tempdir = None
            code = what()
            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()
            return code

        return child

    def trees(self) -> Snapshot:
        """Every file of the workspace's trees, without git's and our own folders, and without what is the user's."""
        found = snapshot(self.ws)
        return {p: s for p, s in found.items() if not ({".git", ".patchctl"} & set(p.split("/")))}

    def _environment(self) -> dict[str, str]:
        own = {"HOME": self.folder / "home", "TMPDIR": self.folder / "tmp", "PYTHONPATH": REPO}
        return {
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PATCHCTL_NO_PROGRESS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # `prove` runs pytest
            "PIP_FIND_LINKS": str(self.made.index),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATCHCTL_CACHE": str(self.made.cache),
            **{k: str(v) for k, v in own.items()},
        }


def new_box(folder: Path) -> Box:
    """A box with the distribution, its cache and what is the user's beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    box = Box(folder)
    for name in ("home", "tmp", "beside"):
        box.at(name).mkdir(parents=True)
    stacks.make(folder)
    (box.beside / "mine.txt").write_text("nobody's business\n")
    (box.beside / "mine.bin").write_bytes(bytes(range(256)))
    return box


def copy_folder(source: Path, target: Path) -> None:
    """`target` becomes a copy of `source`, times and links included."""
    if target.exists():
        subprocess.run(["rm", "-rf", str(target)], check=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)


def load_everything() -> None:
    """Load every module of patchctl, so that no run has to."""
    import patchctl

    for module in pkgutil.walk_packages(patchctl.__path__, "patchctl."):
        if module.name != "patchctl.__main__":
            importlib.import_module(module.name)


def settle(folder: Path) -> None:
    """A person's things in a tree: an untracked and an ignored file, a branch with a commit, an entry of `git stash`."""
    (folder / "notes.txt").write_text("do not lose me\n")
    (folder / "run.log").write_text("ignored, and wanted\n")
    core = next(p for p in (folder / "shapes/core.py", folder / "README") if p.exists())
    kept = core.read_bytes()
    core.write_bytes(kept + b"# an idea\n")
    git(folder, "stash", "push", "--quiet", "-m", "an idea")
    commit = git(folder, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "mine").strip()
    git(folder, "update-ref", "refs/heads/mine", commit)
    assert core.read_bytes() == kept


def belongings(folder: Path, *more: str) -> dict[str, bytes | None]:
    """What `settle` put there, and `more` files, as they are now."""
    names = ("notes.txt", "run.log", ".git/refs/heads/mine", ".git/refs/stash", ".git/logs/refs/stash", *more)
    return {str(folder / n): (folder / n).read_bytes() if (folder / n).is_file() else None for n in names}


def _patchctl(line: Sequence[str]) -> int:
    from patchctl.__main__ import run

    return run(list(line))
