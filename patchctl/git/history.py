"""The commits of an `edit` tree, read through GitPython.

The one place that imports it, late: it costs 0.1 s. It is bound to our absolute git; what it runs gets the isolated
environment of `run`, and none of the GIT_* variables of the user's shell.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.errors import WrongUse
from patchctl.git.run import git_environment, git_executable
from patchctl.git.unconfigured import without_settings

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
    """The commits after `base` up to HEAD, oldest first. Raises WrongUse when HEAD does not descend from `base` in one line."""
    with git_environment((("safe.directory", str(folder)),)) as env:
        repo = _open(folder, env)
        found = []
        commit: Any = repo.head.commit
        while commit.hexsha != base:
            if len(commit.parents) != 1:
                what = "is a merge" if commit.parents else f"does not descend from the stack's base {base[:12]}"
                hint = "a stack is one line of commits: rebase it onto its base"
                raise WrongUse(f"commit {commit.hexsha[:12]} in {folder} {what}", hint=hint)
            found.append(_info(commit))
            commit = commit.parents[0]
        repo.close()
    return found[::-1]


def _open(folder: Path, env: dict[str, str]) -> Repo:
    for name in [n for n in os.environ if n.startswith("GIT_") and n not in env]:
        del os.environ[name]  # GitPython hands this process's environment to git
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    import git

    git.refresh(git_executable())
    try:
        repo = git.Repo(folder, search_parent_directories=False)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise WrongUse(
            f"{folder} is no work tree made by `patchctl edit`", hint="`patchctl edit NAME` makes one"
        ) from error
    git_dir = folder.absolute() / ".git"  # said outright: a core.worktree of its configuration leads elsewhere
    settings = without_settings(git_dir)
    repo.git.update_environment(
        **env, GIT_DIR=str(git_dir), GIT_WORK_TREE=str(folder.absolute()), GIT_COMMON_DIR=settings
    )
    return repo


def _info(commit: Any) -> CommitInfo:
    zone = -commit.author_tz_offset
    sign, minutes = ("-" if zone < 0 else "+"), abs(zone) // 60
    date = f"{commit.authored_date} {sign}{minutes // 60:02d}{minutes % 60:02d}"
    message = commit.message if isinstance(commit.message, str) else commit.message.decode("utf-8", "replace")
    parents = tuple(p.hexsha for p in commit.parents)
    return CommitInfo(
        commit.hexsha, commit.tree.hexsha, parents, str(commit.author.name), str(commit.author.email), date, message
    )
