"""The wheel as somebody installs it who has no clone: every verb of a user in an empty folder, and what the wheel holds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from distribution import REPO, git
from packages import Env

from patchctl.manifest.distribution import Distribution

pytestmark = pytest.mark.heavy(
    "builds the wheel, installs it with its dependencies, and applies a profile from the package index"
)
MIB = 1 << 20
PROFILE, RECIPE = "qwen3-235b", "grpo"
# What belongs to whoever runs the tests, and not to a stranger; pip's settings lead to the package index.
KEPT = (
    "PATH",
    "PIP_",
    "SSL_CERT",
    "UV_",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)


@dataclass
class Stranger:
    """Somebody with an installed patchctl, an empty home, cache and temporary folder, in an empty folder."""

    program: Path
    folder: Path

    def run(self, *line: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k.startswith(KEPT)}
        places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data", "TMPDIR": "tmp"}
        env |= {name: str(self.folder / below) for name, below in places.items()} | config_of_pip()
        for below in (*places.values(), "work"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [str(self.program), *line], env=env, cwd=self.folder / "work", capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=1200,
        )  # fmt: skip

    def good(self, *line: str, code: int = 0) -> str:
        done = self.run(*line)
        assert done.returncode == code, f"{line} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def config_of_pip() -> dict[str, str]:
    """Where this machine's user has said which index pip asks."""
    file = Path.home() / ".config/pip/pip.conf"
    return {"PIP_CONFIG_FILE": str(file)} if file.is_file() and "PIP_CONFIG_FILE" not in os.environ else {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(REPO)]
    subprocess.run(line, check=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def stranger(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    env = Env(folder / "env", "pip")
    subprocess.run([env.python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    own = env.site / "patchctl/_distribution"
    for path in (*own.rglob("*"), own):
        path.chmod(path.stat().st_mode & ~0o222)  # nothing may write there, whoever installed it
    return Stranger(folder / "env/bin/patchctl", folder)


def test_what_is_in_it(wheel: Path) -> None:
    assert wheel.stat().st_size < 6 * MIB
    with zipfile.ZipFile(wheel) as archive:
        infos = {info.filename: info for info in archive.infolist()}
    top = {name.split("/")[0] for name in infos}
    assert len(top) == 2 and "patchctl" in top
    tool = {str(f.relative_to(REPO)) for f in (REPO / "patchctl").rglob("*") if f.is_file() and f.suffix != ".pyc"}
    assert tool <= infos.keys(), "templates and styles, too"
    inside = {name.removeprefix("patchctl/_distribution/") for name in infos}
    dist = Distribution.load(REPO)
    needed = {str(f.relative_to(REPO)) for stack in dist.stacks.values() for f in dist.patch_files(stack)}
    assert needed <= inside and {"scripts/train.sh", "LICENSE", "NOTICE", "docs/install.md"} <= inside
    assert not [
        name for name in inside if name.startswith("patches/") and {"tests", "mutants"} & {*name.split("/")[3:5]}
    ]
    assert infos["patchctl/_distribution/scripts/train.sh"].external_attr >> 16 & stat.S_IXUSR


def test_verbs_that_read(stranger: Stranger) -> None:
    assert f"releases: {', '.join(Distribution.load(REPO).releases)}" in stranger.good("--version")
    assert PROFILE in stranger.good("list")
    feature = next(iter(Distribution.load(REPO).stacks.values())).patches[0].partition("-")[2].partition("-")[2]
    assert "files" in stranger.good("show", feature.removesuffix(".patch"))
    assert f"{PROFILE}/{RECIPE}" in stranger.good("recipe", "list")
    stranger.good("recipe", "show", f"{PROFILE}/{RECIPE}")
    assert stranger.good("recipe", "command", f"{PROFILE}/{RECIPE}") == of_the_clone(
        "recipe", "command", f"{PROFILE}/{RECIPE}"
    )
    assert "no errors" in stranger.good("verify", "--static")
    stranger.good("report")
    assert (stranger.folder / "work/report.html").stat().st_size > 100_000
    done = stranger.run("preflight", "--profile", PROFILE, "--recipe", RECIPE)
    assert done.returncode == 1 and "CANN" in done.stdout, "it looks at this machine, which has none"


def of_the_clone(*line: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "patchctl", *line], cwd=REPO, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_scripts(stranger: Stranger) -> None:
    assert "ray_cluster.sh" in stranger.good("script")
    assert "Usage: ray_cluster.sh" in stranger.good("script", "ray_cluster.sh", "--help")
    plan = stranger.good("train", PROFILE, RECIPE, "--nodes", "8", "--dry-run")
    assert "patchctl preflight" in plan and "verl.trainer.main_ppo" in plan
    assert "--explain" in stranger.good("script", "plot_log.py", "--help")
    assert "build -f Dockerfile" in stranger.good("script", "build_image.sh", "--dry-run")
    for line in stranger.good("script").splitlines():
        stranger.good("script", line.split()[0], "--help")
    assert list((stranger.folder / "tmp").iterdir()) == []


def test_a_profile_is_applied_verified_and_bundled(stranger: Stranger) -> None:
    """MindSpeed is in git alone, which a package index cannot give."""
    done = stranger.run("apply", "--profile", PROFILE, "--skip-unavailable")
    if "its source could not be had" in done.stderr and "applied" not in done.stdout:
        pytest.skip("no package index here")
    assert done.returncode == 0 and done.stdout.count("as locked") >= 4, done.stderr
    status = stranger.good("status")
    assert (stranger.folder / "work/workspace/verl").is_dir() and "verl" in status
    stranger.good("verify", "--workspace", "workspace")
    stranger.good("bundle", "create", "--profile", PROFILE, "--skip-unavailable", "--offline")
    stranger.good("bundle", "verify", f"{PROFILE}.bundle.tar")
    stranger.good("revert")


def test_a_verb_that_writes_says_how_to_clone(stranger: Stranger) -> None:
    done = stranger.run("edit", "verl")
    assert done.returncode == 2 and "edit works on a clone of the distribution" in done.stderr
    assert "ask the person who gave you this patchctl for the address" in done.stderr


def test_an_installation_from_git_knows_its_commit_and_its_address(tmp_path: Path) -> None:
    """`pip install git+URL@REV`: what --version says, and where a clone comes from."""
    if not (REPO / ".git").exists():
        pytest.skip("not a checkout of git")
    commit = git(REPO, "rev-parse", "HEAD").strip()
    env = Env(tmp_path / "env", "pip")
    line = [env.python, "-m", "pip", "install", "--quiet", f"git+{REPO.as_uri()}@{commit}"]
    subprocess.run(line, check=True)
    stranger = Stranger(tmp_path / "env/bin/patchctl", tmp_path)
    assert f"installed with patchctl, commit {commit}\n" in stranger.good("--version")
    assert f"git clone {REPO.as_uri()} patchctl, and run the same in patchctl/" in stranger.run("lock").stderr
