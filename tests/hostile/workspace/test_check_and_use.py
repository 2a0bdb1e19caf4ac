"""Between check and use: what is read twice was changed in between. What is used is what was checked, or it is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, Made, make_distribution
from on_disk import Workspace, copy_of

pytestmark = pytest.mark.family("Between check and use")
Change = Callable[[Made], object]


def rewrite(file: Path, old: bytes, new: bytes) -> None:
    """Other bytes of the same length, size and time as before, in the same inode."""
    assert len(old) == len(new)
    status, data = file.stat(), file.read_bytes()
    assert data.count(old) >= 1, (file, old)
    file.chmod(0o644)
    with file.open("r+b") as out:
        out.write(data.replace(old, new, 1))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(file: Path) -> None:
    """One bit in the middle."""
    data = file.read_bytes()
    at = len(data) // 2
    rewrite(file, data, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def one(folder: Path, pattern: str) -> Path:
    return sorted(folder.rglob(pattern))[0]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """greeter from a source distribution, and all of it applied once: every memory of the tool is filled."""
    greeter = replace(GREETER, sdist=tuple(GREETER.files))
    made = make_distribution(tmp_path_factory.mktemp("packed"), (greeter, CLOCK), lock=True)
    made.good("apply", "-p", "full", "-w", str(made.root.parent / "first"))
    made.good("verify", "--static")
    return made


@pytest.fixture
def changed(packed: Made, tmp_path: Path) -> Made:
    return copy_of(packed, tmp_path)


# What is changed behind the back of a tool that has seen it before: (how, exit codes, what the message names).
CHANGES: dict[str, tuple[Change, set[int], str]] = {
    "line_of_a_patch": (
        lambda m: rewrite(m.patch("loud"), b"return LOUD *", b"return QUIE *"),
        {3, 4},
        "0003-feature-loud",
    ),
    "context_of_a_patch": (lambda m: rewrite(m.patch("loud"), b" def shout", b" def SHOUT"), {4}, "0003-feature-loud"),
    "subject_of_a_patch": (lambda m: rewrite(m.patch("typo"), b"hello: spell", b"hello: SPELL"), {2}, "typo"),
    "header_of_a_patch": (
        lambda m: rewrite(m.patch("typo"), b"From: patchctl", b"Frum: patchctl"),
        {2},
        "0001-bugfix-typo",
    ),
    "carried_file": (
        lambda m: rewrite(one(m.root / "patches", "manners.py"), b"please", b"pleese"),
        {2, 3, 4},
        "polite",
    ),
    "stack_manifest": (
        lambda m: rewrite(m.root / "manifests/stacks/greeter/v1.yaml", b"schema: 1", b"schema: 2"),
        {2},
        "v1.yaml:1",
    ),
    "pin_of_a_stack": (
        lambda m: rewrite(m.root / "manifests/stacks/clock/v2.yaml", b'commit: "', b"commit: '"),
        {2},
        "v2.yaml",
    ),
    "profile": (
        lambda m: rewrite(m.root / "manifests/profiles/full.yaml", b"  clock: v2", b"  clocc: v2"),
        {2},
        "full.yaml",
    ),
    "lock_s_tip": (
        lambda m: rewrite(m.root / "manifests/locks/greeter/v1.json", b'"tip_tree": "', b'"tip_tree"; "'),
        {2},
        "v1.json",
    ),
    "archive_in_the_cache": (lambda m: flip(one(m.cache / "sdist", "*.tar.gz")), {3}, "sdist"),
    "pack_in_the_cache": (lambda m: flip(one(m.cache / "git/clock", "*.pack")), {3}, "clock"),
    "index_of_a_pack": (lambda m: flip(one(m.cache / "git/clock", "*.idx")), {3}, "clock"),
    "settings_of_a_base": (
        lambda m: rewrite(one(m.cache / "git/clock", "config"), b"bare = true", b"bare=false!"),
        {3},
        "config",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_keeps_size_and_time_is_seen(what: str, changed: Made, tmp_path: Path) -> None:
    change, codes, named = CHANGES[what]
    change(changed)
    verb = "fetch" if what.endswith(("cache", "pack", "base")) else "apply"
    more = ("-w", str(tmp_path / "ws")) if verb == "apply" else ()
    more = ("--source", "sdist", "--skip-unavailable") if what.startswith("archive") else more
    done = changed.patchctl(verb, "-p", "full", *more)
    assert done.returncode in codes, (done.returncode, done.stderr)
    assert named in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "ws" / "greeter").exists()


def test_what_nobody_changed_is_taken(changed: Made, tmp_path: Path) -> None:
    changed.good("fetch", "-p", "full")
    Workspace(changed, tmp_path / "ws").apply()


def test_a_remembered_stack_that_was_changed_is_computed_again(changed: Made, tmp_path: Path) -> None:
    for pack in (changed.cache / "stacks").rglob("*.pack"):
        flip(pack)
    ws = Workspace(changed, tmp_path / "ws")
    ws.apply()
    ws.assert_healthy()


def test_a_bundle_that_was_exchanged_behind_its_digest(changed: Made, tmp_path: Path) -> None:
    one_file, other = tmp_path / "a.tar", tmp_path / "b.tar"
    said = changed.good("bundle", "create", "-p", "full", "--out", str(one_file), "--json")
    changed.good("bundle", "create", "-p", "plain", "--out", str(other))
    shutil.copyfile(other, one_file)
    digest = said.partition('"sha256": "')[2][:64]
    done = changed.patchctl(
        "apply", "--bundle", str(one_file), "--sha256", digest, "-p", "full", "-w", str(tmp_path / "ws")
    )
    assert done.returncode == 3 and "nothing in it was used" in done.stderr
    assert not (tmp_path / "ws").exists()
