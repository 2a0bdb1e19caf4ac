"""A branch of the user's own repository that a run commits to, with their git as their shell runs it.

Their identity, signature, filters and ignores count. Hooks that judge a commit do not: what a run has stopped at is half done.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.git.run import GitFailed, run_git

_KEPT = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_")


@dataclass(frozen=True)
class Branch:
    """A branch made at commit `start`, while branch `origin` was checked out ("" if none was)."""

    name: str
    origin: str
    start: str


def plan_branch(root: Path, name: str) -> Branch:
    """Return the branch that `enter` makes. Raises WrongUse if `root` is not in git, has changes, or the branch is there."""
    where, why = str(root), "none of its files is in a commit"
    try:
        tracked = _git(root, "ls-tree", "--name-only", "HEAD", "./")
    except GitFailed as error:
        tracked, why = "", error.stderr.strip()
    if not tracked:
        hint = "`git init`, `git add .` and `git commit` there, or leave --branch out"
        raise WrongUse(f"the distribution is not in git: {why}", where=where, hint=hint)
    try:
        _git(root, "check-ref-format", "--branch", name)
        _git(root, "var", "GIT_COMMITTER_IDENT")
    except GitFailed as error:
        raise WrongUse(f"git cannot commit to a branch {name!r}: {error.stderr.strip()}", where=where) from error
    if _is_there(root, name):
        hint = f"`git branch -D {shlex.quote(name)}` deletes it; --branch NAME takes another"
        raise WrongUse(f"branch {name} is there already", where=where, hint=hint)
    _check_clean(root)
    return Branch(name, _git(root, "branch", "--show-current"), _git(root, "rev-parse", "HEAD"))


def enter(root: Path, branch: Branch) -> None:
    """Check the branch out, made if it is not there. Raises WrongUse if another is checked out, with changes."""
    if _git(root, "branch", "--show-current") != branch.name:
        _check_clean(root)
        made = () if _is_there(root, branch.name) else ("--create",)
        _git(root, "switch", "--quiet", *made, branch.name, *(made and (branch.start,)))


def commit_all(root: Path, branch: Branch, subject: str) -> None:
    """Commit all of `root` to the branch, which is checked out; the first commit even if nothing changed."""
    _git(root, "add", "--all", "--", ".")
    if _git(root, "diff", "--cached", "--name-only") or _git(root, "rev-parse", "HEAD") == branch.start:
        _git(root, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", subject)


def leave(root: Path, branch: Branch, subject: str) -> None:
    """Go back to where the branch was made, with what is there committed; nothing if another is checked out."""
    if _git(root, "branch", "--show-current") == branch.name:
        if _changes(root):
            commit_all(root, branch, subject)
        _git(root, "switch", "--quiet", *((branch.origin,) if branch.origin else ("--detach", branch.start)))


def _check_clean(root: Path) -> None:
    if changes := _changes(root):
        hint = "`git stash --include-untracked` puts them aside, `git add --all && git commit` keeps them; then the same command again"
        what = f"the distribution has changes that are in no commit: {', '.join(line[3:] for line in changes[:3])}"
        raise WrongUse(what + (f" and {len(changes) - 3} more" if len(changes) > 3 else ""), where=str(root), hint=hint)


def _changes(root: Path) -> list[str]:
    return _git(root, "status", "--porcelain").splitlines()


def _is_there(root: Path, name: str) -> bool:
    return bool(_git(root, "for-each-ref", f"refs/heads/{name}"))


def _git(root: Path, *args: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return run_git(args, env={**env, "LC_ALL": "C"}, cwd=root).decode("utf-8", "replace").rstrip()
