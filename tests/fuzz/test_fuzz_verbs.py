"""A state or a journal that somebody changed makes no verb write outside: every system call that changes files is looked at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distribution import REPO, Made, git, make_distribution
from fuzz_run import SEED

pytestmark = pytest.mark.heavy("thousands of changed inputs")

CASES = int(os.environ.get("PATCHCTL_FUZZ_VERBS", "12"))
FIRST = int(os.environ.get("PATCHCTL_FUZZ_FIRST", "0"))
_CALLS = (
    "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,sy"
    "mlink,symlinkat,truncate,chmod,fchmodat,chown,fchownat,lchown,mknod,mknodat,utimensat"
)
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_PATHS = re.compile(r'(?:(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"')


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A distribution with a workspace that has a tree of its own and a checkout of --in-place."""
    made = make_distribution(tmp_path, lock=True)
    template = tmp_path / "inside"  # where each case will be: a checkout is known by its full path
    template.mkdir()
    git(tmp_path, "clone", "-q", str(made.origins / "clock"), str(template / "clock"))
    commit = re.search(
        r"commit: [\"']?([0-9a-f]{40})", next((made.root / "manifests/stacks/clock").glob("*.yaml")).read_text()
    )
    assert commit is not None
    git(template / "clock", "checkout", "-q", commit[1])
    made.good(
        "apply", "--profile", "full", "--workspace", str(template / "ws"), "--in-place", f"clock={template / 'clock'}"
    )
    template.rename(tmp_path / "template")
    (tmp_path / "decoy").mkdir()
    (tmp_path / "decoy" / "x").write_text("not ours\n")
    return made


def written(trace: str) -> set[str]:
    """Every path that a call changed, in full."""
    found = set()
    for line in trace.splitlines():
        match = _LINE.match(line)
        if match is None or int(match[3]) < 0:
            continue
        if match[1] in ("open", "openat") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", match[2]):
            continue
        paths = _PATHS.findall(match[2])
        for folder, path in paths[-1:] if match[1].startswith("symlink") else paths:  # a link's text changes nothing
            found.add(os.path.normpath(os.path.join(folder, path)))
    return found


def _repaired(lines: list[list[str]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """The number of each case, with the codes of repair and of the apply behind it."""
    for at in range(0, len(lines), 5):
        yield int(lines[at][0]), (int(lines[at + 3][2]), int(lines[at + 4][2]))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_outside_is_written(made: Made, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    trace = tmp_path / "trace"
    script = [
        sys.executable,
        str(Path(__file__).with_name("fuzz_verbs.py")),
        str(tmp_path),
        str(SEED),
        str(FIRST),
        str(CASES),
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_", "GIT_"))}
    own = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(REPO),
        "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        "strace",
        "-f",
        "-y",
        "--seccomp-bpf",
        "-qq",
        "-s",
        "4096",
        "-e",
        f"trace={_CALLS}",
        "-o",
        str(trace),
        *script,
    ]
    done = subprocess.run(command, env={**kept, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 5 * CASES
    fault = tmp_path / "fault"
    assert {int(code) for _, _, code in lines} <= {0, 1, 2, 3, 5}, (lines, fault.read_text() if fault.exists() else "")
    allowed = (*(f"{tmp_path}/{name}/" for name in ("inside", "cache", "tmp")), "/dev/null", "/dev/tty")
    after = [(number, codes) for number, codes in _repaired(lines) if codes != (0, 0)]
    assert not after, after
    paths = written(trace.read_text(errors="replace"))
    assert any(p.startswith(f"{tmp_path}/inside/ws/") for p in paths)  # else nothing was watched
    assert {p for p in paths if not (p + "/").startswith(allowed)} == set()
    assert (tmp_path / "decoy" / "x").read_text() == "not ours\n" and len(list((tmp_path / "decoy").iterdir())) == 1
