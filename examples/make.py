"""Makes the example: `python make.py` in this folder. Needs git and patchctl, and no network.

sources/ gets a git repository of each folder of upstreams/, and stations/ the distribution, by `patchctl init` and what follows it: a
second upstream, the patches of changes/ and their tests, profiles/, the locks. The same files, names and dates give the same commit ids
on every machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES, STATIONS = HERE / "sources", HERE / "stations"
# At addresses that cannot exist (RFC 6761): after the first fetch the cache has both.
ADDRESS = "https://example.invalid/{}.git"
UNITS = f"""  units:
    summary: Conversions between units of measurement.
    license: Apache-2.0
    git: ["{ADDRESS.format("units")}"]
    packages: {{units: units}}
"""
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


def patchctl(*args: str, folder: Path = STATIONS) -> None:
    print("patchctl", *args, flush=True)
    subprocess.run(["patchctl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def make_source(name: str) -> str:
    """A repository with one commit, tagged v1, that holds upstreams/NAME; returns the commit's id."""
    repo = SOURCES / name
    shutil.copytree(HERE / "upstreams" / name, repo, ignore=shutil.ignore_patterns("__pycache__"))
    git(repo, "init", "--quiet", "--initial-branch=main")
    git(repo, "add", "--all")
    for script in repo.rglob("*.sh"):  # whatever the mode was where this was checked out
        git(repo, "update-index", "--chmod=+x", str(script.relative_to(repo)))
    git(repo, "-c", "core.fileMode=false", "commit", "--quiet", "-m", f"{name}, as the example pins it")
    git(repo, "tag", "v1")
    return git(repo, "rev-parse", "HEAD")


def make_distribution() -> None:
    first = ("--git", ADDRESS.format("weather"), "--mirror", "weather=sources/weather", "--dir", "stations")
    patchctl("init", "weather", "v1", *first, folder=HERE)
    with (STATIONS / "manifests/upstreams.yaml").open("a", encoding="utf-8") as upstreams:
        upstreams.write(UNITS)
    patchctl("pin", "units", "v1", "--mirror", "units=../sources/units")
    for name in ("units", "weather"):
        patchctl("edit", name)
        git(STATIONS / f"edit/{name}-v1", "am", "--quiet", *sorted(map(str, (HERE / "changes" / name).iterdir())))
        patchctl("export", name)
    shutil.rmtree(STATIONS / "edit")
    shutil.copytree(HERE / "patches", STATIONS / "patches", dirs_exist_ok=True)
    profiles = STATIONS / "manifests/profiles"
    (profiles / "weather.yaml").unlink()  # init's, of weather alone: its wind_report requires units
    shutil.copytree(HERE / "profiles", profiles, dirs_exist_ok=True)
    patchctl("lock")


def main() -> None:
    for made in (SOURCES, STATIONS):
        shutil.rmtree(made, ignore_errors=True)
    for name in ("weather", "units"):
        print(f"{name:<8} {make_source(name)}", flush=True)
    make_distribution()


if __name__ == "__main__":
    main()
