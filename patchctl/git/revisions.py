"""Queries on a repository: its names for commits, and the commits of a range that touch a file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from patchctl.errors import PatchctlError
from patchctl.git.run import GitFailed, run_git

_ID = re.compile(r"[0-9a-f]{40}")
_PREFIXES = ("refs/tags/", "refs/heads/", "refs/remotes/")


def git_dir(folder: Path) -> Path:
    """Return the git directory of a repository, bare or with a work tree."""
    return folder / ".git" if (folder / ".git").is_dir() else folder


def refs_of(repo: Path) -> dict[str, str]:
    """Return the commit of every tag and branch by short name. Tags win over branches of the same name."""
    form = "--format=%(refname) %(objecttype) %(objectname) %(*objectname)"
    out = run_git(["for-each-ref", form, *_PREFIXES], repo=repo, config=_safe(repo)).decode("utf-8", "replace")
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
        return run_git(["cat-file", "-t", commit], repo=repo, config=_safe(repo)).strip() == b"commit"
    except GitFailed:
        return False


def head_commit(folder: Path) -> str | None:
    """Return the commit that a work tree has checked out; None outside one, or if git is missing or refuses."""
    if not (folder / ".git").exists():
        return None
    try:
        out = run_git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], cwd=folder, config=_safe(folder / ".git"))
    except PatchctlError:
        return None
    return out.decode("ascii", "replace").strip()


def commits_touching(repo: Path, old: str, new: str, paths: Sequence[bytes]) -> dict[bytes, list[str]]:
    """Return the commits in `new` but not in `old`, oldest first, by each of `paths` that they change."""
    what = ["log", "--reverse", "--topo-order", "--no-renames", "--name-only", "-z", "--format=%x01%H"]
    names = [os.fsdecode(path) for path in paths]
    out = run_git([*what, new, f"^{old}", "--", *names], repo=repo, config=_safe(repo))
    found: dict[bytes, list[str]] = {}
    for part in out.split(b"\x01")[1:]:
        head, *touched = [name for name in part.replace(b"\n", b"\0").split(b"\0") if name]
        for name in touched:
            found.setdefault(name, []).append(head.decode("ascii"))
    return found


def _safe(repo: Path) -> tuple[tuple[str, str], ...]:
    return (("safe.directory", str(repo)), ("safe.directory", str(repo.parent)))
