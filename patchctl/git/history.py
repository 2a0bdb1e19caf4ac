"""The commits of an `edit` tree. Each is held against its id: a git that dies while it tells of one must not shorten a message.

The one place that imports GitPython, late, since it costs 0.1 s: it knows how a commit writes its author and date. It runs no git here.
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
    """What an export needs of a commit. `date` is git's: seconds since 1970 and a zone."""

    id: str
    tree: str
    parents: tuple[str, ...]
    name: str
    email: str
    date: str
    message: str


def commits_between(folder: Path, base: str) -> list[CommitInfo]:
    """The commits after `base` up to HEAD, oldest first. Raises WrongUse when HEAD does not descend from `base` in one line."""
    git_dir = folder / ".git"
    found: list[CommitInfo] = []
    oid = WorkTree(git_dir, folder).git("rev-parse", "--verify", "HEAD").decode().strip()
    with ObjectReader(git_dir, folder.name) as reader:
        while oid != base:
            commit = _info(oid, reader.read(oid)[1])
            if len(commit.parents) != 1:
                what = "is a merge" if commit.parents else f"does not descend from the stack's base {base[:12]}"
                hint = "a stack is one line of commits: rebase it onto its base"
                raise WrongUse(f"commit {oid[:12]} in {folder} {what}", hint=hint)
            found.append(commit)
            oid = commit.parents[0]
    return found[::-1]


def _info(oid: str, data: bytes) -> CommitInfo:
    """A commit object. Its text is UTF-8 unless it says otherwise; a header's further lines, of a signature, begin with a blank."""
    os.environ.update(GIT_PYTHON_REFRESH="quiet", GIT_PYTHON_GIT_EXECUTABLE=git_executable())
    try:  # it asks git for its version, and that git may be killed
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
        what = f"commit {oid[:12]} has no author that can be read"
        raise WrongUse(what, hint="`git commit --amend --reset-author`")
    parents = tuple(value.decode("ascii") for key, value in fields if key == b"parent")
    date = f"{seconds} {altz_to_utctz_str(offset)}"
    text = message.decode(encoding, "replace")
    return CommitInfo(oid, one[b"tree"].decode("ascii"), parents, author.name, author.email, date, text)
