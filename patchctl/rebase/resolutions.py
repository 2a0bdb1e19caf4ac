"""What people resolved, kept at once and outside the work tree: neither an abort nor a removed tree takes it away.

edit/.resolutions/<upstream>/<key>.json   a whole patch as it came out, for the very same patch on the very same tree
edit/.resolutions/<upstream>/rr-cache/    git's own (rerere): single conflicts, wherever they come again
edit/.resolutions/<upstream>/aside-*.diff what an abort or a skip found half done
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
    """Those of one upstream, in the distribution's edit/ folder."""

    def __init__(self, root: Path, upstream: str) -> None:
        self.folder = root / "edit" / ".resolutions" / upstream

    def link(self, git_dir: Path) -> None:
        """Let git keep its own here too. Where it was deleted since, git must not look for what it had there: it would end with
        a signal."""
        cache, noted = self.folder / "rr-cache", git_dir / "MERGE_RR"
        cache.mkdir(parents=True, exist_ok=True)
        if not (git_dir / "rr-cache").is_symlink():
            os.symlink(cache, git_dir / "rr-cache")
        names = [entry.partition(b"\t")[0].partition(b".")[0] for entry in _bytes_of(noted).split(b"\0") if entry]
        if not all((cache / os.fsdecode(name)).is_dir() for name in names):
            noted.unlink()

    def keep(self, work: WorkTree, picked: str, head: str, commit: str) -> None:
        """Keep what `picked` became on `head`."""
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, commit)
        message = work.git("cat-file", "commit", commit).partition(b"\n\n")[2]
        data = {"tree": _tree(work, commit), "message": _text(message), "diff": _text(diff)}
        replace_file(self._file(work, picked, head), json.dumps(data).encode())

    def replay(self, work: WorkTree, picked: str, head: str) -> str | None:
        """Do it again on a clean tree at `head`, staged: the message. None where it was never done, or cannot be read."""
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
        """Keep these files as they are on disk, as a diff to `head`. None where they are as in `head`."""
        tree = work.snapshot(head, paths)
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, tree)
        if not diff:
            return None
        file = self.folder / f"aside-{hashlib.sha256(diff).hexdigest()[:12]}.diff"
        replace_file(file, diff)
        return file

    def _file(self, work: WorkTree, picked: str, head: str) -> Path:
        """By trees, not by commits: those of a release in between have another date each time."""
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
