"""Finds the upstream commit that made a patch unnecessary, in a local repository with the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchctl.git.run import GitFailed, git_environment, run_git
from patchctl.git.worktree import WorkTree
from patchctl.manifest.types import Upstream
from patchctl.scratch import scratch
from patchctl.source.git_form import places_of
from patchctl.source.types import SourceOptions


def taken_by(
    work: WorkTree, picked: str, span: tuple[str, str], name: str, upstream: Upstream, options: SourceOptions
) -> str | None:
    """`COMMIT SUBJECT` of the commit in `span` with the patch's own patch id; else of the first after which the patch reverses
    cleanly; else of the one that added its longest line. None if no local repository knows both revisions."""
    diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", f"{picked}^", picked)
    names = work.git("diff-tree", "--no-commit-id", "--name-only", "-r", "-z", f"{picked}^", picked)
    paths = [p.decode("utf-8", "surrogateescape") for p in names.split(b"\0") if p]
    for place, reason in places_of(name, upstream, options):
        if reason is None and place.local is not None:
            try:
                return _History(place.local, *span).brought(diff, paths)
            except GitFailed:  # it is shallow, or has only one of both
                continue
    return None


class _History:
    """The commits between two revisions of a local repository, which is only read."""

    def __init__(self, repo: Path, old: str, new: str) -> None:
        self._repo = repo if (repo / "objects").is_dir() else repo / ".git"
        self._span = f"{old}..{new}"

    def _git(self, *args: str, stdin: bytes | None = None, index: Path | None = None) -> bytes:
        with git_environment((("safe.directory", str(self._repo)),)) as env:
            if index is not None:
                env["GIT_INDEX_FILE"] = str(index)
            return run_git(args, repo=self._repo, env=env, stdin=stdin)

    def brought(self, diff: bytes, paths: Sequence[str]) -> str | None:
        commits = self._git("rev-list", "--reverse", "--topo-order", self._span, "--", *paths).decode().split()
        if not commits:
            return None
        same = self._same_change(diff, paths)
        if same is not None:
            return self._told(same)
        with scratch("patchctl-history-") as folder:
            index = folder / "index"
            found = commits[-1] if self._holds(commits[-1], diff, index) else self._with_line(diff, paths)
            if found == commits[-1]:  # it stayed from some commit on
                low, high = 0, len(commits) - 1
                while low < high:
                    middle = (low + high) // 2
                    low, high = (low, middle) if self._holds(commits[middle], diff, index) else (middle + 1, high)
                found = commits[high]
        return self._told(found) if found else None

    def _told(self, commit: str) -> str:
        return self._git("log", "-1", "--format=%h %s", commit).decode("utf-8", "replace").strip()

    def _same_change(self, diff: bytes, paths: Sequence[str]) -> str | None:
        """The first commit with the patch id of `diff`: the same change but for line numbers and whitespace."""
        ours = self._git("patch-id", "--stable", stdin=diff).split()[:1]
        shown = ("-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
        history = self._git("log", "--reverse", "--topo-order", "--no-merges", *shown, self._span, "--", *paths)
        rows = (line.split() for line in self._git("patch-id", "--stable", stdin=history).splitlines())
        return next((row[1].decode() for row in rows if row[:1] == ours), None)

    def _holds(self, commit: str, diff: bytes, index: Path) -> bool:
        """Whether the patch reverses cleanly on a commit's tree."""
        self._git("read-tree", commit, index=index)
        try:
            self._git("apply", "--cached", "--check", "--reverse", "-", stdin=diff, index=index)
        except GitFailed:
            return False
        return True

    def _with_line(self, diff: bytes, paths: Sequence[str]) -> str | None:
        added = [
            line[1:].strip() for line in diff.split(b"\n") if line.startswith(b"+") and not line.startswith(b"+++")
        ]
        longest = max(added, key=len, default=b"").decode("utf-8", "replace")
        found = (
            self._git("log", "--reverse", "--format=%H", f"-S{longest}", self._span, "--", *paths) if longest else b""
        )
        return next(iter(found.decode().split()), None)
