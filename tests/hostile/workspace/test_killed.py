"""SIGKILL at every kind of moment: whatever comes next, `apply` or `revert`, ends as if nothing had happened.

The moments are of two kinds. A counted one is exact: the run's own process gets SIGKILL right before its n-th operation
on files or its n-th child process, told by an audit hook of the interpreter that the test starts (patchctl knows nothing
of it). A timed one takes the children with it: the whole process group dies at a fraction of the run's time, so that a
git in the middle of its work leaves its locks behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution import Made
from on_disk import Snapshot, Workspace, command, environment, git, leftovers, snapshot

pytestmark = pytest.mark.heavy("killed at every operation")

# argv: the number of the event to die at (0: none; with a minus: of those after the journal), a file for how many there
# were, and how many of them after the journal, then patchctl's arguments.
RUNNER = """
import os, signal, sys
at, counter = int(sys.argv[1]), sys.argv[2]
place = os.path.dirname(sys.argv[sys.argv.index("--workspace") + 1])
seen = after = 0
def hook(event, args):
    global seen, after
    shown = []
    if event == "subprocess.Popen":
        ours = True
    elif event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate"):
        shown = [os.fsdecode(a) for a in args[:2] if isinstance(a, (str, bytes, os.PathLike))]
        ours = any(s.startswith(place) for s in shown)
    else:
        ours = False
    if ours:
        seen += 1
        after += after > 0 or (event == "os.rename" and shown[1].endswith("journal.json"))
        if at in (seen, -after) and at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from patchctl.__main__ import run
code = run(sys.argv[3:])
open(counter, "w").write(f"{seen} {after}")
sys.exit(code)
"""


@pytest.fixture(scope="module")
def older(big: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same distribution some patches ago."""
    folder = tmp_path_factory.mktemp("older")
    shutil.copytree(big.root, folder / "distribution")
    old = Made(folder / "distribution", big.origins, big.cache)
    for stack, kept in (("alpha/v1", 9), ("beta/v2", 5)):
        file = old.root / f"manifests/stacks/{stack}.yaml"
        lines = file.read_text().splitlines()
        start = lines.index("patches:")
        file.write_text("\n".join(lines[: start + 1 + kept]) + "\n")
        for patch in sorted((old.root / "patches" / stack).glob("*/*.patch"), key=lambda file: file.name)[kept:]:
            patch.unlink()
    old.good("lock", "--source", "git")
    return old


Prepare = Callable[[Path], Workspace]
Scenario = tuple[str, Prepare, tuple[str, ...]]


@pytest.fixture(scope="module")
def scenarios(
    big: Made, older: Made, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Workspace, tuple[str, ...]]]:
    """What is there before each kind of run, and the run."""
    top = tmp_path_factory.mktemp("before")
    nothing, old, other, full = (Workspace(big, top / n) for n in ("nothing", "old", "other", "full"))
    Workspace(older, old.folder).apply()
    other.apply("plain")
    full.apply()
    apply = ("apply", "--profile", "full")
    return {
        "first": (nothing, apply),
        "older": (old, apply),
        "switch": (other, apply),
        "revert": (full, ("revert",)),
    }


@pytest.fixture(scope="module")
def ends(big: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Snapshot]:
    """The trees after an `apply` and after a `revert` that nobody interrupted."""
    whole = Workspace(big, tmp_path_factory.mktemp("ends") / "ws")
    whole.apply()
    applied = whole.trees()
    whole.good("revert")
    return {"apply": applied, "revert": whole.trees()}


def copied(before: Workspace, folder: Path) -> Workspace:
    """The workspace as a test may break it. Its times stay; its inodes do not, so that git has to look at every file."""
    if before.folder.exists():
        shutil.copytree(before.folder, folder, symlinks=True)
    return Workspace(before.made, folder)


def counted(ws: Workspace, args: tuple[str, ...], at: int, counter: Path) -> int:
    """Run and die at event `at`; returns the exit status."""
    line = [f"--root={ws.made.root}", f"--cache={ws.made.cache}", args[0], "--workspace", str(ws.folder), *args[1:]]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(at), str(counter), *line],
        env=environment(ws.made),
        cwd=ws.made.cache.parent,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode


def finish_and_check(ws: Workspace, verb: str, ends: dict[str, Snapshot]) -> None:
    """The next run, and everything it has to leave in order."""
    done = ws.run(verb, *(("--profile", "full") if verb == "apply" else ()))
    if done.returncode == 2 and verb == "revert" and not (ws.folder / ".patchctl" / "state.json").exists():
        # The first apply died before it had changed anything: there is nothing to revert, and nothing was left.
        assert ws.trees() == {} and leftovers(ws.folder) == []
        return
    assert done.returncode == 0, done.stderr
    assert ws.trees() == ends[verb]
    ws.assert_healthy()
    assert ws.state["profile"] == ("full" if verb == "apply" else None)


def spread(counter: Path, points: int) -> list[int]:
    """Where to die: at a quarter of `points` over the whole run, and at the others between the journal and the end.

    A run on a machine that has more to do may make fewer operations: files that were not written in the moment of their
    index need not be read once more.
    """
    total, after = (int(n) for n in counter.read_text().split())
    early = points // 4
    whole = [1 + i * (total - after) // early for i in range(early)]
    late = [-2 - round(i * (after - 12) / (points - early - 1)) for i in range(points - early)]
    assert len({*whole, *late}) == points
    return whole + late


POINTS = {"first": 20, "older": 8, "switch": 8, "revert": 8}


@pytest.mark.parametrize("name", POINTS)
def test_killed_at_an_operation(
    name: str,
    scenarios: dict[str, tuple[Workspace, tuple[str, ...]]],
    ends: dict[str, Snapshot],
    tmp_path: Path,
) -> None:
    before, args = scenarios[name]
    counter = tmp_path / "count"
    assert counted(copied(before, tmp_path / "whole"), args, 0, counter) == 0
    endings = []
    for number, at in enumerate(spread(counter, POINTS[name])):
        ws = copied(before, tmp_path / "ws")
        endings.append(counted(ws, args, at, counter))
        finish_and_check(ws, ("apply", "revert")[number % 2], ends)
        shutil.rmtree(ws.folder, ignore_errors=True)
    # One that ended well had fewer operations than the one that was counted: see `spread`.
    assert set(endings) <= {0, -signal.SIGKILL} and endings.count(0) <= len(endings) // 4, endings


@pytest.mark.parametrize("name", POINTS)
def test_the_whole_group_killed_in_time(
    name: str,
    scenarios: dict[str, tuple[Workspace, tuple[str, ...]]],
    ends: dict[str, Snapshot],
    tmp_path: Path,
) -> None:
    before, args = scenarios[name]
    whole = copied(before, tmp_path / "whole")
    began = time.monotonic()
    whole.good(*args)
    seconds = time.monotonic() - began
    for number, fraction in enumerate((0.5, 0.7, 0.85)):
        ws = copied(before, tmp_path / "ws")
        line = command(ws.made, args[0], "--workspace", str(ws.folder), *args[1:])
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(line, env=environment(ws.made), start_new_session=True, **quiet) as run:
            time.sleep(seconds * fraction)
            os.killpg(run.pid, signal.SIGKILL)
        finish_and_check(ws, ("revert", "apply")[number % 2], ends)
        shutil.rmtree(ws.folder, ignore_errors=True)


def test_killed_twice_in_a_row(
    scenarios: dict[str, tuple[Workspace, tuple[str, ...]]], ends: dict[str, Snapshot], tmp_path: Path
) -> None:
    """The run that finishes another one may die as well."""
    before, args = scenarios["switch"]
    counter = tmp_path / "count"
    ws = copied(before, tmp_path / "ws")
    assert counted(ws, args, -40, counter) == -signal.SIGKILL
    for at in (10, -2, -40, -90):
        assert counted(ws, ("revert",), at, counter) == -signal.SIGKILL
    finish_and_check(ws, "apply", ends)


def killed_half_way(big: Made, folder: Path, counter: Path) -> Workspace:
    """A workspace whose switch from `plain` to `full` died between two files."""
    plain = Workspace(big, folder.with_name("plain"))
    plain.apply("plain")
    ws = copied(plain, folder)
    assert counted(ws, ("apply", "--profile", "full"), -60, counter) == -signal.SIGKILL
    assert (folder / ".patchctl" / "journal.json").is_file()
    return ws


def test_status_tells_of_an_interrupted_run_and_dry_run_leaves_it(big: Made, tmp_path: Path) -> None:
    ws = killed_half_way(big, tmp_path / "ws", tmp_path / "count")
    status = ws.json("status", code=1)
    assert (status["interrupted"], status["profile"]) == ("apply", "plain")
    assert "interrupted" in ws.refused(2, "apply", "--profile", "full", "--dry-run")
    assert "finished an interrupted apply first" in ws.apply()


@pytest.mark.parametrize("touched", [True, False], ids=["touched", "untouched"])
def test_an_edit_after_the_kill_is_not_lost(big: Made, tmp_path: Path, touched: bool) -> None:
    ws = killed_half_way(big, tmp_path / "ws", tmp_path / "count")
    file = ws.folder / "alpha" / ("alpha/part01/module001.py" if touched else "alpha/__init__.py")
    file.write_text("EDITED = True\n")
    message = ws.refused(5, "apply", "--profile", "full")
    assert str(file) in message
    assert str(file) in ws.refused(5, "revert")
    out = ws.good("revert", "--stash")
    branch = next(line.split()[-1] for line in out.splitlines() if "kept on branch" in line)
    kept = git(ws.folder / "alpha", "show", f"{branch}:{file.relative_to(ws.folder / 'alpha')}")
    assert kept == "EDITED = True\n"
    ws.assert_healthy()


def test_what_was_staged_after_the_kill_is_not_lost(big: Made, tmp_path: Path) -> None:
    ws = killed_half_way(big, tmp_path / "ws", tmp_path / "count")
    repo, name = ws.folder / "alpha", "alpha/__init__.py"
    before = (repo / name).read_bytes()
    (repo / name).write_text("STAGED = True\n")
    git(repo, "add", name)
    (repo / name).write_bytes(before)
    assert str(repo / name) in ws.refused(5, "revert")
    assert "kept on branch patchctl-stash-1" in ws.good("revert", "--stash")
    assert git(repo, "show", f"patchctl-stash-1~1:{name}") == "STAGED = True\n"
    ws.assert_healthy()


def test_an_operation_that_began_after_the_kill_is_refused(big: Made, tmp_path: Path) -> None:
    ws = killed_half_way(big, tmp_path / "ws", tmp_path / "count")
    git(ws.folder / "alpha", "bisect", "start")
    for verb in ("revert", "--stash"), ("apply", "--profile", "full"):
        assert "`git bisect reset`" in ws.refused(5, *verb)
    git(ws.folder / "alpha", "bisect", "reset")
    ws.apply()
    ws.assert_healthy()


def without_objects(checkout: Path) -> Snapshot:
    """A checkout with everything that is its owner's: not the objects, which may be added to."""
    return {p: s for p, s in snapshot(checkout).items() if not p.startswith(".git/objects")}


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_killed_at_a_checkout_of_somebody_else(small: Made, tmp_path: Path, verb: str) -> None:
    """`--in-place`: afterwards the checkout is patched with our references in it, or exactly what it was."""
    pin = tmp_path / "pin"
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", str(small.origins / "greeter"), str(pin))
    original = without_objects(pin)
    place = tmp_path / "place"
    checkout, ws = place / "checkout", Workspace(small, place / "ws")
    apply = ("apply", "--profile", "full", "--in-place", f"greeter={checkout}")

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(pin, checkout, symlinks=True)
        if verb == "revert":
            ws.good(*apply)

    counter = tmp_path / "count"
    args = apply if verb == "apply" else ("revert",)
    fresh()
    patched = without_objects(checkout)
    assert counted(ws, args, 0, counter) == 0
    patched = without_objects(checkout) if verb == "apply" else patched
    for number, at in enumerate(spread(counter, 8)):
        fresh()
        assert counted(ws, args, at, counter) == -signal.SIGKILL, f"event {at} did not come"
        done = ws.run(*(("revert",), apply)[number % 2])
        begun = (ws.folder / ".patchctl/state.json").exists()
        assert done.returncode == (0 if begun else 2), done.stderr
        assert without_objects(checkout) == (patched if number % 2 else original)
        assert git(checkout, "fsck", "--full", "--no-dangling") == ""
        assert leftovers(ws.folder) == [] and leftovers(checkout) == []
        if begun and number % 2 == 0:
            assert list((ws.folder / ".patchctl/into").glob("*")) == []
