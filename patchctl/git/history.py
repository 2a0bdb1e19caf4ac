"""Queries on a repository: its names for commits, the commits of a range, and git's three-way merge of one file.

The only module that imports GitPython, late, since that costs 0.1 s. GitPython parses a commit's author and date here
and runs no git.
"""

from __future__ import annotations

import codecs
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchctlError, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.run import GitFailed, foreign_environment, git_executable, run_git, scratch_folder
from patchctl.git.worktree import WorkTree, find_git_dir

_ID = re.compile(r"[0-9a-f]{40}")
_PREFIXES = ("refs/tags/", "refs/heads/", "refs/remotes/")


def git_dir(folder: Path) -> Path:
    """Return the git directory of a repository, bare or with a work tree."""
    return folder / ".git" if (folder / ".git").is_dir() else folder


def asked(repo: Path, args: Sequence[str]) -> bytes:
    """Run git on a repository that is not ours, isolated from its own settings too."""
    return run_git(args, repo=repo, env=foreign_environment(repo, trusting(repo)))


def refs_of(repo: Path) -> dict[str, str]:
    """Return the commit of every tag and branch by short name. Tags win over branches of the same name."""
    form = "--format=%(refname) %(objecttype) %(objectname) %(*objectname)"
    out = asked(repo, ["for-each-ref", form, *_PREFIXES]).decode("utf-8", "replace")
    rows = [line.split(" ") for line in out.splitlines()]
    found: dict[str, str] = {}
    for prefix in _PREFIXES:
        for name, kind, own, target in rows:
            oid = target if kind == "tag" else own
            if name.startswith(prefix) and _ID.fullmatch(oid):
                short = name[len(prefix) :].partition("/")[2] if prefix == "refs/remotes/" else name[len(prefix) :]
                found.setdefault(short, oid)
    return found


def has_commit(repo: Path, commit: str) -> bool:
    """Whether a repository has this commit."""
    try:
        return asked(repo, ["cat-file", "-t", commit]).strip() == b"commit"
    except GitFailed:
        return False


def head_commit(folder: Path) -> str | None:
    """Return the commit that a work tree has checked out; None outside one, or if git is missing or refuses."""
    repo = find_git_dir(folder)
    if repo is None:
        return None
    try:
        out = asked(repo, ["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    except PatchctlError:
        return None
    return out.decode("ascii", "replace").strip()


def descends(repo: Path, commit: str, ancestor: str) -> bool:
    """Whether `ancestor` is in the commit's history; False if the repository lacks either."""
    try:
        asked(repo, ["merge-base", "--is-ancestor", ancestor, commit])
    except GitFailed:
        return False
    return True


def commits_touching(repo: Path, old: str, new: str, paths: Sequence[bytes]) -> dict[bytes, list[str]]:
    """Return the commits in `new` but not in `old`, oldest first, by each of `paths` that they change."""
    what = ["log", "--reverse", "--topo-order", "--no-renames", "--name-only", "-z", "--format=%x01%H"]
    names = [os.fsdecode(path) for path in paths]
    out = asked(repo, [*what, new, f"^{old}", "--", *names])
    found: dict[bytes, list[str]] = {}
    for part in out.split(b"\x01")[1:]:
        head, *touched = [name for name in part.replace(b"\n", b"\0").split(b"\0") if name]
        for name in touched:
            found.setdefault(name, []).append(head.decode("ascii"))
    return found


def trusting(repo: Path) -> tuple[tuple[str, str], ...]:
    """Return the setting that lets git read a repository of another user, bare or with a work tree."""
    return (("safe.directory", str(repo)), ("safe.directory", str(repo.parent)))


@dataclass(frozen=True)
class CommitInfo:
    """What export needs of a commit. `date` has git's raw format: seconds since the epoch and a zone."""

    id: str
    tree: str
    parents: tuple[str, ...]
    name: str
    email: str
    date: str
    message: str


def commits_between(folder: Path, base: str) -> list[CommitInfo]:
    """Return the commits after `base` up to HEAD, oldest first.

    Raises WrongUse unless history from `base` to HEAD is linear.
    """
    git_dir = folder / ".git"
    border = (git_dir / "shallow").read_text("ascii").split() if (git_dir / "shallow").is_file() else []
    found: list[CommitInfo] = []
    oid = WorkTree(git_dir, folder).git("rev-parse", "--verify", "HEAD").decode().strip()
    with ObjectReader(git_dir, folder.name) as reader:
        while oid != base:
            commit = _info(oid, reader.read(oid)[1])
            if len(commit.parents) != 1 or oid in border:
                what = (
                    "is a merge"
                    if len(commit.parents) > 1 and oid not in border
                    else f"does not descend from the stack's base {base[:12]}"
                )
                hint = "a stack is linear: rebase it onto its base"
                raise WrongUse(f"commit {oid[:12]} in {folder} {what}", hint=hint)
            found.append(commit)
            oid = commit.parents[0]
    return found[::-1]


def _info(oid: str, data: bytes) -> CommitInfo:
    """Parse a commit object. Text is UTF-8 unless `encoding` says otherwise; continuation lines start with a blank."""
    os.environ.update(GIT_PYTHON_REFRESH="quiet", GIT_PYTHON_GIT_EXECUTABLE=git_executable())
    try:  # importing it runs `git version`, which may be killed
        from git.objects.util import altz_to_utctz_str, parse_actor_and_date
    except ImportError as error:
        raise WrongUse(f"GitPython cannot be loaded: {error}", hint="run the same again; `patchctl doctor`") from error

    head, _, message = data.partition(b"\n\n")
    fields = [line.partition(b" ")[::2] for line in head.split(b"\n") if not line.startswith(b" ")]
    one = dict(fields)
    encoding = one.get(b"encoding", b"utf-8").decode("ascii", "replace")
    try:
        codecs.lookup(encoding)
    except LookupError:
        encoding = "utf-8"
    author, seconds, offset = parse_actor_and_date("author " + one[b"author"].decode(encoding, "replace"))
    if not author.email or not author.name:
        what = f"commit {oid[:12]} has no readable author"
        raise WrongUse(what, hint="`git commit --amend --reset-author`")
    parents = tuple(value.decode("ascii") for key, value in fields if key == b"parent")
    date = f"{seconds} {altz_to_utctz_str(offset)}"
    text = message.decode(encoding, "replace")
    return CommitInfo(oid, one[b"tree"].decode("ascii"), parents, author.name, author.email, date, text)


# `git merge-file` exits with the number of conflicts, at most 127, or with 255 on errors.
_MOST_CONFLICTS = 127
_BINARY = "Cannot merge binary files"


def merge_file(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Apply the change from `base` to `theirs` to `ours`, as `git merge-file` does. None if that fails to merge."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        names = [os.path.join(folder, name) for name in ("ours", "base", "theirs")]
        for name, data in zip(names, (ours, base, theirs), strict=True):
            Path(name).write_bytes(data)
        try:
            return run_git(["merge-file", "-p", "-q", *names])
        except GitFailed as failure:
            if failure.status <= _MOST_CONFLICTS or _BINARY in failure.stderr:
                return None
            raise
