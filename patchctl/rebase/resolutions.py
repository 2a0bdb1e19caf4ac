"""Stores resolved conflicts at once and outside the work tree, so that they survive an abort and a removed tree.

edit/.resolutions/<upstream>/<key>.json   a whole patch as resolved, for the same patch on the same tree
edit/.resolutions/<upstream>/rr-cache/    git's rerere: single conflicts, wherever they recur
edit/.resolutions/<upstream>/aside-*.diff half-done work that an abort or a skip found
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.git.run import GitFailed
from patchctl.git.worktree import WorkTree


class Resolutions:
    """The resolutions of one upstream, in the distribution's edit/ folder."""

    def __init__(self, root: Path, upstream: str) -> None:
        self.folder = root / "edit" / ".resolutions" / upstream

    def link(self, git_dir: Path) -> None:
        """Keep git's rr-cache here too. MERGE_RR must not name entries that were deleted since: git would die of a signal."""
        cache, noted = self.folder / "rr-cache", git_dir / "MERGE_RR"
        cache.mkdir(parents=True, exist_ok=True)
        if not (git_dir / "rr-cache").is_symlink():
            os.symlink(cache, git_dir / "rr-cache")
        names = [entry.partition(b"\t")[0].partition(b".")[0] for entry in _bytes_of(noted).split(b"\0") if entry]
        if not all((cache / os.fsdecode(name)).is_dir() for name in names):
            noted.unlink()

    def keep(self, work: WorkTree, picked: str, head: str, commit: str) -> None:
        """Store what `picked` became on `head`."""
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, commit)
        message = work.git("cat-file", "commit", commit).partition(b"\n\n")[2]
        data = {"tree": _tree(work, commit), "message": _text(message), "diff": _text(diff)}
        replace_file(self._file(work, picked, head), json.dumps(data).encode())

    def replay(self, work: WorkTree, picked: str, head: str) -> str | None:
        """Apply and stage the stored resolution on a clean tree at `head`; returns its message, or None if there is none to use."""
        try:
            data = json.loads(self._file(work, picked, head).read_bytes())
            tree, message, diff = data["tree"], _bytes(data["message"]), _bytes(data["diff"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        try:
            if diff:
                work.git("apply", "--index", "--binary", "--whitespace=nowarn", "-", stdin=diff)
        except GitFailed:
            return None
        if work.git("write-tree").decode().strip() != tree:
            work.git("reset", "--hard", "--quiet", head)
            return None
        return message.decode("utf-8", "replace")

    def put_aside(self, work: WorkTree, head: str, paths: list[bytes]) -> Path | None:
        """Store these files as a diff to `head`; returns its path, or None if they are as in `head`."""
        tree = work.snapshot(head, paths)
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, tree)
        if not diff:
            return None
        file = self.folder / f"aside-{hashlib.sha256(diff).hexdigest()[:12]}.diff"
        replace_file(file, diff)
        return file

    def _file(self, work: WorkTree, picked: str, head: str) -> Path:
        """Keyed by trees: the commits of a release in between have another date each time."""
        parts = [_tree(work, f"{picked}^"), _tree(work, picked), _tree(work, head)]
        return self.folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}.json"


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _tree(work: WorkTree, commit: str) -> str:
    return work.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
