"""What somebody did to a tree between `apply` and `revert`, and packages that were installed with a trick.

One rule for all: the run ends with a code of docs/exit-codes.md and without a traceback, nothing outside of what was named is
written to, and the tree is the base again, or is what it was before the run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution import GREETER, Made, git
from harmless import assert_harmless
from on_disk import Workspace, snapshot
from watched import Run, run_all

pytestmark = pytest.mark.heavy("a matrix of verbs and trees")

CODES = {0, 1, 2, 3, 4, 5, 6}
Do = Callable[[Path, Path], object]
"""What is done, with a tree and a folder outside of it, which must stay as it is."""


def run(ws: Workspace, tmp_path: Path, *lines: tuple[str, ...], also: tuple[Path, ...] = ()) -> list[Run]:
    """These verbs in this workspace, while the system watches."""
    start, named = [f"--root={ws.made.root}", f"--cache={ws.made.cache}"], ["--workspace", str(ws.folder)]
    home, results = tmp_path / "home", tmp_path / f"results {len(list(tmp_path.iterdir()))}"
    done = run_all([[*start, line[0], *named, *line[1:]] for line in lines], home=home, results=results)
    assert done.outside(home, results, ws.folder, ws.made.cache, *also) == []
    for one in done.runs:
        assert one.code in CODES, one
        assert_harmless(one.stdout, one.stderr)
    return list(done.runs)


def _replaced(path: Path, link: Path | str) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(link)


def _moved(tree: Path, out: Path) -> None:
    """The folder with the patched files moved out, and a link to it in its place."""
    os.rename(tree / "greeter", out / "greeter")
    (tree / "greeter").symlink_to(out / "greeter")


def _hard(tree: Path, out: Path) -> None:
    (tree / "greeter/hello.py").unlink()
    (out / "mine.py").write_text("mine\n")
    os.link(out / "mine.py", tree / "greeter/hello.py")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine.txt").write_text("mine\n")


def _twice(path: Path, text: str) -> None:
    """The same size and time as before: only the bytes, and the inode's own time, tell."""
    status = path.stat()
    old = path.read_bytes()
    path.write_bytes((text.encode() * len(old))[: len(old)])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


HELLO = "greeter/hello.py"
EDITS: dict[str, Do] = {
    "edited": lambda t, o: (t / HELLO).write_text("mine\n"),
    "edited_with_the_same_size_and_time": lambda t, o: _twice(t / HELLO, "m"),
    "emptied": lambda t, o: (t / HELLO).write_text(""),
    "deleted": lambda t, o: (t / HELLO).unlink(),
    "folder_deleted": lambda t, o: shutil.rmtree(t / "greeter"),
    "became_a_link_outside": lambda t, o: _replaced(t / HELLO, o / "kept.py"),
    "became_a_dangling_link": lambda t, o: _replaced(t / HELLO, o / "nowhere.py"),
    "became_a_link_to_a_device": lambda t, o: _replaced(t / HELLO, "/dev/zero"),
    "folder_became_a_link_outside": _moved,
    "folder_became_a_dangling_link": lambda t, o: _replaced(t / "greeter", o / "nowhere"),
    "became_a_hard_link_to_an_outside_file": _hard,
    "became_a_folder_with_content": lambda t, o: _folder(t / HELLO),
    "added_file_edited": lambda t, o: (t / "greeter/manners.py").write_text("mine\n"),
    "added_file_became_a_link": lambda t, o: _replaced(t / "greeter/manners.py", o / "kept.py"),
    "executable": lambda t, o: (t / HELLO).chmod(0o755),
    "commit_on_top": lambda t, o: (
        (t / HELLO).write_text("mine\n"),
        git(t, "commit", "--quiet", "-am", "mine"),
    ),
    "another_branch": lambda t, o: git(t, "checkout", "--quiet", "-b", "mine", "HEAD~1"),
    "another_base": lambda t, o: (
        git(t, "checkout", "--quiet", "--orphan", "other"),
        git(t, "commit", "--quiet", "-m", "other"),
    ),
}


@pytest.fixture(scope="module")
def applied(small: Made, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace to copy."""
    ws = Workspace(small, tmp_path_factory.mktemp("applied") / "ws")
    ws.apply()
    return ws


@pytest.mark.family("Revert")
@pytest.mark.parametrize("edit", EDITS)
def test_revert_of_a_tree_that_was_changed(edit: str, applied: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "outside"
    out.mkdir()
    (out / "kept.py").write_text("kept\n")
    ws = Workspace(applied.made, tmp_path / "ws")
    shutil.copytree(applied.folder, ws.folder, symlinks=True)
    tree = ws.folder / "greeter"
    EDITS[edit](tree, out)
    before, outside = ws.trees(), snapshot(out)
    [refused] = run(ws, tmp_path, ("revert",))
    assert refused.code == 5, refused
    assert str(tree) in refused.stderr and "--stash" in refused.stderr
    assert ws.trees() == before and snapshot(out) == outside
    [stashed] = run(ws, tmp_path, ("revert", "--stash"))
    assert snapshot(out) == outside
    if stashed.code != 0:
        assert stashed.code == 5 and ws.trees() == before, stashed
        return
    ws.assert_healthy()
    assert (tree / HELLO).read_text() == GREETER.files[HELLO]


# A package as an installer leaves it, and what an attacker, or a broken tool, made of it.
RECORD = "greeter-1.0.dist-info/RECORD"


def installed(site: Path) -> Path:
    """greeter in a folder as pip fills it: RECORD with digests, and the byte code of one module."""
    files = {name: text.encode() for name, text in GREETER.files.items() if name.startswith("greeter/")}
    files["greeter-1.0.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n"
    files["greeter-1.0.dist-info/INSTALLER"] = b"pip\n"
    rows = []
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    (site / RECORD).write_text("".join([*rows, f"{RECORD},,\n"]))
    return site


def _record(more: bytes) -> Do:
    return lambda s, o: (s / RECORD).write_bytes((s / RECORD).read_bytes() + more)


def _linked_file(site: Path, out: Path) -> None:
    os.rename(site / HELLO, out / "cached.py")
    os.link(out / "cached.py", site / HELLO)


def _linked_cache(site: Path, out: Path) -> None:
    os.rename(site / HELLO, out / "cached.py")
    (site / HELLO).symlink_to(out / "cached.py")


def _linked_record(site: Path, out: Path) -> None:
    os.rename(site / RECORD, out / "RECORD")
    (site / RECORD).symlink_to(out / "RECORD")


def _linked_info(site: Path, out: Path) -> None:
    os.rename(site / "greeter-1.0.dist-info", out / "info")
    (site / "greeter-1.0.dist-info").symlink_to(out / "info")


def _bytecode(site: Path, out: Path) -> None:
    (site / "greeter/__pycache__").mkdir()
    (site / "greeter/__pycache__/hello.cpython-311.pyc").write_bytes(b"stale")
    _record(b"greeter/__pycache__/hello.cpython-311.pyc,,\n")(site, out)


def _bytecode_link(site: Path, out: Path) -> None:
    (out / "cache").mkdir()
    (out / "cache/hello.cpython-311.pyc").write_bytes(b"mine")
    (site / "greeter/__pycache__").symlink_to(out / "cache")


PACKAGES: dict[str, Do] = {
    "as_it_should_be": lambda s, o: None,
    "record_names_a_file_outside": _record(b"../outside/kept.py,sha256=AAAA,5\n"),
    "record_names_an_absolute_file": lambda s, o: _record(str(o / "kept.py").encode() + b",sha256=AAAA,5\n")(s, o),
    "record_names_a_file_twice": _record(b"greeter/hello.py,,\n"),
    "record_with_a_wrong_digest": lambda s, o: (s / RECORD).write_text(f"{HELLO},sha256=AAAA,1\n{RECORD},,\n"),
    "record_with_a_size_of_5000_digits": _record(b"greeter/x.py,sha256=AAAA," + b"9" * 5000 + b"\n"),
    "record_not_utf_8": _record(b"greeter/\xff\xfe.py,,\n"),
    "record_with_control_characters": _record(b"greeter/\x1b[2J\x07.py,,\n"),
    "record_with_an_open_quote": _record(b'"greeter/x.py,,\n'),
    "record_with_one_column": _record(b"greeter/x.py\n"),
    "record_with_a_field_of_a_megabyte": _record(b"greeter/" + b"x" * (1 << 20) + b",,\n"),
    "record_with_nul": _record(b"greeter/\0.py,,\n"),
    "record_empty": lambda s, o: (s / RECORD).write_bytes(b""),
    "record_is_a_link_outside": _linked_record,
    "record_is_a_folder": lambda s, o: ((s / RECORD).unlink(), (s / RECORD).mkdir()),
    "record_is_a_fifo": lambda s, o: ((s / RECORD).unlink(), os.mkfifo(s / RECORD)),
    "record_is_gone": lambda s, o: (s / RECORD).unlink(),
    "metadata_folder_is_a_link_outside": _linked_info,
    "two_metadata_folders": lambda s, o: shutil.copytree(s / "greeter-1.0.dist-info", s / "greeter-0.9.dist-info"),
    "file_is_a_hard_link_into_a_cache": _linked_file,
    "file_is_a_link_into_a_cache": _linked_cache,
    "file_is_a_fifo": lambda s, o: ((s / HELLO).unlink(), os.mkfifo(s / HELLO)),
    "file_is_a_folder": lambda s, o: _folder(s / HELLO),
    "package_is_a_link_outside": _moved,
    "stale_byte_code": _bytecode,
    "byte_code_folder_is_a_link_outside": _bytecode_link,
    "a_new_file_s_place_is_a_dangling_link": lambda s, o: (s / "greeter/manners.py").symlink_to(o / "new.py"),
    "a_new_file_s_place_is_a_link_outside": lambda s, o: (s / "greeter/manners.py").symlink_to(o / "kept.py"),
}


@pytest.mark.family("Installed packages")
@pytest.mark.parametrize("trick", PACKAGES)
def test_a_package_that_was_installed_with_a_trick(trick: str, small: Made, tmp_path: Path) -> None:
    out, site, ws = tmp_path / "outside", installed(tmp_path / "site-packages"), Workspace(small, tmp_path / "ws")
    out.mkdir()
    (out / "kept.py").write_text("kept\n")
    PACKAGES[trick](site, out)
    before, outside = snapshot(site), snapshot(out)
    into = ("apply", "--profile", "full", "--in-place", f"greeter={site}")
    first = run(ws, tmp_path, into, ("status",), also=(site,))[0]
    if trick == "as_it_should_be":
        assert first.code == 0 and "LOUD" in (site / HELLO).read_text()
    if not trick.startswith("file_is_a_hard"):
        assert snapshot(out) == outside
    assert (out / "cached.py").read_text() == GREETER.files[HELLO] if (out / "cached.py").exists() else True
    if first.code != 0:
        assert str(site) in first.stderr and snapshot(site) == before, first
        return
    [last] = run(ws, tmp_path, ("revert",), also=(site,))
    assert last.code == 0, last
    assert snapshot(site) == before and snapshot(out) == outside
