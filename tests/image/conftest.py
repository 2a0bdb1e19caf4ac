"""Builds the images for `make image-test`; bases.py says what their bases stand for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from bases import BARE, SYSTEM, VERL, VLLM_ASCEND, Layout, make, make_bare, make_tar
from images import PROFILE, RELEASE, REPO, Image, build, buildah, digest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-trees", type=Path, help="unpatched trees, for bases that hold some (make trees)")
    parser.addoption("--bases", type=Path, help="the folder where the bare stand-in bases are kept, or made")


def cannot_build() -> str:
    """Why buildah cannot make a container here, as in a container that may not mount; empty where it can."""
    made = buildah("from", "scratch", check=False)
    if made.returncode != 0:
        return made.stderr.strip()
    container = made.stdout.strip()
    mounted = buildah("mount", container, check=False)
    buildah("rm", container, check=False)
    apart = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return (mounted.stderr if mounted.returncode else apart.stderr).strip()


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stand-in base image that holds no tree."""
    for tool in ("buildah", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: on Debian `apt-get install buildah mmdebstrap` brings it")
    if os.geteuid() != 0:
        pytest.skip("not root: buildah's chroot isolation and mmdebstrap need it here")
    if reason := cannot_build():
        pytest.skip(f"no image can be built here: {reason}")
    given: Path | None = request.config.getoption("--bases")
    tar = (given or tmp_path_factory.mktemp("bases")) / f"{SYSTEM.suite}.tar"
    if not tar.exists() and (reason := make_tar(tar)):
        pytest.skip(f"{SYSTEM.name}, which has Python {SYSTEM.python}, cannot be had: {reason}")
    make_bare(tar)
    yield BARE.image
    buildah("rmi", "-f", BARE.image, check=False)


@pytest.fixture(scope="session")
def bundle(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with whatever sources can be had here; PATCHCTL_MIRRORS names a folder of local repositories."""
    out = tmp_path_factory.mktemp("bundle") / "sources.tar"
    mirrors = os.environ.get("PATCHCTL_MIRRORS")
    places = sorted(Path(mirrors).iterdir()) if mirrors else []
    options = [f"--mirror={path.name.removesuffix('.git')}={path}" for path in places if path.is_dir()]
    command = [
        sys.executable,
        "-m",
        "patchctl",
        "bundle",
        "create",
        "-p",
        PROFILE,
        "-o",
        out,
        "--skip-unavailable",
        *(["--release", RELEASE] if RELEASE else []),
        *options,
    ]
    done = subprocess.run(command, cwd=REPO, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def image(base: str, bundle: Path) -> Iterator[Image]:
    """The image of a profile on the bare base, from a bundle."""
    name = "localhost/patchctl-test"
    yield build(name, "--base", base, "--bundle", str(bundle), "--apply", "--skip-unavailable", "--no-runtime")
    buildah("rmi", "-f", name, check=False)


@pytest.fixture(scope="session")
def image_again(image: Image, base: str, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The same once more; buildah is no word on PATH, but named by its path, and the release is that of the shell."""
    name, tool = "localhost/patchctl-test-again", tmp_path_factory.mktemp("tool") / "buildah"
    log = tool.with_name("log")
    tool.write_text(f'#!/bin/sh\necho "$1" >>{log}\nexec {shutil.which("buildah")} "$@"\n')
    tool.chmod(0o755)
    options = ("--base", base, "--bundle", str(bundle), "--apply", "--skip-unavailable", "--no-runtime")
    built = build(name, *options, tool=str(tool), release=None)
    yield Image(name, log.read_text() + built.build_log)
    buildah("rmi", "-f", name, check=False)


@pytest.fixture(scope="session")
def image_into(base: str, request: pytest.FixtureRequest) -> Iterator[Image]:
    """Dockerfile.into on a base like vllm-ascend's images, which is given by its digest."""
    yield from _into(VLLM_ASCEND, request, f"{VLLM_ASCEND.image}@{{digest}}")


@pytest.fixture(scope="session")
def image_verl(base: str, request: pytest.FixtureRequest) -> Iterator[Image]:
    """Dockerfile.into on a base like verl's for Ascend, which holds all five trees."""
    yield from _into(VERL, request, VERL.image)


def _into(layout: Layout, request: pytest.FixtureRequest, named: str) -> Iterator[Image]:
    trees: Path | None = request.config.getoption("--base-trees")
    if trees is None:
        pytest.skip("no --base-trees: `make image-test` gives them")
    for upstream in layout.folders:
        if not (trees / upstream).is_dir():
            pytest.skip(
                f"{trees} has no {upstream}, which this base holds: `make image-test MIRRORS=DIR` takes it from a mirror"
            )
    make(layout, trees.resolve())
    name = f"localhost/patchctl-test-{layout.name}"
    base = named.format(digest=digest(layout.image))
    yield build(name, "--in-place", "--base", base, "--apply", "--skip-unavailable", "--no-runtime")
    buildah("rmi", "-f", name, layout.image, check=False)
