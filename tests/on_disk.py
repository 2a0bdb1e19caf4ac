"""What the tests of workspaces share: distributions made once, workspaces, and what lies on the disk, exactly.

A conftest imports the fixtures: `small` (greeter and clock), `big` (hundreds of files, tens of patches), `own` (a copy of
`small` that a test may change). Sources and locks are made once a session; each test has its own workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from distribution import REPO, Link, Made, Patch, Program, Upstream, git, make_distribution

Snapshot = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Workspace:
    """One workspace of a distribution."""

    made: Made
    folder: Path

    def run(self, verb: str, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`patchctl VERB --workspace FOLDER ARGS`; the caller looks at the exit code."""
        return self.made.patchctl(verb, "--workspace", str(self.folder), *args, env=env)

    def good(self, verb: str, *args: str) -> str:
        """The standard output of a run that must end with 0."""
        done = self.run(verb, *args)
        assert done.returncode == 0, f"{verb} {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def apply(self, profile: str = "full", *args: str) -> str:
        return self.good("apply", "--profile", profile, *args)

    def json(self, verb: str, *args: str, code: int = 0) -> dict[str, Any]:
        """What a run prints with --json, when it ends with `code`."""
        done = self.run(verb, "--json", *args)
        assert done.returncode == code, f"{verb} {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        data: dict[str, Any] = json.loads(done.stdout)
        return data

    def refused(self, code: int, verb: str, *args: str) -> str:
        """The message of a run that must end with `code`, after which nothing in the workspace has changed."""
        before = self.everything()
        done = self.run(verb, *args)
        assert done.returncode == code, f"{verb} {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert self.everything() == before
        return done.stderr

    @property
    def state(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / ".patchctl" / "state.json").read_text())
        return data

    def trees(self) -> Snapshot:
        """Every file of every tree, without git's and our own folders."""
        return {p: s for p, s in snapshot(self.folder).items() if not ({".git", ".patchctl"} & set(p.split("/")))}

    def everything(self) -> Snapshot:
        """Every file of the workspace but the lock, and without the folder that holds nothing else."""
        found = {p: s for p, s in snapshot(self.folder).items() if p != ".patchctl/lock"}
        if set(found) == {".patchctl"}:
            del found[".patchctl"]
        return found

    def assert_healthy(self) -> None:
        """Every repository is whole and clean, HEAD is what the state says, and no run left anything behind."""
        assert leftovers(self.folder) == []
        for name, tree in self.state["trees"].items():
            if tree["kind"] != "managed":
                continue
            repo = self.folder / name
            assert git(repo, "fsck", "--full", "--strict", "--no-dangling") == ""
            assert git(repo, "status", "--porcelain") == ""
            assert git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split() == [tree["tip_commit"], tree["tip_tree"]]


def snapshot(folder: Path) -> Snapshot:
    """Every file and folder below `folder`: its mode, and the digest of its content or where it points."""
    found: Snapshot = {}
    if not folder.exists():
        return found
    for top, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(top, name)
            status = os.lstat(path)
            shown = os.fsdecode(os.path.relpath(path, os.fsencode(folder)))
            found[shown] = (oct(status.st_mode), _content(path, status))
    return found


def _content(path: bytes, status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest()
    return os.fsdecode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else ""


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of change of every file: what tells that a file was written although its bytes are the same."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders of runs, and locks of git. Our own lock stays: the kernel's lock on it does not."""
    names = [str(p.relative_to(folder)) for p in folder.rglob("*")]
    signs = (".patchctl-new-", ".tmp-pack-", "journal.json", "index.patchctl")
    return [
        n for n in names if any(s in n for s in signs) or n.endswith((".lock", ".new")) or n.startswith(".patchctl/new")
    ]


def environment(made: Made) -> dict[str, str]:
    """The environment that `Made.patchctl` gives to a run, for tests that start the process themselves."""
    home = made.cache.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_"))}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": str(REPO),
        "PATCHCTL_ROOT": str(made.root),
        "PIP_NO_INDEX": "1",
        "PATCHCTL_NO_PROGRESS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def command(made: Made, *args: str) -> list[str]:
    """The command line of a run."""
    return [sys.executable, "-m", "patchctl", f"--root={made.root}", f"--cache={made.cache}", *args]


def copy_of(made: Made, folder: Path) -> Made:
    """A copy whose manifests, patches and cache may be changed; the origins are shared."""
    shutil.copytree(made.root, folder / "distribution")
    shutil.copytree(made.cache, folder / "cache")
    return Made(folder / "distribution", made.origins, folder / "cache")


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """A temporary folder that every user can enter, which pytest's own are not; what any user then makes by itself goes
    beside it. TMPDIR may be closed to others, so that places that are open to all follow it."""
    for place in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        above = place.resolve().parents
        if place.is_dir() and place.stat().st_mode & 0o007 == 0o007 and all(p.stat().st_mode & 0o001 for p in above):
            break
    else:
        pytest.skip("no folder for temporary files is open to every user")
    with tempfile.TemporaryDirectory(prefix="patchctl-users-", dir=place) as top, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", str(place))
        os.chmod(top, 0o755)
        yield Path(top)


def _text(name: str, lines: int, changed: Mapping[int, str] | None = None) -> str:
    rows = [f"{name.upper()}_{n} = {n}" for n in range(lines)]
    for number, row in (changed or {}).items():
        rows[number] = row
    return "\n".join(rows) + "\n"


def _wide_upstream(name: str, stack: str, files: int, patches: int) -> Upstream:
    """`files` modules in folders; each patch changes a tenth of them, and some add, carry or delete files."""
    content = {f"{name}/part{n % 12:02d}/module{n:03d}.py": _text(f"m{n}", 40) for n in range(files)}
    content[f"{name}/__init__.py"] = ""
    content[f"{name}/tools/run.sh"] = "#!/bin/sh\necho run\n"
    content[f"{name}/legacy/old.py"] = "OLD = True\n"
    now: dict[str, str | None] = dict(content)
    paths = sorted(p for p in content if p.endswith(".py") and "module" in p)
    series = []
    for k in range(patches):
        edits: dict[str, str | None] = {}
        for path in paths[k % 10 :: 10]:
            text = now[path]
            assert text is not None
            edits[path] = text.replace(f"_{3 * k} = {3 * k}\n", f"_{3 * k} = {3 * k}  # patch {k}\n")
        if k == 2:
            edits[f"{name}/tools/run.sh"] = "#!/bin/sh\necho run again\n"
        if k == 4:  # a folder becomes a file
            edits[f"{name}/legacy/old.py"] = None
        now.update(edits)
        feature = {1: "polite", 3: "loud"}.get(k, f"{name}_{k}") if name == "alpha" else f"{name}_{k}"
        carries = {f"{name}/added/new{k:02d}.py": _text(f"new{k}", 20)} if k % 4 == 0 else {}
        series.append(Patch(feature, edits, f"{name}: change number {k}", carries=carries))
    return Upstream(name, stack, content, series)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """greeter and clock, locked. Read only."""
    return make_distribution(tmp_path_factory.mktemp("small"), lock=True)


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """alpha (240 files, 13 patches) and beta (120 files, 12 patches), locked. Read only."""
    upstreams = (_wide_upstream("alpha", "v1", 240, 13), _wide_upstream("beta", "v2", 120, 12))
    return make_distribution(tmp_path_factory.mktemp("big"), upstreams, lock=True)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One upstream, `shape`, whose patches make of a file a folder and of a folder a file, change a mode and a binary file,
    move and delete files; links are in its base. Read only."""
    files = {
        "shape/__init__.py": "",
        "shape/turn": "a file\n",
        "shape/bag/in.py": "IN = 1\n",
        "shape/bag/deep/more.py": "MORE = 1\n",
        "shape/tool": "#!/bin/sh\n",
        "shape/data.bin": "\0\1\2" * 40,
        "shape/gone.py": "GONE = 1\n",
        "shape/old.py": _text("old", 30),
        "shape/to_old": Link("old.py"),
        "shape/to_bag": Link("bag"),
        "shape/still.py": "STILL = 1\n",
    }
    turned = {"shape/turn": None, "shape/turn/in.py": "IN = 2\n", "shape/turn/deep/more.py": "MORE = 2\n"}
    packed = {"shape/bag/deep/more.py": None, "shape/bag/in.py": None, "shape/bag": "a file now\n"}
    moved = {"shape/old.py": None, "shape/new.py": _text("old", 30), "shape/gone.py": None}
    patches = (
        Patch("still", {"shape/still.py": "STILL = 2\n"}, "still: count to two"),
        Patch("polite", {**turned, "shape/tool": Program("#!/bin/sh\n")}, "turn: a file becomes a folder"),
        Patch("loud", {**packed, **moved, "shape/data.bin": "\0\3" * 50}, "bag: a folder becomes a file"),
    )
    return make_distribution(tmp_path_factory.mktemp("shapes"), (Upstream("shape", "v1", files, patches),), lock=True)


@pytest.fixture
def own(small: Made, tmp_path: Path) -> Made:
    """`small`, to be changed."""
    return copy_of(small, tmp_path)


@pytest.fixture
def ws(small: Made, tmp_path: Path) -> Workspace:
    """A workspace of `small`, not there yet."""
    return Workspace(small, tmp_path / "ws")


@pytest.fixture
def own_ws(own: Made, tmp_path: Path) -> Workspace:
    """A workspace of `own`, not there yet."""
    return Workspace(own, tmp_path / "ws")
