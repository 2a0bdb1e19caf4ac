"""Makes the git repositories of the example's two upstreams: `python examples/make_sources.py [FOLDER]`.

The same files, names and dates give the same commit ids on every machine; they are the pins in manifests/stacks. Needs
git, and nothing else. FOLDER is examples/sources unless it is named; what is there already is made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
UPSTREAMS = ("weather", "units")
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Example",
    "GIT_AUTHOR_EMAIL": "example@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Example",
    "GIT_COMMITTER_EMAIL": "example@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


def git(folder: Path, *args: str) -> str:
    """The output of one git command, free of this machine's configuration."""
    done = subprocess.run(
        ["git", "-C", str(folder), *args], env=ENVIRONMENT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_source(name: str, folder: Path) -> str:
    """One repository with one commit that holds upstreams/NAME; returns the commit's id."""
    repo = folder / name
    if repo.exists():
        shutil.rmtree(repo)
    shutil.copytree(HERE / "upstreams" / name, repo, ignore=shutil.ignore_patterns("__pycache__"))
    git(repo, "init", "--quiet", "--initial-branch=main")
    git(repo, "add", "--all")
    for script in repo.rglob("*.sh"):  # whatever the mode was where this was checked out
        git(repo, "update-index", "--chmod=+x", str(script.relative_to(repo)))
    git(repo, "-c", "core.fileMode=false", "commit", "--quiet", "-m", f"{name}, as the example pins it")
    return git(repo, "rev-parse", "HEAD")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    for name in UPSTREAMS:
        print(f"{name:<8} {make_source(name, folder)}")


if __name__ == "__main__":
    main()
