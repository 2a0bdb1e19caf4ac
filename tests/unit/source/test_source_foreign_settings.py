"""What a repository's own settings name to be run is not run, whatever is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from source_builders import git, make_repo

from patchctl.bundle.create import _kept_by_git
from patchctl.errors import PatchctlError
from patchctl.git.history import commits_touching, descends, has_commit, head_commit, refs_of
from patchctl.prove.prove import changed_since
from patchctl.rebase.cherry_pick import _History
from patchctl.source.git_form import _in_full

NOWHERE = "1" * 40


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A checkout that has its objects fetched by a command, and names another one for its file system."""
    repo = make_repo(tmp_path / "foreign").path
    settings = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.url": repo.as_uri(),
        "remote.evil.uploadpack": f"touch {tmp_path}/ran; git-upload-pack",
        "core.fsmonitor": f"touch {tmp_path}/ran; false",
    }
    for name, value in settings.items():
        git(repo, "config", name, value)
    (tmp_path / "ran").unlink(missing_ok=True)
    return repo


ASKED: dict[str, Callable[[Path], Any]] = {
    "refs_of": lambda repo: refs_of(repo / ".git"),
    "has_commit": lambda repo: has_commit(repo / ".git", NOWHERE),
    "descends": lambda repo: descends(repo / ".git", "HEAD", NOWHERE),
    "head_commit": head_commit,
    "commits_touching": lambda repo: commits_touching(repo / ".git", "HEAD~1", "HEAD", [b"README"]),
    "brought": lambda repo: _History(repo, "HEAD~1", "HEAD").brought(b"", ["README"]),
    "in_full": lambda repo: _in_full("1111111", repo / ".git", {}),
    "kept_by_git": lambda repo: _kept_by_git(repo, []),
    "changed_since": lambda repo: changed_since(cast(Any, SimpleNamespace(root=repo)), [], "HEAD"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("lost", ["nothing", "its tip"])
def test_no_command_of_a_foreign_repository_runs(
    foreign: Path, asked: Callable[[Path], Any], lost: str, tmp_path: Path
) -> None:
    if lost == "its tip":
        name = (foreign / ".git/refs/heads" / git(foreign, "symbolic-ref", "--short", "HEAD")).read_text().strip()
        (foreign / ".git/objects" / name[:2] / name[2:]).unlink()
    with suppress(PatchctlError):  # what it answers is another matter
        asked(foreign)
    assert not (tmp_path / "ran").exists()
