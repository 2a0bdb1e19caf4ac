"""The engine on real history: the tip's tree and every commit id equal to what `git am` makes of the same patch files.

PATCHCTL_HISTORY names a bare repository (several with the path separator between them), PATCHCTL_HISTORY_COUNT how many
commits (200). The last first-parent commits that change something are taken; a merge counts as the change that it brought
to its first parent. They become a straight line in a scratch repository, which borrows the objects of the given one and
writes nothing there, and then patch files by `git format-patch --full-index --binary -M`.

A patch whose header the parser refuses keeps its place with a plain header in its stead, in both engines, so that all the
others are still compared; the test prints each, with the reason, and how many there were.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchctl.errors import BadPatch
from patchctl.git.catfile import ObjectReader
from patchctl.patch.parse import parse_patch
from patchctl.stack.build import Built, StackBuilder
from patchctl.stack.patches import StackPatch

GIT_ENV = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_COMMITTER_NAME": "patchctl",
    "GIT_COMMITTER_EMAIL": "patchctl@localhost",
    "GIT_NO_LAZY_FETCH": "1",
}
PLAIN = b"From: A U Thor <author@example.com>\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nSubject: [PATCH] plain\n\n---\n"
REPOSITORIES = [Path(p) for p in os.environ.get("PATCHCTL_HISTORY", "").split(os.pathsep) if p]
COUNT = int(os.environ.get("PATCHCTL_HISTORY_COUNT", "200"))


def git(*args: str, cwd: Path, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["git", *args], cwd=cwd, input=stdin, env=GIT_ENV, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-3000:]
    return done.stdout


@dataclass(frozen=True)
class History:
    """A straight line of commits on `base`, as patch files."""

    scratch: Path
    base: str
    tip_tree: str
    files: list[Path]


def straighten(source: Path, count: int, folder: Path) -> History:
    scratch = folder / "scratch"
    git("init", "-q", str(scratch), cwd=folder)
    objects = Path(git("rev-parse", "--git-path", "objects", cwd=source).decode().strip())
    (scratch / ".git/objects/info/alternates").write_text(f"{(source / objects).resolve()}\n")
    shallow = (source / objects).resolve().parent / "shallow"
    if shallow.exists():
        (scratch / ".git/shallow").write_bytes(shallow.read_bytes())
    tip = git("rev-parse", "HEAD", cwd=source).decode().strip()
    chosen = last_changes(scratch, tip, count)
    base = chosen[0][0]
    commits: list[bytes] = []
    parent = base
    for _, raw in chosen:
        head, _, message = raw.partition(b"\n\n")
        kept = [
            line for line in head.split(b"\n") if line.startswith((b"tree ", b"author ", b"committer ", b"encoding "))
        ]
        data = b"\n".join([kept[0], b"parent " + parent.encode(), *kept[1:]]) + b"\n\n" + message
        commits.append(data)
        parent = hashlib.sha1(b"commit %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    names = []
    for number, data in enumerate(commits):
        (folder / f"c{number}").write_bytes(data)
        names.append(f"{folder / f'c{number}'}\n")
    written = git("hash-object", "-w", "-t", "commit", "--stdin-paths", cwd=scratch, stdin="".join(names).encode())
    assert written.split()[-1].decode() == parent
    options = ["-q", "--full-index", "--binary", "-M", "-o", str(folder / "patches")]
    git("format-patch", *options, f"{base}..{parent}", cwd=scratch)
    tree = git("rev-parse", f"{parent}^{{tree}}", cwd=scratch).decode().strip()
    return History(scratch, base, tree, sorted((folder / "patches").iterdir()))


def last_changes(scratch: Path, tip: str, count: int) -> list[tuple[str, bytes]]:
    """(first parent, raw commit) of the last `count` first-parent commits that change something, oldest first."""
    rows = git("rev-list", "--first-parent", "--parents", tip, cwd=scratch).decode().splitlines()
    found: list[tuple[str, bytes]] = []
    for commit, *parents in (row.split() for row in rows):
        if not parents or len(found) == count:
            break
        raw, before = (git("cat-file", "commit", oid, cwd=scratch) for oid in (commit, parents[0]))
        if raw[:45] != before[:45]:
            found.append((parents[0], raw))
    assert found, "no commit with a parent was found"
    return found[::-1]


def load(files: list[Path]) -> tuple[list[StackPatch], list[str]]:
    """The patches without a stack's rules on names and modes, and why some have a plain header now."""
    patches: list[StackPatch] = []
    refused: list[str] = []
    for file in files:
        data = file.read_bytes()
        try:
            parsed = parse_patch(data, file.name)
        except BadPatch as error:
            refused.append(str(error))
            data = PLAIN + data[data.index(b"\ndiff --git ") + 1 :]
            file.write_bytes(data)
            parsed = parse_patch(data, file.name)
        patches.append(StackPatch(file, file.name, data, parsed, {}))
    return patches, refused


def build(history: History, patches: list[StackPatch]) -> Built:
    with ObjectReader(history.scratch / ".git") as reader:
        tree = reader.read(history.base)[1][5:45].decode()
        return StackBuilder(reader, history.base, tree).build(patches)


@pytest.mark.skipif(not REPOSITORIES, reason="PATCHCTL_HISTORY names no repository with real history")
@pytest.mark.parametrize(
    "source", REPOSITORIES, ids=[p.parent.name if p.name == "repo" else p.name for p in REPOSITORIES]
)
def test_real_history_gives_the_commits_of_git_am(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = straighten(source, COUNT, tmp_path)
    patches, refused = load(history.files)
    built = build(history, patches)

    git("checkout", "-q", "-f", "--detach", history.base, cwd=history.scratch)
    options = ["-q", "--keep-cr", "--committer-date-is-author-date", "--no-gpg-sign", "--"]
    git("am", *options, *map(str, history.files), cwd=history.scratch)
    theirs = git("rev-list", "--reverse", f"{history.base}..HEAD", cwd=history.scratch).decode().split()

    with capsys.disabled():
        binary, renames = (
            sum(sum(test(c) for c in p.patch.changes) for p in patches) for test in (is_binary, is_rename)
        )
        print(
            f"\n{source}: {len(patches)} patches ({binary} binary files, {renames} renames), {len(refused)} headers refused"
        )
        print("".join(f"  {line}\n" for line in refused), end="")
    assert built.tip_tree == history.tip_tree == git("rev-parse", "HEAD^{tree}", cwd=history.scratch).decode().strip()
    assert [s.commit for s in built.steps] == theirs
    # Refusing everything would compare nothing.
    assert len(refused) <= len(patches) / 10

    written = built.objects.write(history.scratch / ".git/objects/pack")
    git("verify-pack", str(written), cwd=history.scratch)  # works every delta out and hashes what it makes
    git("fsck", "--strict", "--connectivity-only", built.tip_commit, cwd=history.scratch)


def is_binary(change: object) -> bool:
    return getattr(change, "binary", None) is not None


def is_rename(change: object) -> bool:
    return getattr(change, "kind", "") in ("rename", "copy")
