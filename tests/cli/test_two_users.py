"""Two real users, with numbers of their own, and root, on one workspace and one cache.

Each run is a process of its user (setpriv), with a home of its own. Every one ends with 0, or is refused with 2 and names the
path, whose it is and what to do: never a traceback, never "busy" for a permission.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from distribution import REPO, Made
from on_disk import command, environment, folder_for_all, leftovers, snapshot

ROOT, ANNE, BERT, CARL = 0, 20001, 20002, 20003  # Anne and Bert share a group, Carl has none
GROUP = 31000
FULL, PLAIN = ("--profile", "full"), ("--profile", "plain")


def as_user(uid: int) -> list[str]:
    if uid == ROOT:
        return []
    groups = f"--groups={GROUP}" if uid in (ANNE, BERT) else "--clear-groups"
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups]


def others_can_run() -> bool:
    """Whether another user can run this interpreter on this checkout at all."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    line = [*as_user(CARL), *command(Made(REPO, REPO, REPO), "--version")]
    return (
        subprocess.run(line, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, check=False).returncode
        == 0
    )


pytestmark = [
    pytest.mark.skipif(not others_can_run(), reason="needs root, setpriv, and a checkout that others can read"),
    pytest.mark.heavy("two users, who share no byte code"),
]


@dataclass(frozen=True)
class Place:
    """A folder that all users can enter, with a distribution that belongs to root."""

    top: Path
    made: Made

    def folder(self, name: str, uid: int, gid: int, mode: int) -> Path:
        path = self.top / name
        path.mkdir(parents=True)
        os.chown(path, uid, gid)
        path.chmod(mode)
        return path

    def home(self, uid: int) -> Path:
        path = self.top / f"home-{uid}"
        return path if path.exists() else self.folder(path.name, uid, uid, 0o755)

    def run(self, uid: int, *args: str, cache: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
        line = [*as_user(uid), *command(Made(self.made.root, self.made.origins, cache), *args)]
        env = {**environment(self.made), "HOME": str(self.home(uid)), "PIP_FIND_LINKS": str(self.made.index)}
        return subprocess.run(
            line, env=env, cwd=self.home(uid), umask=umask, text=True, capture_output=True, check=False
        )

    def good(self, uid: int, *args: str, cache: Path, umask: int = 0o022) -> str:
        done = self.run(uid, *args, cache=cache, umask=umask)
        assert done.returncode == 0, f"{uid} {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, uid: int, *args: str, cache: Path, names: Path, owner: str) -> None:
        """Ends with 2, names a path at or below `names` and its owner, and changes nothing there."""
        before = snapshot(names)
        done = self.run(uid, *args, cache=cache)
        assert done.returncode == 2, f"{uid} {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr and str(names) in done.stderr and owner in done.stderr, done.stderr
        assert snapshot(names) == before


@pytest.fixture
def place(small: Made) -> Iterator[Place]:
    with folder_for_all() as top:
        yield _copied(small, top)


def _copied(small: Made, top: Path) -> Place:
    for name in ("distribution", "origins", "index"):
        source = small.index if name == "index" else small.root.parent / name
        shutil.copytree(source, top / name)
    # The manifests name the origins where they were made, which is closed to others.
    for file in (top / "distribution/manifests").rglob("*.yaml"):
        file.write_text(file.read_text().replace(str(small.origins), str(top / "origins")))
    return Place(top, Made(top / "distribution", top / "origins", top / "cache"))


def test_a_file_that_is_closed_to_its_user_is_in_the_way(place: Place) -> None:
    """Nobody can say whether it is edited: 5, as for every file of theirs, and nothing is changed."""
    cache, ws = (place.folder(name, ANNE, ANNE, 0o755) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *PLAIN, *at, cache=cache)
    closed = ws / "greeter/greeter/hello.py"
    closed.chmod(0)
    before = snapshot(ws / "greeter")
    for line in (("apply", *FULL, *at), ("apply", *FULL, "--stash", *at), ("revert", *at)):
        done = place.run(ANNE, *line, cache=cache)
        assert done.returncode == 5, done.stderr
        assert (
            f"a file of greeter cannot be read: Permission denied\n  {closed}" in done.stderr
            and "chmod u+rwX" in done.stderr
        )
        assert "was begun" not in done.stderr and snapshot(ws / "greeter") == before
    closed.chmod(0o644)
    place.good(ANNE, "apply", *FULL, *at, cache=cache)


def test_a_group_takes_turns(place: Place) -> None:
    """Group-writable, setgid, umask 002: each goes on with what the other left, edits included."""
    cache, ws = (place.folder(name, ANNE, GROUP, 0o2775) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    turns = [
        (ANNE, "apply", *FULL, *at),
        (BERT, "apply", *PLAIN, *at),
        (ANNE, "verify", *at),
        (ANNE, "revert", *at),
        (BERT, "apply", *FULL, *at),
        (ANNE, "apply", *FULL, "--without", "polite", *at),
        (BERT, "fetch", "--refresh", *FULL),
        (ANNE, "fetch", "--refresh", *FULL),
        (BERT, "bundle", "create", *FULL, "--out", str(place.home(BERT) / "x.tar")),
    ]
    for uid, *args in turns:
        place.good(uid, *args, cache=cache, umask=0o002)
    for uid, text in ((BERT, "Anne's\n"), (ANNE, "Bert's\n")):
        (ws / "greeter/README.md").write_text(text)
        assert place.run(uid, "apply", *PLAIN, *at, cache=cache, umask=0o002).returncode == 5
        place.good(uid, "apply", *PLAIN, "--stash", *at, cache=cache, umask=0o002)
        place.good(uid, "revert", *at, cache=cache, umask=0o002)
    for path in [*cache.rglob("*"), *ws.rglob("*")]:
        assert path.lstat().st_mode & 0o040 and path.lstat().st_gid == GROUP, path
        assert not path.is_dir() or path.stat().st_mode & 0o020, path
    assert leftovers(ws) == [] and list((cache / "tmp").iterdir()) == []


def test_one_after_another_without_a_umask_for_the_group(place: Place) -> None:
    """The folder is the group's, the files are their makers': a dead run's lock is taken over, what cannot be done is named."""
    cache, ws = (place.folder(name, ANNE, GROUP, 0o2775) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    (ws / ".patchctl").mkdir()
    (ws / ".patchctl/lock").write_text("1 elsewhere\n")
    (ws / ".patchctl").chmod(0o2775)
    os.chown(ws / ".patchctl/lock", ANNE, GROUP)
    place.good(BERT, "apply", *FULL, *at, cache=cache)
    place.good(ANNE, "status", *at, cache=cache)
    place.refused(ANNE, "revert", *at, cache=cache, names=ws / "clock", owner=f"uid {BERT}")


def test_root_before_and_after(place: Place) -> None:
    """A group's workspace stays the group's, whoever runs in between."""
    cache, ws = (place.folder(name, ANNE, GROUP, 0o2775) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *FULL, *at, cache=cache, umask=0o002)
    for uid, *args in [
        (ROOT, "apply", *PLAIN),
        (ANNE, "apply", *FULL),
        (ROOT, "apply", *FULL, "--without", "polite"),
        (BERT, "revert"),
        (ROOT, "apply", *FULL),
        (BERT, "verify"),
        (ANNE, "revert"),
    ]:
        place.good(uid, *args, *at, cache=cache, umask=0o022 if uid == ROOT else 0o002)
    owners = {p.stat().st_uid for p in (ws / ".patchctl").rglob("*.json")}
    assert owners <= {ANNE, BERT}


def test_root_first_in_a_user_s_folder(place: Place) -> None:
    """The cache stays the user's own; of a tree that root made the user learns how to get it back."""
    cache, ws = (place.folder(name, ANNE, ANNE, 0o755) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ROOT, "apply", *PLAIN, *at, cache=cache)
    place.good(ANNE, "status", *at, cache=cache)
    place.good(ANNE, "verify", *at, cache=cache)
    done = place.run(ANNE, "apply", *FULL, *at, cache=cache)
    assert done.returncode == 2 and f"sudo chown -R {ANNE} {ws}" in done.stderr, done.stderr
    subprocess.run(["chown", "-R", str(ANNE), str(ws)], check=True)
    place.good(ANNE, "apply", *FULL, *at, cache=cache)
    place.good(ANNE, "verify", *at, cache=cache)
    assert leftovers(ws) == []


def test_what_belongs_to_another_is_for_looking(place: Place) -> None:
    cache, ws = (place.folder(name, ANNE, ANNE, 0o755) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *FULL, *at, cache=cache)
    for args in (("status", *at), ("verify", *at), ("apply", *FULL, "--dry-run", *at), ("fetch", *FULL), ("list",)):
        place.good(CARL, *args, cache=cache)
    place.good(CARL, "edit", "greeter", "--dir", str(place.home(CARL) / "ed"), cache=cache)
    place.good(CARL, "apply", *FULL, "--workspace", str(place.home(CARL) / "ws"), cache=cache)
    for args in (("apply", *FULL, *at), ("revert", *at), ("revert", "--stash", *at)):
        place.refused(CARL, *args, cache=cache, names=ws, owner=f"uid {ANNE}")
    for args in (("apply", *FULL, "--without", "loud", *at), ("fetch", "--refresh", *FULL)):
        place.refused(CARL, *args, cache=cache, names=cache, owner=f"uid {ANNE}")
    place.refused(CARL, "lock", "--pages", cache=cache, names=place.made.root, owner="root")


@pytest.mark.parametrize("closed", ["ws", "ws/.patchctl", "ws/.patchctl/state.json", "ws/.patchctl/lock"])
def test_a_workspace_that_is_closed_to_others(place: Place, closed: str) -> None:
    cache, ws = (place.folder(name, ANNE, ANNE, 0o755) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *FULL, *at, cache=cache)
    (place.top / closed).chmod(0o700 if (place.top / closed).is_dir() else 0o600)
    looking = (("status", *at), ("verify", *at)) if not closed.endswith("lock") else ()
    for args in (*looking, ("apply", *FULL, *at), ("revert", *at)):
        place.refused(CARL, *args, cache=cache, names=ws, owner=f"uid {ANNE}")
    place.good(ANNE, "revert", *at, cache=cache)


def test_a_cache_that_is_closed_to_others(place: Place) -> None:
    cache = place.folder("cache", ANNE, ANNE, 0o755)
    place.good(ANNE, "fetch", *FULL, cache=cache)
    cache.chmod(0o700)
    place.good(CARL, "list", cache=cache)
    for args in (("fetch", *FULL), ("apply", *FULL), ("edit", "greeter"), ("bundle", "create", *FULL)):
        place.refused(CARL, *args, cache=cache, names=cache, owner=f"uid {ANNE}")
    assert list(place.home(CARL).iterdir()) == []


def test_sticky_folders(place: Place) -> None:
    """As /tmp: everybody may add, nobody may take away what another made."""
    cache, ws = (place.folder(name, ROOT, ROOT, 0o1777) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *FULL, *at, cache=cache, umask=0)
    place.good(
        CARL, "apply", *FULL, "--without", "polite", "--workspace", str(place.home(CARL) / "ws"), cache=cache, umask=0
    )
    place.good(CARL, "status", *at, cache=cache)
    shutil.rmtree(ws / ".patchctl")
    (ws / ".patchctl").symlink_to(place.home(ANNE))  # a link that another user laid into the shared folder
    place.refused(CARL, "apply", *FULL, *at, cache=cache, names=ws, owner="symbolic link")
    assert list(place.home(ANNE).iterdir()) == []


def test_a_lock_of_another_user_that_is_held(place: Place) -> None:
    """Busy is for a run that is at work, also when its lock may only be read."""
    cache, ws = (place.folder(name, ANNE, GROUP, 0o2775) for name in ("cache", "ws"))
    at = ("--workspace", str(ws))
    place.good(ANNE, "apply", *FULL, *at, cache=cache, umask=0o002)
    lock = ws / ".patchctl/lock"
    lock.chmod(0o644)
    with subprocess.Popen([*as_user(ANNE), "flock", str(lock), "sleep", "60"]) as holder:
        while subprocess.run(["flock", "--nonblock", str(lock), "true"], check=False).returncode == 0:
            assert holder.poll() is None
        done = place.run(BERT, "apply", *PLAIN, *at, cache=cache, umask=0o002)
        subprocess.run(["pkill", "--parent", str(holder.pid)], check=False)
        holder.kill()
    assert done.returncode == 6 and "another run holds the workspace" in done.stderr, done.stderr
    place.good(BERT, "apply", *PLAIN, *at, cache=cache, umask=0o002)


@pytest.mark.parametrize("uid", [ROOT, CARL])
def test_another_user_s_checkout_runs_none_of_its_commands(place: Place, uid: int) -> None:
    """`core.fsmonitor` names a command that git runs when it lists files; ownership does not keep us from bundling."""
    cache = place.folder("cache", uid, uid, 0o755)
    root, ran = place.made.root, place.folder("ran", ANNE, ANNE, 0o777)
    subprocess.run(["chown", "-R", str(ANNE), str(root)], check=True)
    for args in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=Anne", "-c", "user.email=a@b", "commit", "-qm", "all"],
        ["config", "core.fsmonitor", f"touch {ran}/command; false"],
    ):
        subprocess.run([*as_user(ANNE), "git", "-C", str(root), *args], env={"PATH": os.environ["PATH"]}, check=True)
    (ran / "command").unlink(missing_ok=True)
    out = place.home(uid) / "x.tar"
    place.good(uid, "bundle", "create", *FULL, "--out", str(out), cache=cache)
    assert list(ran.iterdir()) == [] and out.exists()


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_tests_themselves_where_the_temporary_folder_is_closed(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's TMPDIR often is: what other users are to read lies elsewhere, and they can write beside it."""
    tmp_path.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with folder_for_all() as top:
        assert not top.is_relative_to(tmp_path)
        line = [*as_user(CARL), "sh", "-c", 'ls "$0" && rmdir "$(mktemp -d -p "$TMPDIR")"', str(top)]
        subprocess.run(line, check=True)
    assert tempfile.gettempdir() == str(tmp_path)
