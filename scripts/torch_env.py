#!/usr/bin/env python3
"""Find or make the interpreter that runs the upstream code in behaviour tests, and print its path.

Looked for in this order: PATCHCTL_TORCH_PYTHON; the environment that an earlier run made; otherwise one is made with
Python 3.11 and torch from what pip is configured for (find-links included), then from TORCH_INDEX_URL. A torch build that
requires nvidia-* packages is never installed. Prints nothing on standard output and exits 3 when there is none; the
reason, and what to set, go to standard error. A release's manifest names its environment: .venv-NAME, made from the files in
tests/behaviour/environments/NAME.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from patchctl.__main__ import compose
from patchctl.manifest.distribution import Distribution

TORCH = "2.13.0"
PYTHON = "3.11"
HERE = Path(__file__).resolve().parent.parent
ENVIRONMENTS = HERE / "tests" / "behaviour" / "environments"
FILES = ("requirements.txt", "requirements-no-deps.txt", "constraints.txt")
NONE = 3


class NoTorch(Exception):
    """Why there is no usable torch, and what would help."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compose()
    releases = Distribution.load(HERE).releases
    newest = next(iter(releases))
    parser.add_argument("--release", choices=list(releases), default=newest, help="the release [default: %(default)s]")
    parser.add_argument(
        "--venv", type=Path, help="where to make the environment [default: as the release's manifest names it]"
    )
    args = parser.parse_args()
    name = releases[args.release].environment
    try:
        if name is None:
            raise NoTorch(f"the manifest of {args.release} names no environment")
        print(find_or_make((args.venv or HERE / f".venv-{name}").absolute(), ENVIRONMENTS / name, args.release))
    except NoTorch as reason:
        print(f"no CPU torch for the behaviour tests: {reason}", file=sys.stderr)
        return NONE
    return 0


def find_or_make(venv: Path, folder: Path, name: str) -> str:
    """The path of an interpreter with a CPU torch and everything in the folder's requirements.txt."""
    named = os.environ.get("PATCHCTL_TORCH_PYTHON")
    if named:
        check_torch(named)
        check_transformers(named, folder, name)
        return named
    python = str(venv / "bin" / "python")
    if not ready(venv, folder):
        with open(f"{venv}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two targets of one make may want it at the same time
            if not ready(venv, folder):
                make(venv, python, folder)
                check_torch(python)
                (venv / ".ready").write_text(wanted(folder))
    return python


def ready(venv: Path, folder: Path) -> bool:
    """Whether the environment is there, and of these files."""
    mark = venv / ".ready"
    return mark.is_file() and mark.read_text() == wanted(folder)


def wanted(folder: Path) -> str:
    """Changes when the environment has to be made anew."""
    files = [folder / name for name in FILES]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files) + TORCH.encode()).hexdigest()


def check_transformers(python: str, folder: Path, name: str) -> None:
    """Raise NoTorch where an interpreter that someone named is of another release: transformers tells them apart."""
    lines = (folder / "constraints.txt").read_text().splitlines()
    (version,) = [line.removeprefix("transformers==") for line in lines if line.startswith("transformers==")]
    probe = "import importlib.metadata; print(importlib.metadata.version('transformers'))"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if (found := done.stdout.strip() or "no transformers") != version:
        raise NoTorch(
            f"PATCHCTL_TORCH_PYTHON={python} has {found}; release {name} runs on transformers {version}: unset it"
        )


def check_torch(python: str) -> None:
    """Raise NoTorch unless the interpreter has a torch without CUDA."""
    probe = "import torch; print(torch.__version__, torch.version.cuda)"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoTorch(f"{python} cannot import torch: {done.stderr.strip().splitlines()[-1:]}")
    version, cuda = done.stdout.split()[-2:]
    if cuda != "None":
        raise NoTorch(f"{python} has torch {version} for CUDA {cuda}; a CPU build is needed: set PATCHCTL_TORCH_PYTHON")


def make(venv: Path, python: str, folder: Path) -> None:
    """A new environment. Everything is pinned to the one torch that was chosen, so that nothing can pull another."""
    base = shutil.which(f"python{PYTHON}")
    if base is None or subprocess.run([base, "-c", "import venv, ensurepip"], check=False).returncode != 0:
        raise NoTorch(f"there is no python{PYTHON} with venv; install it, or set PATCHCTL_TORCH_PYTHON")
    shutil.rmtree(venv, ignore_errors=True)
    print(f"making {venv} (about a minute, 2.7 GB)", file=sys.stderr)
    uv = [sys.executable, str(HERE / "scripts" / "uv_as_pip.py")]
    install = [*uv, "pip", "install", "-q", "--python", python]
    run([*uv, "venv", "-q", "--seed", "--python", base, str(venv)])
    torch = choose_torch(python)
    requirements, without_dependencies, constraints = (str(folder / name) for name in FILES)
    run([*install, "-c", constraints, "-r", requirements, torch])
    run([*install, "--no-deps", "-r", without_dependencies])


def choose_torch(python: str) -> str:
    """The requirement of the very file of a build without nvidia-*, so that nothing else can pull another."""
    tried = []
    places: list[tuple[str, list[str]]] = [("the index and find-links that pip is configured for", [])]
    if url := os.environ.get("TORCH_INDEX_URL"):
        places.append((f"TORCH_INDEX_URL={url}", ["--extra-index-url", url]))
    for place, extra in places:
        address, why_not = resolve(python, extra)
        if address:
            return f"torch @ {address}"
        tried.append(f"{place}: {why_not}")
    raise NoTorch("; ".join(tried) + ". Set TORCH_INDEX_URL to an index of CPU builds, or PATCHCTL_TORCH_PYTHON")


def resolve(python: str, extra: list[str]) -> tuple[str | None, str]:
    """What pip would install for torch, without installing it: its address, or why it is not taken."""
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--quiet",
        "--report",
        "-",
        *extra,
        f"torch=={TORCH}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, f"pip finds no torch {TORCH} ({(done.stderr.strip().splitlines() or ['no message'])[-1]})"
    found = json.loads(done.stdout)["install"][0]
    metadata, address = found["metadata"], found["download_info"]["url"]
    heavy = sorted({r.split()[0].split("=")[0] for r in metadata.get("requires_dist", []) if is_gpu(r)})
    if heavy:
        return None, f"torch {metadata['version']} there requires {', '.join(heavy[:3])}, ..."
    return address, ""


def is_gpu(requirement: str) -> bool:
    """Whether a requirement is one of a CUDA build on this platform; those for other platforms carry a marker we cannot meet."""
    return requirement.startswith(("nvidia-", "triton", "cuda-")) and "extra ==" not in requirement


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise NoTorch(f"`{' '.join(command)}` failed")


if __name__ == "__main__":
    sys.exit(main())
