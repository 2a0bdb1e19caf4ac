"""The commits of an `edit` tree, read through GitPython.

The one place that imports it, late: it costs 0.1 s. Its own reader of objects (gitdb) starts no git, so that none can die half-way
through a message; GIT_* variables of the user's shell do not reach it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.errors import BrokenRepository, WrongUse
from patchctl.git.objects import object_id
from patchctl.git.run import git_executable, isolated_environment

if TYPE_CHECKING:
    from git import Repo


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
    """The commits after `base` up to HEAD, oldest first. Raises WrongUse when HEAD does not descend from `base` in one line,
    BrokenRepository when a commit cannot be read or is not what its id says."""
    repo = _open(folder)
    from git.exc import ODBError

    found = []
    try:
        commit: Any = repo.head.commit
        while commit.hexsha != base:
            if object_id("commit", commit.data_stream.read()) != commit.hexsha:
                raise ValueError(f"commit {commit.hexsha}: its content is not what its id says")
            if len(commit.parents) != 1:
                what = "is a merge" if commit.parents else f"does not descend from the stack's base {base[:12]}"
                hint = "a stack is one line of commits: rebase it onto its base"
                raise WrongUse(f"commit {commit.hexsha[:12]} in {folder} {what}", hint=hint)
            found.append(_info(commit))
            commit = commit.parents[0]
    except (ValueError, ODBError, zlib.error) as error:
        raise BrokenRepository(f"a commit of {folder} cannot be read: {error}", where=str(folder)) from error
    finally:
        repo.close()
    return found[::-1]


def _open(folder: Path) -> Repo:
    isolated = isolated_environment(os.devnull)
    for name in [n for n in os.environ if n.startswith("GIT_") and n not in isolated]:
        del os.environ[name]  # GitPython looks at this process's environment
    os.environ.update(GIT_PYTHON_REFRESH="quiet", GIT_PYTHON_GIT_EXECUTABLE=git_executable())
    import git

    try:
        return git.Repo(folder, search_parent_directories=False, odbt=git.GitDB)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise WrongUse(
            f"{folder} is no work tree made by `patchctl edit`", hint="`patchctl edit NAME` makes one"
        ) from error


def _info(commit: Any) -> CommitInfo:
    zone = -commit.author_tz_offset
    sign, minutes = ("-" if zone < 0 else "+"), abs(zone) // 60
    date = f"{commit.authored_date} {sign}{minutes // 60:02d}{minutes % 60:02d}"
    message = commit.message if isinstance(commit.message, str) else commit.message.decode("utf-8", "replace")
    parents = tuple(p.hexsha for p in commit.parents)
    return CommitInfo(
        commit.hexsha, commit.tree.hexsha, parents, str(commit.author.name), str(commit.author.email), date, message
    )
