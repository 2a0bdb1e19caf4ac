"""The readers of files that patchctl wrote itself and that anything may have happened to since, and of manifests.

A reader gives a value or its own typed error. A value has to be usable: what it names stays inside, can be written again
and shown, and what the next function makes of it raises nothing else.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz_values import changed_bytes, changed_value

from patchctl.__main__ import compose
from patchctl.errors import PatchctlError
from patchctl.git.objects import TreeEntry
from patchctl.manifest.files import ManifestFiles, keep_validated, validated_before
from patchctl.manifest.load import loads
from patchctl.manifest.lock import LockedFile, LockedForm, LockedPatch, LockedResult, StackLock, read_lock, render_lock
from patchctl.manifest.schema import models
from patchctl.manifest.types import Stack
from patchctl.source.cache import read_record
from patchctl.stack import result_cache
from patchctl.stack.locking import diff_locks
from patchctl.stack.patches import load_patch
from patchctl.terminal.text import visible_line
from patchctl.workspace.journal import read_journal
from patchctl.workspace.pip_record import rewritten
from patchctl.workspace.state import WorkspaceState, load_state, save_json
from patchctl.workspace.trees import listed

ROOT = Path(__file__).parents[2]
GOOD = ROOT / "tests" / "hostile" / "manifest" / "good"
A, B, C = "a" * 40, "b" * 40, "c" * 40


class Reader:
    """Something that reads bytes: `case` makes some, `read` says whether they were taken. Whatever it raises is a fault."""

    name = ""

    def case(self, rng: random.Random) -> bytes:
        raise NotImplementedError

    def read(self, data: bytes) -> bool:
        raise NotImplementedError

    @property
    def due(self) -> bool:
        """Whether so many cases wait that `rest` has something to do."""
        return False

    def rest(self) -> list[tuple[bytes, str]]:
        """What is wrong with cases that were read, where that is found out for many at once."""
        return []

    def said(self) -> str:
        """What more there is to say when all is done."""
        return ""

    def close(self) -> None:
        """Ends what it started."""


def refusal(error: PatchctlError) -> bool:
    """False, after the error was written in both of its forms: nothing in it may keep it from being shown."""
    visible_line(str(error)).encode("utf-8")
    json.dumps(error.as_json()).encode("utf-8")
    return False


def json_case(rng: random.Random, samples: Sequence[Any], more: Sequence[Any] = ()) -> bytes:
    """A sample as JSON, with changes to its values, its bytes, or both."""
    value = rng.choice(samples)
    if rng.random() < 0.75:
        value = changed_value(rng, value, more)
    data = json.dumps(value, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )
    if rng.random() < 0.35:
        data = changed_bytes(rng, data)
    return data


def _usable(path: str) -> None:
    """Raises unless the system takes it for a path."""
    assert b"\0" not in os.fsencode(path), "a path with a NUL"


def _inside(folder: Path, path: Path) -> None:
    assert Path(os.path.normpath(path)).is_relative_to(folder), f"{path} is not in {folder}"


_PATCH = {"file": "0001-feature-x.patch", "feature": "x", "digest": "d" * 64, "commit": C}
_TREE: dict[str, Any] = {
    "kind": "managed",
    "folder": "greeter",
    "stack": "v1",
    "form": "git",
    "origin": "https://host/x.git",
    "base_commit": A,
    "base_tree": B,
    "tip_commit": C,
    "tip_tree": A,
    "locked": True,
    "patches": [_PATCH, {**_PATCH, "feature": "y"}],
    "left_out": [{"feature": "z", "reason": "asked for"}],
    "generated": {"pkg/_version.py": "e" * 64},
    "record": "",
}
_INTO = {**_TREE, "kind": "into", "folder": "/opt/clock", "record": "clock-1.0.dist-info/RECORD"}
STATES: list[dict[str, Any]] = [
    {
        "version": 1,
        "profile": "full",
        "root": "/dist",
        "without": ["z"],
        "trees": {"greeter": _TREE, "clock": _INTO},
        "skipped": [{"upstream": "vllm", "tried": [["https://host/x", "no answer"]]}],
    },
    {"version": 1, "profile": None, "root": "/dist", "without": [], "trees": {}, "skipped": []},
]
_CHANGE = {
    "name": "greeter",
    "kind": "managed",
    "folder": "greeter",
    "base": A,
    "source": None,
    "target": C,
    "stash": None,
    "generated": {"pkg/_version.py": "x = 1\n"},
    "known": {"pkg/_old.py": "e" * 64},
    "forget": False,
    "record": "",
}
_CHANGE_INTO = {
    **_CHANGE,
    "name": "clock",
    "kind": "into",
    "folder": "/opt/clock",
    "source": A,
    "stash": B,
    "record": _INTO["record"],
}
_CHANGE_BACK = {**_CHANGE, "source": A, "target": None, "before": {"pkg/_version.py": "x = 0\n"}}
JOURNALS = [
    {"version": 1, "verb": verb, "changes": changes, "after": STATES[0]}
    for verb, changes in (
        ("apply", [_CHANGE, _CHANGE_INTO]),
        ("revert", [_CHANGE, _CHANGE_INTO]),
        ("revert", [_CHANGE_BACK]),
    )
]


def check_state(folder: Path, state: WorkspaceState) -> None:
    """What a state that was taken must be good for."""
    save_json(folder / "again.json", state.as_json())
    for name, tree in state.trees.items():
        place = folder / tree.folder
        _usable(str(place))
        if tree.kind == "managed":
            _inside(folder, place)
        for path in tree.generated:
            _usable(path)
            _inside(place, place / path)
        _usable(tree.record)
        visible_line(name)


class StateReader(Reader):
    name = "state"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / ".patchctl" / "state.json"
        self.file.parent.mkdir(parents=True)

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, STATES)

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        try:
            state = load_state(self.folder)
        except PatchctlError as error:
            return refusal(error)
        assert state is not None
        check_state(self.folder, state)
        return True


class JournalReader(Reader):
    name = "journal"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / ".patchctl" / "journal.json"
        self.file.parent.mkdir(parents=True)

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, JOURNALS)

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        try:
            journal = read_journal(self.folder)
        except PatchctlError as error:
            return refusal(error)
        assert journal is not None
        check_state(self.folder, journal.after)
        for change in journal.changes:
            tree = change.tree(self.folder)
            _usable(str(tree.folder))
            if change.kind == "managed":
                _inside(self.folder, tree.folder)
            _inside(self.folder if change.kind == "into" else tree.folder, tree.git_dir)
            for path, text in change.generated.items():
                _inside(tree.folder, tree.folder / path)
                _usable(path)
                text.encode()
            for path in (*change.known, *change.before):
                _usable(path)
                _inside(tree.folder, tree.folder / path)
            assert isinstance(change.forget, bool) and isinstance(change.record, str)
        return True


def _locks() -> list[StackLock]:
    files = (LockedFile("a.py", ("100644", A), ("100755", B)), LockedFile("new", None, ("100644", C)))
    patches = (
        LockedPatch("0001-feature-x.patch", "x", "d" * 64, files),
        LockedPatch("0002-bugfix-y.patch", "y", "e" * 64, None),
    )
    form = LockedForm(A, B, C, A, ("y",))
    pin = {"commit": A, "tree": B, "sdist_sha256": None}
    return [
        StackLock(
            "demo",
            "v1",
            pin,
            patches,
            (LockedResult((), {"git": form, "sdist": "unknown"}), LockedResult(("y",), {"git": form})),
        ),
        StackLock("demo", "v1", pin, (), ()),
    ]


class LockReader(Reader):
    name = "lock"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "manifests" / "locks" / "demo" / "v1.json"
        self.file.parent.mkdir(parents=True)
        value = loads((GOOD / "stack-least.yaml").read_bytes(), Stack, "stack").value
        self.stack = Stack(schema=1, upstream="demo", name="v1", pin=value.pin)
        self.locks = _locks()
        self.samples = [json.loads(render_lock(lock)) for lock in self.locks]

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, self.samples)

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        try:
            lock = read_lock(self.folder, self.stack)
        except PatchctlError as error:
            return refusal(error)
        assert lock is not None
        render_lock(lock).encode("utf-8")
        for one, other in ((lock, self.locks[0]), (self.locks[0], lock)):
            visible_line(" ".join(diff_locks(one, other))).encode("utf-8")
        lock.expected("git", frozenset({"y"}))
        ", ".join([lock.upstream, lock.stack, *(p.file + p.feature + p.digest for p in lock.patches)])
        for patch in lock.patches:
            sorted({f.path: (f.before and f.before[1], f.after and f.after[1]) for f in patch.files or ()})
        return True


class MemoReader(Reader):
    """A memo that is not right counts as not there: nothing at all may be raised."""

    name = "memo"

    def __init__(self, folder: Path) -> None:
        self.cache = folder
        self.folder = folder / "stacks" / "key"
        self.folder.mkdir(parents=True)
        file = ROOT / "patches"
        self.patches = [load_patch(p, ROOT) for p in sorted(file.glob("*/*/*/*.patch"))[:2]]
        body = b"PACK"
        for name in (f"pack-{A}.pack", f"pack-{A}.idx"):
            (self.folder / name).write_bytes(body + hashlib.sha1(body, usedforsecurity=False).digest())
            (folder / name).write_bytes((self.folder / name).read_bytes())
        step = [C, B, [["a.py", [0o100644, A], [0o100755, B]], ["new", None, [0o100644, C]]]]
        good = {
            "base_commit": A,
            "base_tree": B,
            "tip_commit": C,
            "tip_tree": A,
            "pack": f"pack-{A}.pack",
            "steps": [step, step],
        }
        self.samples = [good, {**good, "pack": None}]
        self.file = self.folder / "result.json"

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, self.samples, (f"../../pack-{A}.pack", f"pack-{A}.idx"))

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        found = result_cache.get(self.cache, "key", self.patches, ())
        if found is None:
            return False
        ids = [found.base_commit, found.base_tree, found.tip_commit, found.tip_tree]
        for step in found.steps:
            ids += [step.commit, step.tree]
            for change in step.touched:
                os.fsencode(change.path)
                ids += [e.id for e in (change.before, change.after) if e is not None]
                assert all(
                    isinstance(e, TreeEntry) and isinstance(e.mode, int)
                    for e in (change.before, change.after)
                    if e is not None
                )
        assert all(isinstance(i, str) and len(i) == 40 and not set(i) - set("0123456789abcdef") for i in ids), ids
        if found.pack is not None:
            assert found.pack.parent == self.folder
        return True


class KeptManifests(Reader):
    """What validation found right, kept in the cache: with a right digest, and another body."""

    name = "manifest cache"

    def __init__(self, folder: Path) -> None:
        self.cache = folder
        self.files = ManifestFiles({"manifests/upstreams.yaml": b"x"}, ())
        real = ManifestFiles.scan(ROOT)
        from patchctl.manifest.consistency import checked

        content = checked(ROOT, real)
        stack = min(content.stacks.items(), key=lambda s: len(repr(s)))
        profile = min(content.profiles.items(), key=lambda s: len(repr(s)))
        small = type(content)(content.upstreams, dict([stack]), dict([profile]), None)
        keep_validated(folder, self.files, small)
        (self.file,) = (folder / "manifests").iterdir()
        self.samples = [json.loads(self.file.read_bytes().partition(b"\n")[2])]

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, self.samples)

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        return validated_before(self.cache, self.files) is not None


class CacheRecord(Reader):
    name = "cache record"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples = [
            {
                "upstream": "demo",
                "form": "sdist",
                "commit": A,
                "tree": B,
                "origin": "https://host/x",
                "archive": "1.0.tar.gz",
                "sha256": "d" * 64,
                "declared": ["pkg/_version.py"],
                "schema": 1,
            },
            {
                "upstream": "demo",
                "form": "git",
                "commit": A,
                "tree": B,
                "origin": "/x",
                "archive": None,
                "sha256": None,
                "declared": [],
                "schema": 1,
            },
        ]

    def case(self, rng: random.Random) -> bytes:
        return json_case(rng, self.samples)

    def read(self, data: bytes) -> bool:
        (self.folder / "patchctl.json").write_bytes(data)
        try:
            found = read_record(self.folder)
        except PatchctlError as error:
            return refusal(error)
        assert found is not None
        assert all(isinstance(i, str) and len(i) == 40 for i in (found.commit, found.tree))
        set(found.declared)
        visible_line(found.upstream + found.origin).encode("utf-8")
        return True


class InstalledRecord(Reader):
    """An installer's RECORD: lines of any bytes, each kept as it is unless it is about a file of ours."""

    name = "RECORD"

    def __init__(self, folder: Path) -> None:
        self.good = (
            b"".join(
                b"pkg/%s,sha256=%s,12\n" % (n, b"A" * 43)
                for n in (
                    b"__init__.py",
                    b"mod.py",
                    b'"a,b.py"',
                    "\u00e9.py".encode(),
                    b"__pycache__/mod.cpython-311.pyc",
                )
            )
            + b"pkg-1.0.dist-info/RECORD,,\n"
        )

    def case(self, rng: random.Random) -> bytes:
        data = self.good
        for _ in range(rng.randint(1, 4)):
            data = changed_bytes(rng, data)
        return data

    def read(self, data: bytes) -> bool:
        names = listed(data)
        out = rewritten(data, {b"pkg/mod.py": b"x", b"pkg/__init__.py": None, b"pkg/new.py": b""})
        assert b"pkg/new.py" in listed(out) and b"pkg/__init__.py" not in listed(out)
        return bool(names)


class ManifestReader(Reader):
    """One manifest, of every kind there is."""

    name = "manifest"

    def __init__(self, folder: Path) -> None:
        compose()
        kinds = models()
        self.samples = [
            (kinds[f.name.partition("-")[0]], f.read_bytes(), json.loads(f.with_suffix(".json").read_bytes()))
            for f in sorted(GOOD.glob("*.yaml"))
        ]
        self.kinds = list(kinds.values())

    def case(self, rng: random.Random) -> bytes:
        kind, text, value = rng.choice(self.samples)
        number = self.kinds.index(kind) if rng.random() < 0.98 else rng.randrange(len(self.kinds))
        if rng.random() < 0.5:
            data = text
            for _ in range(rng.randint(1, 3)):
                data = _yaml_change(rng, data) if rng.random() < 0.6 else changed_bytes(rng, data)
        else:
            data = json.dumps(changed_value(rng, _short(value)), ensure_ascii=rng.random() < 0.5).encode(
                "utf-8", "surrogatepass"
            )
        return b"%d " % number + data

    def read(self, data: bytes) -> bool:
        number, _, text = data.partition(b" ")
        try:
            loads(text, self.kinds[int(number)], "manifest.yaml")
        except PatchctlError as error:
            assert all(c.isprintable() or c == "\n" for c in str(error)), "a character that steers a terminal"
            return refusal(error)
        return True


def _short(value: Any) -> Any:
    """A list of a sample keeps its first two, so that changes meet every key as often."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items() if v is not None}
    return [_short(v) for v in value[:2]] if isinstance(value, list) else copy.copy(value)


_YAML = (
    b"*a", b"&a ", b"!!python/object:os.system ", b"<<: ", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]", b"|\n",
    b">-\n", b"\t", b"#", b"---\n", b"...\n", b"%YAML 1.2\n",
    b'"\\ud800"', b'"\\x00"', b"'", b'"', b"~", b"yes", b"0x1f", b"1e5", b".inf", b"2026-01-01", b"null", b"\xc2\x85",
    b"\xe2\x80\xa8", b"[" * 30, b"- " * 30, b"a: " * 30, b"{a: " * 5000,
)  # fmt: skip


def _yaml_change(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        lines.insert(at, rng.choice(lines))
    elif kind == 1 and len(lines) > 1:
        del lines[at]
    elif kind == 2:
        lines[at] = b" " * rng.choice((1, 2, 4)) + lines[at]
    elif kind == 3:
        lines[at] = lines[at].lstrip()
    else:
        where = rng.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:where] + rng.choice(_YAML) + lines[at][where + rng.choice((0, 0, 2, 50)) :]
    return b"\n".join(lines)


MAKERS: tuple[Callable[[Path], Reader], ...] = (
    StateReader,
    JournalReader,
    LockReader,
    MemoReader,
    KeptManifests,
    CacheRecord,
    InstalledRecord,
    ManifestReader,
)
