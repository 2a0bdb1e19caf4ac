"""Series of patches for bench_apply: cut out of a repository's history, or made with a seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from patchctl.errors import BadPatch
from patchctl.patch.parse import parse_patch
from patchctl.stack.patches import check_patch

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_COMMITTER_NAME": "patchctl",
    "GIT_COMMITTER_EMAIL": "patchctl@localhost",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


@dataclass
class Series:
    """Patches on a base: where they come from, how many, and what they touch."""

    source: str
    repo: Path
    base: str
    tip_tree: str
    files: list[Path]
    tracked: int


def find_series(folder: Path, repo: Path | None, size: int) -> Series:
    """Real history where there is a long enough run of it, else a synthetic one."""
    found = real_series(folder, repo, size) if repo else None
    return found or made_series(folder.with_name(f"{folder.name}-made"), size)


def real_series(folder: Path, repo: Path, size: int) -> Series | None:
    """The newest run of `size` commits that one stack can hold (no links, no submodules, no merges), or None."""
    log = git("log", "--first-parent", "--no-merges", "--format=%H %P", "-n", str(size * 3), "HEAD", repo=repo).split(
        "\n"
    )
    commits = [line.split() for line in log if line]
    folder.mkdir(parents=True)
    good: list[tuple[str, bytes]] = []
    for position, (commit, *parents) in enumerate(commits):
        if good and commits[position - 1][1:] != [commit]:
            good = []
        data = git_bytes(
            "format-patch",
            "--stdout",
            "--full-index",
            "--binary",
            "--no-renames",
            "--no-signature",
            "-1",
            commit,
            repo=repo,
        )
        good = [*good, (commit, data)] if len(parents) == 1 and usable(data) else []
        if len(good) == size:
            return write_series(folder, repo, parents[0], good[0][0], [d for _, d in reversed(good)])
    return None


def usable(data: bytes) -> bool:
    try:
        check_patch(parse_patch(data, "patch"))
    except BadPatch:
        return False
    return True


def write_series(folder: Path, repo: Path, base: str, tip: str, patches: list[bytes]) -> Series:
    files = []
    for number, data in enumerate(patches):  # from 0000: a file name has four digits, and 10,000 patches are asked for
        file = folder / f"{number:04d}-bugfix-p{number}.patch"
        file.write_bytes(data)
        files.append(file)
    name = next((p for p in reversed(repo.resolve().parts) if p not in ("repo", ".git")), "history")
    tracked = len(git("ls-tree", "-r", "--name-only", base, repo=repo).split("\n"))
    tree = git("rev-parse", f"{tip}^{{tree}}", repo=repo).strip()
    return Series(f"{name}'s history up to {tip[:12]}", repo, base, tree, files, tracked)


def made_series(folder: Path, size: int, files: int = 2000, seed: int = 20261121) -> Series:
    """A seeded history: files of about 200 lines; every commit edits two files, some add one."""
    rng = random.Random(seed)
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git("init", "-q", ".", repo=None, cwd=repo)
    names = [f"pkg{i % (files // 50)}/mod{i}.py" for i in range(files)]
    for name in names:
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(
            "".join(f"value_{rng.randrange(10**6)} = {rng.randrange(10**6)}\n" for _ in range(200))
        )
    git("add", "-A", repo=None, cwd=repo)
    git("commit", "-qm", "base", repo=None, cwd=repo)
    base = git("rev-parse", "HEAD", repo=None, cwd=repo).strip()
    for number in range(size):
        for name in rng.sample(names, 2):
            lines = (repo / name).read_text().splitlines(keepends=True)
            at = rng.randrange(len(lines))
            lines[at : at + rng.randrange(3)] = [f"edited_{number}_{j} = {j}\n" for j in range(rng.randrange(1, 6))]
            (repo / name).write_text("".join(lines))
        if number % 10 == 0:
            (repo / f"pkg0/new{number}.py").write_text("new = True\n" * 50)
        git("add", "-A", repo=None, cwd=repo)
        git("commit", "-qm", f"change {number}", repo=None, cwd=repo)
    made = [
        git_bytes(
            "format-patch", "--stdout", "--full-index", "--binary", "--no-signature", "-1", commit, repo=repo / ".git"
        )
        for commit in git("rev-list", "--reverse", f"{base}..HEAD", repo=repo / ".git").split()
    ]
    (folder / "patches").mkdir()
    series = write_series(folder / "patches", repo / ".git", base, "HEAD", made)
    series.source = f"synthetic history, seed {seed}"
    return series


def git(*args: str, repo: Path | None, cwd: Path | None = None) -> str:
    return git_bytes(*args, repo=repo, cwd=cwd).decode()


def git_bytes(*args: str, repo: Path | None, cwd: Path | None = None) -> bytes:
    where = [f"--git-dir={repo}"] if repo else []
    return subprocess.run(["git", *where, *args], cwd=cwd, env=GIT_ENV, capture_output=True, check=True).stdout
