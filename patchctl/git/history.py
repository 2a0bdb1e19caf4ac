"""The commits of an `edit` tree, each verified by its id: a git killed halfway must not shorten a message.

The only module that imports GitPython, late, since that costs 0.1 s. GitPython parses a commit's author and date here
and runs no git.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.run import git_executable
from patchctl.git.worktree import WorkTree


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
    found: list[CommitInfo] = []
    oid = WorkTree(git_dir, folder).git("rev-parse", "--verify", "HEAD").decode().strip()
    with ObjectReader(git_dir, folder.name) as reader:
        while oid != base:
            commit = _info(oid, reader.read(oid)[1])
            if len(commit.parents) != 1:
                what = "is a merge" if commit.parents else f"does not descend from the stack's base {base[:12]}"
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
