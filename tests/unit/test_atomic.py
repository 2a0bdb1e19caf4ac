"""Files that are written whole or not at all: real processes that are killed, real disks that are full, the rule itself."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchctl.atomic import filling, replace_file, replacing
from patchctl.errors import WrongUse
from patchctl.git.locks import put_in_place

PACKAGE = Path(__file__).parents[2] / "patchctl"
OLD, NEW = b"old\n" * 5000, b"new\n" * 9000
WRITER = """
import sys
from pathlib import Path
from patchctl.atomic import replace_file
for letter in sys.argv[2]:
    replace_file(Path(sys.argv[1]), letter.encode() * 200_000)
"""
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system, or be another user")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "lock.yaml").write_bytes(OLD)
    (tmp_path / "lock.yaml").chmod(0o640)
    return tmp_path / "lock.yaml"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(line, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def injected(file: Path, fault: str) -> subprocess.CompletedProcess[str]:
    """One replacement of `file` in a process of its own, with strace's fault at calls that concern it and its folder."""
    code = f"from pathlib import Path; from patchctl.atomic import replace_file; replace_file(Path({str(file)!r}), {NEW!r})"
    paths = [o for p in (file, file.with_name(f".{file.name}.new"), file.parent) for o in ("-P", str(p))]
    line = ["strace", "-f", "-o", os.devnull, *paths, "-e", f"inject={fault}", sys.executable, "-c", code]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@needs_strace
@pytest.mark.parametrize("call", ["openat", "flock", "fchmod", "write", "fsync", "rename"])
def test_killed_at(file: Path, call: str) -> None:
    done = injected(file, f"{call}:signal=SIGKILL:when=1")
    assert done.returncode in (-9, 137), done.stderr
    assert file.read_bytes() == OLD
    replace_file(file, NEW)  # what was left is no hindrance, and goes
    assert file.read_bytes() == NEW and [p.name for p in file.parent.iterdir()] == [file.name]


@needs_strace
def test_killed_after_the_rename(file: Path) -> None:
    assert injected(file, "fsync:signal=SIGKILL:when=2").returncode in (-9, 137)
    assert file.read_bytes() == NEW and [p.name for p in file.parent.iterdir()] == [file.name]


@needs_strace
@pytest.mark.parametrize("fault", ["openat:error=EMFILE", "write:error=EIO", "fsync:error=EIO", "rename:error=EROFS"])
def test_a_call_that_fails(file: Path, fault: str) -> None:
    done = injected(file, f"{fault}:when=1")
    assert done.returncode == 1 and "OSError" in done.stderr, done.stderr
    assert file.read_bytes() == OLD and [p.name for p in file.parent.iterdir()] == [file.name]


@needs_strace
def test_on_disk_before_the_rename_and_after_it(file: Path, tmp_path: Path) -> None:
    log = tmp_path.parent / f"{tmp_path.name}.log"
    traced = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,fsync,rename"]
    line = [*traced, sys.executable, "-c", WRITER, str(file), "x"]
    subprocess.run(line, check=True)
    calls = [row.split(None, 1)[1] for row in log.read_text().splitlines() if str(file.parent) in row]
    assert [c.partition("(")[0] for c in calls] == ["write", "fsync", "rename", "fsync"]
    assert ".lock.yaml.new>" in calls[1] and f"<{file.parent}>" in calls[3]


@needs_root
def test_a_full_disk(small_disk: Path) -> None:
    file = small_disk / "state.json"
    file.write_bytes(OLD)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, NEW * 10)
    assert file.read_bytes() == OLD and [p.name for p in small_disk.iterdir()] == ["state.json"]


def test_many_writers_of_one_file(file: Path) -> None:
    """Whoever reads sees one writer's bytes, whole; none meets another's unfinished file."""
    letters = "abcdefgh"
    line = [sys.executable, "-c", WRITER, str(file)]
    runs = [subprocess.Popen([*line, letter * 8], stderr=subprocess.PIPE, text=True) for letter in letters]
    while any(run.poll() is None for run in runs):
        seen = file.read_bytes()
        assert seen == OLD or (len(seen) == 200_000 and len(set(seen)) == 1)
    for run in runs:
        assert run.returncode == 0, run.stderr.read() if run.stderr else ""
    assert [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "hard link", "file"])
def test_what_lies_under_the_unfinished_name_is_never_written(file: Path, kind: str) -> None:
    outside = file.parent.parent / f"{file.parent.name}-precious"
    outside.write_text("kept")
    there = file.with_name(".lock.yaml.new")
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "hard link":
        there.hardlink_to(outside)
    elif kind == "file":
        there.write_text("half")
    else:
        there.symlink_to(outside if kind == "link" else outside.with_name("nowhere"))
    replace_file(file, NEW)
    assert file.read_bytes() == NEW and outside.read_text() == "kept"
    assert [p.name for p in file.parent.iterdir()] == [file.name] and not outside.with_name("nowhere").exists()


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "standard output"])
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """`--out /dev/null` of root put a file in its place, for every program on the machine."""
    there = tmp_path / "there"
    if kind == "standard output":
        there.symlink_to("/proc/self/fd/1")
    elif kind == "device":
        there.symlink_to(os.devnull)
    else:
        os.mkfifo(tmp_path / "pipe")
        there = tmp_path / "pipe" if kind == "pipe" else there
        there.is_fifo() or there.symlink_to("pipe")
    before = os.lstat(there)
    with pytest.raises(WrongUse, match="not a file to replace"):
        replace_file(there, NEW)
    assert os.path.samestat(before, os.lstat(there)) and not (tmp_path / ".there.new").exists()


def test_a_block_that_raises_changes_nothing(file: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(file) as out:
        out.write(NEW)
        raise KeyboardInterrupt
    assert file.read_bytes() == OLD and [p.name for p in file.parent.iterdir()] == [file.name]


def test_mode_of_the_file_before_and_of_a_new_one(file: Path) -> None:
    replace_file(file, NEW)
    assert file.stat().st_mode & 0o777 == 0o640
    umask = os.umask(0o002)
    try:
        replace_file(file.with_name("other"), NEW)
        replace_file(file.with_name("pack"), NEW, 0o444)
    finally:
        os.umask(umask)
    assert [file.with_name(n).stat().st_mode & 0o777 for n in ("other", "pack")] == [0o664, 0o444]


@needs_root
def test_root_leaves_a_file_to_its_owner(file: Path) -> None:
    os.chown(file.parent, 12345, 12346)
    replace_file(file.with_name("new"), NEW)
    os.chown(file, 12347, 12348)
    replace_file(file, NEW)
    owners = [(p.stat().st_uid, p.stat().st_gid) for p in (file.with_name("new"), file)]
    assert owners == [(12345, 12346), (12347, 12348)]


@needs_root
def test_a_file_of_git_keeps_mode_and_owner(tmp_path: Path) -> None:
    """packed-refs of another user's repository, replaced by root under a umask that closes files."""
    place, made = tmp_path / "packed-refs", tmp_path / "packed-refs.patchctl-new"
    place.write_text("before")
    place.chmod(0o664)
    os.chown(place, 12345, 12346)
    made.write_text("after")
    made.chmod(0o600)
    put_in_place(made, place)
    status = place.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 12346, 0o664)
    assert place.read_text() == "after" and [p.name for p in tmp_path.iterdir()] == ["packed-refs"]


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_filled_whole_or_not_at_all(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "made"
    if there:
        folder.mkdir()
    with pytest.raises(KeyboardInterrupt), filling(folder) as staged:
        (staged / "0001.patch").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.rglob("*")) == ([folder] if there else [])
    with filling(folder) as staged:
        (staged / "0001.patch").write_bytes(b"whole")
    assert list(tmp_path.rglob("*")) == [folder, folder / "0001.patch"]


# Who writes a file by other means, by module and function, and why that is right there.
_STAGED = "into a folder of this run, which gets its name by one rename when it is whole"
_GIT = "git's own files, as git replaces them: beside them, on disk, under git's lock, by rename"
_SCRATCH = "into a temporary folder of this run, which goes with it"
ALLOWED = {
    "atomic.py:replacing": "the one place",
    "atomic.py:_open_alone": "the one place",
    "atomic.py:filling": "the one place",
    "bundle/signature.py:_asked": _SCRATCH,
    "bundle/signature.py:_bench": _SCRATCH,
    "bundle/reader.py:_write": _STAGED,
    "bundle/reader.py:cached_distribution": "the rename of such a folder",
    "cli/__init__.py:run": "the null device",
    "cli/__init__.py:_report": "the null device",
    "cli/__init__.py:_open_streams": "the null device",
    "cluster/fanout.py:joined": "the null device",
    "cluster/request.py:make_payload": "in memory",
    "cluster/task.py:answer": _SCRATCH + "; sent by value to nodes that need not have this package",
    "distributions.py:_fetch": _STAGED,
    "distributions.py:_write_files": _STAGED,
    "doctor/machine.py:_lacks": _SCRATCH,
    "git/fetch.py:_end_history": _STAGED,
    "git/locks.py:put_in_place": _GIT,
    "git/locks.py:_take_copy": _GIT,
    "git/locks.py:place_new": _GIT,
    "git/worktree.py:change_index": _GIT,
    "stack/result_cache.py:note_parsed": "an empty file, whose name is all of it",
    "git/history.py:merge_file": _SCRATCH,
    "git/run.py:scratch_file": _SCRATCH,
    "git/run.py:scratch_folder": _SCRATCH,
    "git/run.py:_make": _SCRATCH,
    "git/worktree.py:refresh": _GIT,
    "git/worktree.py:staged_tree": "a copy of the index for one question",
    "git/worktree.py:create_git_dir": "into a git directory that no journal names yet: a killed run's is made anew",
    "git/worktree.py:drop_refs": _GIT,
    "git/worktree.py:set_refs": _GIT + "; a line is added to the reflog, as git does it",
    "git/worktree.py:write_index": _GIT,
    "importing/import_patches.py:_laid": _SCRATCH,
    "importing/import_patches.py:write": "the rename of files that were staged whole; what was moved is taken back when the manifest cannot be",
    "install/installable.py:write_files": _SCRATCH,
    "install/wheel.py:_write": _SCRATCH,
    "source/upstream_releases.py:_downloaded": _STAGED,
    "rebase/rebase.py:copy_distribution": _SCRATCH,
    "prove/runs.py:_link_tree": _SCRATCH,
    "prove/runs.py:run_mutant": _SCRATCH,
    "prove/runs.py:_link": _SCRATCH,
    "prove/runs.py:_replace": _SCRATCH,
    "rebase/rebase_state.py:release": "the rename of a work tree of our own",
    "rebase/rebase_state.py:claim": "the same, back",
    "rebase/rebase_state.py:remove": "the same, before it is taken away",
    "requirements/lockfile.py:write_inputs": _SCRATCH,
    "requirements/relock.py:_compiled": _SCRATCH,
    "requirements/relock.py:_installable": _SCRATCH,
    "scratch.py:_held_folder": _SCRATCH,
    "source/cache.py:new_repository": _STAGED,
    "source/cache.py:seal": _STAGED,
    "source/cache.py:place": "the rename of such a folder",
    "source/package_index.py:_stream_once": _STAGED,
    "source/sdist.py:_bundled": _STAGED,
    "stack/result_cache.py:put": _STAGED,
    "stack/result_cache.py:_put_in_place": "the rename of such a folder",
    "workspace/tree_repair.py:copy": "under a name that nothing has; what was copied is there until the repair ends",
    "workspace/tree_repair.py:take": "under a name that nothing has, and taken away where it was when it is whole",
    "workspace/edit.py:_take_over": _STAGED,
    "cli/check_verbs.py:image_verify": "a temporary copy of standard input",
    "image/image_archive.py:_put": "into a temporary folder",
    "image/image_archive.py:_merge": "the same",
    "workspace/edit.py:make_edit_tree": "the rename of such a folder",
    "workspace/tree_files.py:write": "the files of a tree, each by rename; by the journal a run after a kill writes them again",
    "workspace/tree_files.py:_new": "the same",
    "workspace/journal.py:place_repositories": "the rename of a folder that was prepared",
    "workspace/workspace_lock.py:_let_go": "the rename of a folder",
    "workspace/journal.py:_put_away": "the rename of a folder back to where it was prepared",
    "workspace/tree_repair.py:_put_in_place": "into a git directory that has no place yet, and its rename",
    "workspace/tree_repair.py:run": "the rename of a folder that was prepared",
    "workspace/repair.py:repair": "an empty file, which says that a repair began",
    "workspace/workspace_lock.py:_made": "the lock itself: what is in it is for people only",
}
_WRITING = {"write_text", "write_bytes", "touch", "mkstemp", "mkdtemp", "NamedTemporaryFile"}
_WRITING |= {"copy", "copy2", "copyfile", "copytree", "move", "rename", "renames"}


def writes(call: ast.Call) -> bool:
    """Whether a call writes a file, or puts one in a place: by its name, and by the mode that it opens with."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" and _mode(call, 1)
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if function.attr == "open":
        flags = {n.attr for n in ast.walk(call) if isinstance(n, ast.Attribute)}
        return bool(flags & {"O_WRONLY", "O_RDWR", "O_CREAT"}) if owner == "os" else _mode(call, 0)
    if function.attr == "replace":  # of a path: one argument; str.replace has two, and dataclasses.replace keywords
        return owner == "os" or (len(call.args) == 1 and not call.keywords)
    if function.attr in ("fdopen", "ZipFile"):
        return _mode(call, 1)
    return function.attr in _WRITING and not (function.attr == "copy" and owner not in ("shutil",))


def _mode(call: ast.Call, at: int) -> bool:
    given = [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg == "mode")]
    return any(isinstance(g, ast.Constant) and isinstance(g.value, str) and set(g.value) & set("wax+") for g in given)


def writers(tree: ast.AST, function: str = "") -> Iterator[str]:
    """The innermost function around every such call."""
    for child in ast.iter_child_nodes(tree):
        name = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Call) and writes(child):
            yield name
        yield from writers(child, name)


def test_nothing_else_writes_a_file_in_its_place() -> None:
    found = set()
    for module in sorted(PACKAGE.rglob("*.py")):
        path = module.relative_to(PACKAGE).as_posix()
        found |= {f"{path}:{name}" for name in writers(ast.parse(module.read_text(encoding="utf-8")))}
    assert sorted(found - ALLOWED.keys()) == [], "write it with patchctl.atomic, or say here why not"
    assert sorted(ALLOWED.keys() - found) == [], "these write no file any more"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("p.write_text(t)", True),
        ("open(p, 'w')", True),
        ("p.open('ab')", True),
        ("p.open(mode='x')", True),
        ("os.open(p, os.O_RDWR)", True),
        ("os.replace(a, b)", True),
        ("a.replace(b)", True),
        ("shutil.copy(a, b)", True),
        ("zipfile.ZipFile(f, 'w')", True),
        ("p.rename(q)", True),
        ("os.fdopen(h, 'wb')", True),
        ("open(p)", False),
        ("p.open('rb')", False),
        ("os.open(p, os.O_RDONLY)", False),
        ("t.replace('a', 'b')", False),
        ("replace(change, stash=None)", False),
        ("dataclasses.replace(a, b=1)", False),
        ("values.copy()", False),
    ],
)
def test_what_counts_as_writing(line: str, is_one: bool) -> None:
    assert bool(list(writers(ast.parse(line)))) == is_one
