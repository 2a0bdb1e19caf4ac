#!/usr/bin/env python3
"""The tool's unit tests on every Python from 3.10 to 3.14 that this machine has, each in an environment of its own.

Looks for them on PATH, among pyenv's versions and those that uv knows; what is not there is named, not fetched. Exit code 1
when the tests fail on one, 3 when there is none.

example:
  scripts/test_pythons.py --only 3.10 3.13 -- -n 2 -x tests/unit/git
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
VERSIONS = [f"3.{minor}" for minor in range(10, 15)]
UV = [sys.executable, "-m", "uv"]


def candidates(version: str) -> list[Path]:
    """Programs that may be this Python, those of PATH first."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += sorted((folder / "bin" for folder in pyenv.glob(f"{version}.*")), reverse=True)
    return [folder / name for folder in folders if (folder / name).is_file()] + _of_uv(version)


def _of_uv(version: str) -> list[Path]:
    line = [*UV, "python", "list", "--only-installed", "--output-format", "json", version]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return [Path(found["path"]) for found in json.loads(done.stdout)] if done.returncode == 0 else []


def find(version: str) -> tuple[str, Path] | None:
    """The first that runs: its whole version, and the program."""
    for program in candidates(version):
        ask = [str(program), "-c", "import platform; print(platform.python_version())"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"{version}."):
            return done.stdout.strip(), program
    return None


def environment(python: Path, folder: Path) -> Path:
    """One with the tool, from this checkout, and what its tests need."""
    install = ["pip", "install", "--quiet", "--python", str(folder / "bin/python"), "--editable", f"{REPO}[test,lint]"]
    for words in (["venv", "--quiet", "--clear", "--python", str(python), str(folder)], install):
        subprocess.run([sys.executable, str(REPO / "scripts" / "uv_as_pip.py"), *words], check=True)
    return folder / "bin/python"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VERSIONS, default=VERSIONS, metavar="3.N")
    parser.add_argument(
        "--out", type=Path, default=REPO / "build/pythons", help="where environments are made [%(default)s]"
    )
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="for pytest [default: tests/unit]")
    args = parser.parse_args()
    words = args.pytest or ["tests/unit"]
    said = {version: _tested(version, args.out / version, words) for version in args.only}
    print(*(f"Python {version}  {what}" for version, (_, what) in said.items()), sep="\n")
    codes = {code for code, _ in said.values()}
    return 1 if 1 in codes else 0 if 0 in codes else 3


def _tested(version: str, folder: Path, words: list[str]) -> tuple[int, str]:
    found = find(version)
    if found is None:
        return 3, "is not on this machine"
    whole, program = found
    print(f"== Python {whole}, {program}", flush=True)
    try:
        python = environment(program, folder)
    except subprocess.CalledProcessError:
        return 1, f"{whole}: FAILED, its environment cannot be made"
    line = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    code = subprocess.run(line, cwd=REPO, check=False).returncode
    return (1, f"{whole}: FAILED, pytest ended with {code}") if code else (0, f"{whole}: passed")


if __name__ == "__main__":
    sys.exit(main())
