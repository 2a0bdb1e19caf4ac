"""Picks one patch onto another tree with git's cherry-pick: a three-way merge with the patch's own base that follows renames.

And finds the upstream commit that made a patch unnecessary, in a local repository with the history.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import LocalEdits
from patchctl.git.history import trusting
from patchctl.git.locks import wait_for
from patchctl.git.run import GitFailed, foreign_environment, run_git
from patchctl.git.worktree import WorkTree
from patchctl.manifest.types import Upstream
from patchctl.scratch import scratch
from patchctl.source.git_form import places_of
from patchctl.source.types import SourceOptions
from patchctl.workspace.edit import tree_of
from patchctl.workspace.tree_files import TreeFiles

_CONFIG = (
    "-c",
    "rerere.enabled=true",
    "-c",
    "rerere.autoUpdate=true",
    "-c",
    "merge.conflictStyle=merge",
    "-c",
    "merge.renames=true",
    "-c",
    # A new file stays where the patch has it; git would take a folder with copies of its files for the one that it was moved to.
    "merge.directoryRenames=false",
    "-c",
    "merge.renormalize=false",
    "-c",
    "commit.gpgSign=false",
    "-c",
    "diff.renameLimit=5000",
)
_UNMERGED = re.compile(rb"\d+ [0-9a-f]+ ([123])\t([^\0]*)\0")
_KINDS = {
    "123": "both changed the same lines",
    "12": "changed by upstream, and deleted by the patch",
    "13": "changed by the patch, and not there any more: deleted, or moved where git does not see it",
    "23": "added by both",
    "1": "deleted by both, or moved to two places",
    "2": "upstream moved or added a file here",
    "3": "the patch has a file here, and upstream a folder of this name, or it moved what the file is made from",
}
_NOTE = "patchctl-at-work"
# A git of ours takes its locks within this time of the note; a person who commits in an editor takes them later.
_SECONDS = 10.0
_MARKER = re.compile(rb"^(<{7}|>{7}|\|{7})( |$)", re.MULTILINE)


@dataclass(frozen=True)
class Picked:
    """What git made of a patch: a commit, or files in conflict. `empty`: nothing is left of it; `remembered`: rerere resolved every
    conflict."""

    commit: str | None
    conflicts: dict[bytes, str]
    empty: bool = False
    remembered: bool = False


def work_of(folder: Path) -> WorkTree:
    return WorkTree(folder / ".git", folder)


def head_of(work: WorkTree) -> str:
    return work.git("rev-parse", "--verify", "HEAD").decode().strip()


def clear(work: WorkTree, commit: str) -> None:
    """Reset a tree of ours to a commit, whatever a killed git left in it."""
    drop_locks(work)
    _forget_pick(work)
    work.git("reset", "--hard", "--quiet", commit)
    work.git("clean", "-d", "--force", "--quiet")


def drop_locks(work: WorkTree) -> None:
    """Remove the locks that killed gits left in a tree of ours; any file of git's can have one."""
    for lock in _locks(work):
        lock.unlink(missing_ok=True)


def _locks(work: WorkTree) -> list[Path]:
    return [*work.git_dir.glob("*.lock"), *(work.git_dir / "refs").rglob("*.lock")]


def _forget_pick(work: WorkTree) -> None:
    for name in ("CHERRY_PICK_HEAD", "MERGE_MSG", "MERGE_RR", "AUTO_MERGE"):
        (work.git_dir / name).unlink(missing_ok=True)


@contextlib.contextmanager
def at_work(work: WorkTree) -> Iterator[None]:
    """Let a git of ours write to the user's tree, after noting the time: if both are killed, the next run can tell our locks from
    those of the user's git. Raises LocalEdits while another git holds one."""
    held = wait_for(_locks(work))
    if held:
        hint = "let it end; or remove the lock that a killed git left, and run this again"
        raise LocalEdits(f"git is at work in {work.folder}", [str(p) for p in held], hint=hint)
    note = work.git_dir / _NOTE
    replace_file(note, b"")
    yield
    note.unlink(missing_ok=True)


def drop_noted_locks(work: WorkTree) -> None:
    """Remove the locks that a killed git of ours left in the user's tree."""
    note = work.git_dir / _NOTE
    if note.is_file():
        began = note.stat().st_mtime
        for lock in _locks(work):
            with contextlib.suppress(FileNotFoundError):
                if abs(lock.stat().st_mtime - began) < _SECONDS:
                    lock.unlink()
        note.unlink()


def unstaged(work: WorkTree) -> list[bytes]:
    """The files that are not as they are staged; not those whose time alone is another, as diff-files would say. Of such, git notes the
    time in the index, whatever GIT_OPTIONAL_LOCKS says."""
    with at_work(work):
        return [p for p in work.git("diff", "-z", "--name-only", "--no-ext-diff").split(b"\0") if p]


def end_pick(work: WorkTree, original: str, before: str) -> None:
    """End a pick whose commit exists. Git commits first and cleans up then: killed in between, it reports a pick in progress, and would
    commit a second time or refuse to abort."""
    mark = work.git_dir / "CHERRY_PICK_HEAD"
    if not mark.is_file() or mark.read_text(encoding="utf-8").strip() != original:
        return
    if work.git("rev-list", "--parents", "--max-count=1", "HEAD").decode().split()[1:] == [before]:
        _forget_pick(work)


def pick(work: WorkTree, commit: str, *, renames: bool) -> Picked:
    """Cherry-pick onto a clean HEAD, following upstream's renames or not. Resolutions that rerere recorded are reused; any file left
    is a conflict. Raises GitFailed."""
    before = head_of(work)
    # git's ort has no such option before 2.50, and `recursive` is ort from then on.
    strategy = () if renames else ("--strategy=recursive", "--strategy-option=no-renames")
    try:
        work.git(*_CONFIG, "cherry-pick", "--allow-empty", "--keep-redundant-commits", *strategy, commit)
    except GitFailed:
        if not (work.git_dir / "CHERRY_PICK_HEAD").exists():
            raise
        conflicts = unmerged(work)
        if conflicts:
            _offer_message(work, commit)
            return Picked(None, conflicts)
        made = commit_as(work, commit, before)
        return Picked(made.commit, {}, made.empty, remembered=True)
    return _made(work, before)


def commit_as(work: WorkTree, original: str, before: str, message: str | None = None) -> Picked:
    """Commit what is staged, with the author, the date and, unless there is another, the message of `original`."""
    if message is None:
        work.git(*_CONFIG, "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--no-verify", "-C", original)
    else:
        work.git(*_CONFIG, "commit", "--quiet", "--allow-empty", "--no-verify", "-C", original)
        text = message.encode("utf-8", "surrogateescape")
        work.git(*_CONFIG, "commit", "--quiet", "--amend", "--allow-empty", "--cleanup=verbatim", "-F", "-", stdin=text)
    return _made(work, before)


def uncommit(work: WorkTree, original: str, before: str) -> None:
    """Turn a pick that was committed into one that is to be committed: staged, with the message of `original`."""
    work.git("reset", "--hard", "--quiet")
    work.git("clean", "-d", "--force", "--quiet")
    work.git("reset", "--soft", "--quiet", before)
    replace_file(work.git_dir / "CHERRY_PICK_HEAD", f"{original}\n".encode())
    _offer_message(work, original)


def _offer_message(work: WorkTree, commit: str) -> None:
    """Write MERGE_MSG without git's list of conflicts: `git commit --no-edit` keeps that list, and the trailers would no longer be
    the last paragraph."""
    replace_file(work.git_dir / "MERGE_MSG", work.git("log", "-1", "--format=%B", commit))


def _made(work: WorkTree, before: str) -> Picked:
    _forget_pick(work)  # git's commit ends well where it could not
    after = head_of(work)
    return Picked(after, {}, same_tree(work, before, after))


def same_tree(work: WorkTree, one: str, other: str) -> bool:
    first, second = work.git("rev-parse", f"{one}^{{tree}}", f"{other}^{{tree}}").split()
    return first == second


def touched_by(work: WorkTree, commit: str, kinds: str = "") -> list[bytes]:
    """The files that a commit changes, or only those of these kinds (git's letters, A for added)."""
    only = ("--diff-filter", kinds) if kinds else ()
    out = work.git(
        "diff-tree", "--no-commit-id", "--name-only", "--no-renames", "-r", "-z", *only, f"{commit}^", commit
    )
    return [p for p in out.split(b"\0") if p]


def unmerged(work: WorkTree) -> dict[bytes, str]:
    """The files in conflict, and what is wrong with each."""
    stages: dict[bytes, str] = {}
    for match in _UNMERGED.finditer(work.git("ls-files", "-u", "-z")):
        stages[match[2]] = stages.get(match[2], "") + match[1].decode()
    return {path: _KINDS.get(found, "in conflict") for path, found in stages.items()}


def run_rerere(work: WorkTree) -> None:
    """Let rerere record what is resolved so far."""
    with contextlib.suppress(GitFailed), at_work(work):
        work.git(*_CONFIG, "rerere")


def with_markers(folder: Path, paths: Iterable[bytes], sides: Sequence[str]) -> list[bytes]:
    """The files that hold more conflict markers than either side of the conflict: a text about conflicts has some of its own."""
    found = []
    for path in paths:
        file = os.fsencode(folder) + b"/" + path
        if os.path.isfile(file) and not os.path.islink(file):
            with open(file, "rb") as content:
                count = len(_MARKER.findall(content.read()))
            if count and count > max(_own_markers(work_of(folder), side, path) for side in sides):
                found.append(path)
    return found


def _own_markers(work: WorkTree, commit: str, path: bytes) -> int:
    with contextlib.suppress(GitFailed):  # it has no such file
        return len(_MARKER.findall(work.git("cat-file", "blob", f"{commit}:{os.fsdecode(path)}")))
    return 0


def uncommitted(folder: Path, head: str, generated: Iterable[str]) -> dict[str, str | None]:
    """All that the tree holds and HEAD does not, ignored files included, by path: a digest, None for a deleted file, "staged" for
    what only the index has."""
    tree = tree_of(folder)
    tracked = tree.files(head)
    files = TreeFiles(folder)
    ours = {os.fsencode(p) for p in generated}
    there = {p for p in files.everything() if not p.endswith(b".pyc")} - ours
    changed = {*(there - tracked.keys()), *tree.differing(tracked, tracked)}
    found = {os.fsdecode(p): _digest(folder, p) for p in sorted(changed)}
    return found | {os.fsdecode(p): "staged" for p in tree.work.staged(head) if p not in changed}


def _digest(folder: Path, path: bytes) -> str | None:
    file = os.fsencode(folder) + b"/" + path
    if os.path.islink(file):
        return "link " + hashlib.sha256(os.readlink(file)).hexdigest()
    if not os.path.isfile(file):
        return "no file" if os.path.lexists(file) else None
    with open(file, "rb") as content:
        return hashlib.sha256(content.read()).hexdigest()


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
        env = foreign_environment(self._repo, trusting(self._repo))
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
