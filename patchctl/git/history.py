"""The commits of an `edit` tree, and what is not committed in it."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.worktree import WorkTree

# What git leaves in its folder while HEAD is not where its user thinks of the work as being.
UNDER_WAY = (
    "rebase-merge",
    "rebase-apply",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "sequencer",
    "BISECT_LOG",
)


_AUTHOR = re.compile(r"(.*?) ?<(.*)> (\d+ [+-]\d{4})", re.DOTALL)


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
    """The commits after `base` up to HEAD, oldest first. Raises WrongUse when HEAD does not descend from `base` in one line.

    Every commit is held against its id: a git that dies while it tells of one must not shorten a message.
    """
    git_dir = folder / ".git"
    found: list[CommitInfo] = []
    oid = WorkTree(git_dir, folder).git("rev-parse", "--verify", "HEAD").decode().strip()
    with ObjectReader(git_dir) as reader:
        while oid != base:
            commit = _info(oid, reader.read(oid)[1])
            if len(commit.parents) != 1:
                what = "is a merge" if commit.parents else f"does not descend from the stack's base {base[:12]}"
                hint = "a stack is one line of commits: rebase it onto its base"
                raise WrongUse(f"commit {oid[:12]} in {folder} {what}", hint=hint)
            found.append(commit)
            oid = commit.parents[0]
    return found[::-1]


def uncommitted(folder: Path) -> list[str]:
    """Tracked files with changes that no commit has yet, and what git has under way: a rebase, a merge, a bisect."""
    work = WorkTree(folder / ".git", folder)
    out = work.git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules")
    changed = sorted(os.fsdecode(entry[3:]) for entry in out.split(b"\0") if entry)
    return changed + [f".git/{name}" for name in UNDER_WAY if (work.git_dir / name).exists()]


def _info(oid: str, data: bytes) -> CommitInfo:
    """A commit object. Its text is UTF-8 unless it says otherwise; a header's further lines, of a signature, begin with a blank."""
    head, _, message = data.partition(b"\n\n")
    fields = [line.partition(b" ")[::2] for line in head.split(b"\n") if not line.startswith(b" ")]
    one = dict(fields)
    encoding = one.get(b"encoding", b"utf-8").decode("ascii", "replace")
    try:
        codecs.lookup(encoding)
    except LookupError:
        encoding = "utf-8"
    author = _AUTHOR.fullmatch(one[b"author"].decode(encoding, "replace"))
    if author is None:
        raise WrongUse(
            f"commit {oid[:12]} has no author and date that can be read", hint="`git commit --amend --reset-author`"
        )
    parents = tuple(value.decode("ascii") for key, value in fields if key == b"parent")
    name, email, date = author.groups()
    return CommitInfo(
        oid, one[b"tree"].decode("ascii"), parents, name, email, date, message.decode(encoding, "replace")
    )
