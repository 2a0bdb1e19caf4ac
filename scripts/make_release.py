#!/usr/bin/env python3
"""Build what a release consists of, and prove it by installing it: wheel, sdist, bills of materials, bundles and SHA256SUMS in dist/.

    make release                                   of the commit that is checked out
    make release HOMEPAGE=none                     while the project has no address
    make release BUNDLE="qwen3-235b" SIGN=KEY      with the bundle of a profile, and SHA256SUMS.sig

Wheel, sdist and bills of materials are built twice, from `git archive` in folders of their own and with different umasks; every timestamp is the
commit's. The wheel is built from the sdist. Then it is installed with its dependencies into a new environment, and run in an empty folder with
an empty home: it makes the bundles, from sources as `patchctl fetch` finds them, and applies them without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from patchctl import __version__
from patchctl.__main__ import compose
from patchctl.bundle.signature import Signable, SigningKey
from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "dist"
LARGEST_WHEEL = 6 << 20
CHANGES = "CHANGELOG.md"
RELEASE = Signable("release", "make release SIGN=KEY")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--homepage", metavar="none", default="", help="none: release without an address of the project"
    )
    parser.add_argument("--bundle", metavar="PROFILE", action="append", default=[], help="Add a profile's bundle.")
    parser.add_argument("--sign", metavar="KEY", type=Path, help="Sign SHA256SUMS with this SSH key.")
    args = parser.parse_args()
    compose()
    try:
        key = SigningKey.load(args.sign) if args.sign else None
    except WrongUse as error:
        refuse(error.what, error.hint or "name a private key")
    check_texts(args.homepage)
    commit, epoch = checked_out()
    with tempfile.TemporaryDirectory(prefix="patchctl-release-") as name:
        first, second = (build(Path(name) / str(umask), commit, epoch, umask) for umask in (0o022, 0o077))
        compare(first, second)
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir()
        made = [Path(shutil.copy(file, OUT)) for file in first]
        stranger = prove(next(file for file in made if file.suffix == ".whl"), Path(name) / "stranger", commit)
        made += [bundled(stranger, profile) for profile in args.bundle]
        sums = write(made, key)
    for file, digest in sums.items():
        print(f"{digest}  {file.relative_to(ROOT)}  {file.stat().st_size:,} bytes")
    print("next: tag the commit, and publish these with SHA256SUMS")


def check_texts(homepage: str) -> None:
    """The version is the newest release's, the changelog has it with its date and nothing above it, and the metadata has an address."""
    newest = next(iter(Distribution.load(ROOT).releases))
    if not __version__.startswith(newest):
        refuse(
            f"the version is {__version__}, and the newest release {newest}", "set __version__ in patchctl/__init__.py"
        )
    heading = rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d$"
    changes = (ROOT / CHANGES).read_text(encoding="utf-8")
    if not re.search(heading, changes, re.MULTILINE):
        refuse(f"{CHANGES} has no heading `## {__version__} - YEAR-MONTH-DAY`", "move what is below Unreleased there")
    if homepage != "none" and "[project.urls]" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        refuse(
            "pyproject.toml has no [project.urls]: where is the project hosted?",
            'add `Repository = "URL"` there, or run make release HOMEPAGE=none',
        )
    if re.search(r"^## Unreleased\n+(?!## )\S", changes, re.MULTILINE):
        what, hint = f"{CHANGES} has entries below Unreleased, which are in this release", f"move them to {__version__}"
        if homepage != "none":
            refuse(what, hint)
        print(f"note: {what}: {hint}", file=sys.stderr)


def checked_out() -> tuple[str, str]:
    """Return the commit and its time. What is not committed would not be in the release."""
    if git("status", "--porcelain"):
        refuse("the work tree has changes that are not committed", "commit or stash them")
    return git("rev-parse", "HEAD"), git("log", "-1", "--format=%ct")


def build(folder: Path, commit: str, epoch: str, umask: int) -> list[Path]:
    """Build the sdist of a commit, and the wheel from it."""
    tree, out = folder / "tree", folder / "out"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True, umask=umask)
    run(
        [sys.executable, "scripts/uv_as_pip.py", "build", "--quiet", "--out-dir", str(out), str(tree)],
        {**os.environ, "SOURCE_DATE_EPOCH": epoch}, umask=umask,
    )  # fmt: skip
    for profile in Distribution.load(tree).profiles:
        line = [
            sys.executable,
            "-m",
            "patchctl",
            f"--root={tree}",
            "sbom",
            "--profile",
            profile,
            "--format",
            "cyclonedx",
        ]
        run([*line, "--out", str(out / f"{profile}.cdx.json")], {**os.environ, "PYTHONPATH": str(ROOT)}, umask=umask)
    return sorted(file for file in out.iterdir() if file.suffix in (".whl", ".gz", ".json"))


def compare(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Refuse builds that differ by a byte, and a wheel that is too large."""
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            refuse(f"two builds of {one.name} differ", f"compare the members of {one} and {other}")
        if one.suffix == ".whl" and one.stat().st_size > LARGEST_WHEEL:
            refuse(f"{one.name} has {one.stat().st_size:,} bytes", f"at most {LARGEST_WHEEL:,}: see pyproject.toml")


def write(made: Sequence[Path], key: SigningKey | None) -> dict[Path, str]:
    """Write SHA256SUMS as `sha256sum --check` reads it, and with a key its signature."""
    sums = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in made}
    text, file = "".join(f"{digest}  {file.name}\n" for file, digest in sums.items()), OUT / "SHA256SUMS"
    file.write_text(text)
    if key:
        with file.open("rb") as written:
            key.sign_beside(file, written, hashlib.sha256(text.encode()).hexdigest(), RELEASE)
    return sums


@dataclass(frozen=True)
class Stranger:
    """A machine with the wheel and nothing else."""

    patchctl: str
    environment: dict[str, str]
    folder: Path

    def run(self, *line: str) -> str:
        said = run([self.patchctl, *line], self.environment, self.folder)
        print(f"installed: patchctl {' '.join(line)}")
        return said


def bundled(stranger: Stranger, profile: str) -> Path:
    """Make a profile's bundle by the installed wheel, whole, with this machine's indexes and mirrors, and apply it with neither."""
    out = OUT / f"{profile}.bundle.tar"
    ours = replace(stranger, environment={**os.environ, "PATCHCTL_ROOT": ""})
    ours.run("bundle", "create", "--profile", profile, "--out", str(out))
    stranger.run("apply", "--bundle", str(out), "--profile", profile, "--workspace", profile)
    stranger.run("verify", "--workspace", profile)
    return out


def prove(wheel: Path, folder: Path, commit: str) -> Stranger:
    """Install the wheel as a stranger does, and run it in an empty folder."""
    places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data", "TMPDIR": "tmp"}
    for place in (*places.values(), "work"):
        (folder / place).mkdir(parents=True)
    python = folder / "env/bin/python"
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], dict(os.environ))
    run(
        [sys.executable, "scripts/uv_as_pip.py", "pip", "install", "--quiet", "--python", str(python), str(wheel)],
        dict(os.environ),
    )
    env = {"PATH": os.environ["PATH"], **{name: str(folder / place) for name, place in places.items()}}
    stranger = Stranger(str(python.with_name("patchctl")), env, folder / "work")
    said = stranger.run("--version")
    if f"patchctl {__version__}\n" not in said or f"commit {commit}" not in said:
        refuse(f"the installed patchctl says {said!r}", f"it has to name {__version__} and {commit}")
    recipe = next(line.split()[0] for line in stranger.run("recipe", "list").splitlines() if "/" in line)
    for line in (
        ["list"],
        ["verify", "--static", "--quiet"],
        ["recipe", "command", recipe],
        ["script", "train.sh", "--help"],
    ):
        stranger.run(*line)
    return stranger


def run(line: Sequence[str], env: dict[str, str], cwd: Path = ROOT, *, umask: int = -1) -> str:
    done = subprocess.run(line, env=env, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False, umask=umask)
    if done.returncode != 0:
        refuse(f"`{' '.join(line)}` ended with {done.returncode}", "see above")
    return done.stdout


def git(*line: str) -> str:
    return subprocess.run(["git", *line], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def refuse(what: str, hint: str) -> NoReturn:
    print(f"make release: {what}\n  try: {hint}", file=sys.stderr)
    sys.exit(WrongUse.code)


if __name__ == "__main__":
    main()
