"""Patch files to begin with, and the tree that they are for.

The samples come from git itself (renames, copies, modes, binary files, links, a file that becomes a folder, each with
several options of `git format-patch`), from this distribution's own patches, whose files are made up around their hunks,
from the corpus of hostile patches, and, where mirrors of upstream are at hand, from upstream's history.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import corpus
from engine_tools import CommitText, Repo, Tree
from test_patch_against_git_am import AUTHORS, BODIES, SUBJECTS, commit_text

from patchctl.errors import BadPatch
from patchctl.git.objects import GITLINK, REGULAR
from patchctl.patch.parse import FileChange, parse_patch

ROOT = Path(__file__).parents[2]
LINK, PROGRAM = 0o120000, 0o100755
_LARGEST = 12_000
_MADE = {
    b"text": b"".join(b"line %d\n" % i for i in range(1, 41)),
    b"same": b"a\nb\n\n" * 12,
    b"open end": b"one\ntwo\nthree",
    b"crlf.txt": b"one\r\ntwo\r\nthree\r\nfour\r\n",
    b"mixed": b"one\r\ntwo\nthree\rfour\n\x0cfive\n",
    b"lone": b"x\n",
    b"empty": b"",
    b"bin": bytes(range(256)) * 4,
    b"latin": b"caf\xe9\n\xff\xfe\n",
    "gr\u00fc\u00df/\u6587.py".encode(): b"def f():\n    return 1\n",
    b"pkg/mod.py": b"".join(b"x%d = %d\n" % (i, i) for i in range(30)),
    b"pkg/sub/deep.py": b"import os\n\n\ndef run():\n    os.sync()\n",
    b"a b/c d": b"blank\nin\nname\n",
    b"dashes": b"-- \n---\n-- a\n--- a/x\n+++ b/x\ndiff --git a/x b/x\nFrom x\n@@ -1 +1 @@\n",
    b"long": b"y" * 3000 + b"\nz\n",
}
OPTIONS = (
    ("--full-index", "--binary", "-M", "-C", "--find-copies-harder"),
    ("--full-index", "--binary", "--no-renames", "-U1"),
    ("--binary", "-M", "-U0"),
    ("--full-index", "--binary", "-M", "-p", "--no-signature", "-U5", "-B"),
    ("--full-index", "--binary", "-s", "-p"),
)


@dataclass
class World:
    """A tree, and mails that change it. `hostile` are those that the parser refuses as they are."""

    tree: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    samples: list[bytes] = field(default_factory=list)
    hostile: list[bytes] = field(default_factory=list)


def made_world(folder: Path, mirrors: Path | None) -> World:
    """The tree and the samples; a repository that is made in `folder` lets git write the first of them."""
    world = World({p: (REGULAR, d) for p, d in {**corpus.BASE, **_MADE}.items()})
    world.tree |= {
        b"run.sh": (PROGRAM, b"#!/bin/sh\necho x\n"),
        b"link": (LINK, b"text"),
        b"pkg/up": (LINK, b"../lone"),
    }
    _written_by_git(Repo(folder / "written"), world)
    for family in vars(corpus).values():
        if isinstance(family, dict):
            world.samples += [
                p for bad in family.values() if isinstance(bad, corpus.Bad) for p in bad.patches if len(p) < _LARGEST
            ]
    for file in sorted(ROOT.glob("patches/*/*/*/*.patch")):
        _with_files_made_up(file.read_bytes(), world)
    if mirrors is not None:
        for mirror in sorted(p for p in mirrors.iterdir() if p.is_dir()):
            _from_history(mirror, world)
    world.hostile = [s for s in world.samples if not _parses(s)]
    world.samples = [s for s in world.samples if _parses(s)]
    return world


def _parses(data: bytes) -> bool:
    try:
        return bool(parse_patch(data, "sample").changes)
    except BadPatch:
        return False


def _edits(tree: Tree) -> Iterator[dict[bytes, tuple[int, bytes] | None]]:
    """What commits change; None takes a file away."""

    def text(path: bytes, old: bytes, new: bytes) -> dict[bytes, tuple[int, bytes] | None]:
        mode, data = tree[path]
        return {path: (mode, data.replace(old, new, 1))}

    yield text(b"text", b"line 20\n", b"line twenty\nand more\n")
    yield {**text(b"text", b"line 1\n", b""), **text(b"pkg/mod.py", b"x29 = 29\n", b"x29 = 30\nlast = 1\n")}
    yield text(b"text", b"line 40\n", b"line 40")
    yield {b"text": (REGULAR, b"first\n" + tree[b"text"][1].replace(b"line 20", b"20") + b"last\n")}
    yield text(b"same", b"b\n\na\nb\n\na\n", b"b\n\nc\nb\n\na\n")
    yield text(b"open end", b"three", b"three\n")
    yield text(b"open end", b"two", b"2")
    yield text(b"crlf.txt", b"two\r\n", b"2\r\n")
    yield text(b"mixed", b"three\rfour", b"three\r4")
    yield text(b"latin", b"caf\xe9", b"caf\xc3\xa9")
    yield text(b"dashes", b"-- a\n", b"-- b\n")
    yield text(b"long", b"z\n", b"zz\n")
    yield {b"new.py": (REGULAR, b"a = 1\n"), b"pkg/new": (PROGRAM, b""), b"gone/deep/x": (REGULAR, b"x")}
    yield {b"lone": None, b"empty": None, b"link": None}
    yield {b"moved/text": tree[b"text"], b"text": None}
    yield {b"moved/text": (PROGRAM, tree[b"text"][1].replace(b"line 7\n", b"seven\n")), b"text": None}
    yield {
        b"copy of text": (REGULAR, tree[b"text"][1].replace(b"line 9", b"nine")),
        **text(b"text", b"line 2\n", b"l 2\n"),
    }
    yield {b"same": tree[b"text"], b"text": tree[b"same"]}
    yield {b"run.sh": (REGULAR, tree[b"run.sh"][1]), b"lone": (PROGRAM, b"x\ny\n")}
    yield {b"bin": (REGULAR, tree[b"bin"][1] + b"\0tail"), b"new.bin": (REGULAR, bytes(range(255, 0, -1)))}
    yield {b"bin": (REGULAR, b"now text\n"), b"lone": (REGULAR, b"\0now binary")}
    yield {b"bin": None, b"moved.bin": tree[b"bin"]}
    yield {b"lone": None, b"lone/in.py": (REGULAR, b"x\n")}
    yield {b"dir/g": None, b"dir": (REGULAR, b"a\nb\n")}
    yield {b"link": (LINK, b"lone"), b"new link": (LINK, b"pkg/mod.py")}
    yield {b"link": (REGULAR, b"text"), b"lone": (LINK, b"x\n")}
    yield {
        "gr\u00fc\u00df/\u6587.py".encode(): (REGULAR, b"def f():\n    return 2\n"),
        "\u00e9t\u00e9".encode(): (REGULAR, b"e\n"),
    }
    yield {
        b"a b/c d": (REGULAR, b"blank\nin\nthe name\n"),
        b"tab\there": (REGULAR, b"t\n"),
        b'quo"te': (REGULAR, b"q\n"),
    }
    yield {b"empty": (REGULAR, b"full\n"), b"bin": (REGULAR, b"")}
    yield {p: (m, d.replace(b"x", b"X")) for p, (m, d) in tree.items() if p.startswith(b"pkg/") and m == REGULAR}


def _written_by_git(repo: Repo, world: World) -> None:
    authors = [a for a in AUTHORS if not a.startswith("no at")]
    for number, edit in enumerate(_edits(world.tree)):
        after = {p: c for p, c in {**world.tree, **edit}.items() if c is not None}
        said = commit_text(
            authors[number % len(authors)], SUBJECTS[number % len(SUBJECTS)], BODIES[number % len(BODIES)]
        )
        _, commit = repo.history([world.tree, after], [CommitText(), said])
        for options in OPTIONS:
            world.samples.append(repo.git("format-patch", "-1", "--stdout", *options, commit))


def _with_files_made_up(data: bytes, world: World) -> None:
    """Takes a patch of this distribution whose files nobody else has yet; those are laid around what its hunks expect."""
    patch = parse_patch(data, "own")
    names = {c.old_path for c in patch.changes if c.old_path is not None}
    if (
        len(data) > _LARGEST
        or names & world.tree.keys()
        or any(c.binary or c.kind in ("rename", "copy") for c in patch.changes)
    ):
        return
    far = any(h.old_start > 1500 for c in patch.changes for h in c.hunks)
    if far:
        return
    for change in patch.changes:
        if change.old_path is not None:
            world.tree[change.old_path] = (change.old_mode or REGULAR, _around(change))
    world.samples.append(re.sub(rb"(?m)^index [0-9a-f]+\.\.[0-9a-f]+( [0-7]+)?\n", b"", data))


def _around(change: FileChange) -> bytes:
    lines: list[bytes] = []
    for hunk in change.hunks:
        while len(lines) < hunk.old_start - 1:
            lines.append(b"# %d\n" % len(lines))
        lines += hunk.old
    return b"".join(lines) + (b"# behind\n" if change.kind == "modify" else b"")


def _from_history(mirror: Path, world: World, wanted: int = 12) -> None:
    """The last commits that are small and change files that no sample has changed before, with those files."""

    def git(*args: str) -> bytes:
        return subprocess.run(["git", "-C", str(mirror), *args], check=True, capture_output=True).stdout

    taken = 0
    for commit in git("rev-list", "--no-merges", "--max-count=60", "--all").decode().split():
        try:
            data = git("format-patch", "-1", "--stdout", "--full-index", "--binary", "-M", "-C", commit)
            patch = parse_patch(data, "upstream") if len(data) < _LARGEST else None
        except (BadPatch, subprocess.CalledProcessError):  # a mirror may be without some of its objects
            patch = None
        if patch is None or any(c.path in world.tree or GITLINK in (c.old_mode, c.new_mode) for c in patch.changes):
            continue
        before = {c.old_path: c.old_mode or REGULAR for c in patch.changes if c.old_path is not None}
        if before.keys() & world.tree.keys():
            continue
        for path, mode in before.items():
            world.tree[path] = (mode, git("cat-file", "blob", f"{commit}^:{path.decode()}"))
        world.samples.append(data)
        taken += 1
        if taken == wanted:
            return
