"""Builds the images for `make image-test`; images.py says what their base stands for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from images import AS_EDITABLE, BASE, BASE_INTO, PACKAGES, Image, build, buildah


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-trees", type=Path, help="unpatched trees, for an image that holds some (make trees)")
    parser.addoption("--base-tar", type=Path, help="where the stand-in base is kept, or made")


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stand-in base image."""
    for tool in ("buildah", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: on Debian `apt-get install buildah mmdebstrap` brings it")
    if os.geteuid() != 0:
        pytest.skip("not root: buildah's chroot isolation and mmdebstrap need it here")
    given: Path | None = request.config.getoption("--base-tar")
    tar = given or tmp_path_factory.mktemp("base") / "base.tar"
    if not tar.exists():
        tar.parent.mkdir(parents=True, exist_ok=True)
        command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(tar)]
        subprocess.run(command, check=True, capture_output=True)
    container = buildah("from", "scratch").stdout.strip()
    buildah("add", "-q", container, tar, "/")
    # CANN's images have Python's own pip; Debian's refuses to install beside its packages.
    buildah(
        "run", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", container, "--", "python3", "-m", "venv", "/opt/python"
    )
    path = "PATH=/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    buildah("config", "--env", path, container)
    buildah("commit", "-q", "--format", "docker", "--rm", container, BASE)
    yield BASE
    buildah("rmi", "-f", BASE, check=False)


@pytest.fixture(scope="session")
def image(base: str) -> Iterator[Image]:
    """The image of a profile, from whatever sources can be had here."""
    name = "localhost/patchctl-test"
    yield build(name, "--base", base, "--apply", "--skip-unavailable")
    buildah("rmi", "-f", name, check=False)


@pytest.fixture(scope="session")
def image_into(base: str, request: pytest.FixtureRequest) -> Iterator[Image]:
    """Dockerfile.into on a base that holds unpatched trees of vllm and vllm-ascend."""
    trees: Path | None = request.config.getoption("--base-trees")
    if trees is None:
        pytest.skip("no --base-trees: `make image-test` gives them")
    container = buildah("from", "--pull-never", base).stdout.strip()
    for name, version in (("vllm", "0.14.1"), ("vllm-ascend", "0.14.0rc1")):
        buildah("copy", "-q", container, trees / name, f"/vllm-workspace/{name}")
        buildah("run", container, "--", "python3", "-c", AS_EDITABLE, name, version)
    buildah("commit", "-q", "--format", "docker", "--rm", container, BASE_INTO)
    name = "localhost/patchctl-test-into"
    yield build(name, "--into", "--base", BASE_INTO, "--apply", "--skip-unavailable")
    buildah("rmi", "-f", name, BASE_INTO, check=False)
