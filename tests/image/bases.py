"""The stand-in bases: a bare one, and two that hold trees where vllm-ascend's images and verl's for Ascend have them.

All are Debian 12 with a Python 3.11 environment in front of the PATH, where CANN's images have openEuler or Ubuntu with CANN, and
their own Python: no registry is asked. The trees are checkouts where the sources came from git, and `pip install -e` put
them into the environment, running upstream's own setup.py. What such a build has not here is stood in for: the part of torch that
vllm's setup.py asks for a device, and cmake, which leaves a shared library of Python's as the compiled one. Like the real
one, it is ignored by git and must outlive patching.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from images import CERTIFICATES, buildah, index_arguments
from pins import version_of

PACKAGES = "python3,python3-venv,python3-pip,git,ca-certificates,make"
PATH = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What upstream's pyproject.toml files ask for, less torch, torch_npu and cmake.
BUILD = ("setuptools>=77.0.3,<81", "setuptools-scm>=8", "wheel", "packaging>=24.2", "pybind11")
COMPILED = "vllm_ascend/vllm_ascend_C.cpython-311-x86_64-linux-gnu.so"
_SHIMS = {
    "torch/__init__.py": "from types import SimpleNamespace\nversion = SimpleNamespace(cuda=None, hip=None)\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "CUDA_HOME = ROCM_HOME = None\n",
    "bin/cmake": f"""#!/bin/sh
case $1 in --build) cp "$(ls /usr/lib/python3.11/lib-dynload/_ctypes.*.so)" ./{COMPILED.rpartition("/")[2]} ;; esac
""",
}


@dataclass(frozen=True)
class Layout:
    """Where a base has its trees: folder by upstream, those of them that pip installed, the environment, and the owner."""

    name: str
    folders: Mapping[str, str] = field(default_factory=dict)
    installed: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    @property
    def image(self) -> str:
        return f"localhost/patchctl-test-base-{self.name}"


BARE = Layout("bare")
# Owned by nobody in particular: patching must not need root's ownership.
VLLM_ASCEND = Layout(
    "vllm-ascend",
    {"vllm": "/vllm-workspace/vllm", "vllm-ascend": "/vllm-workspace/vllm-ascend"},
    ("vllm", "vllm-ascend"),
    owner="1234:1234",
)
# docker/ascend/Dockerfile.ascend_8.3.rc1_a3 of verl (main, 2026-01).
VERL = Layout(
    "verl",
    {
        "vllm": "/vllm",
        "vllm-ascend": "/vllm-ascend",
        "mindspeed": "/MindSpeed",
        "megatron-lm": "/Megatron-LM",
        "verl": "/verl",
    },
    ("vllm", "vllm-ascend", "mindspeed", "verl"),
    {"PYTHONPATH": "/Megatron-LM"},
)
# Those whose setup.py asks git for its version.
SCM_VERSIONED = ("vllm", "vllm-ascend")


def make_tar(tar: Path) -> str:
    """Debian 12 as a tar file; what mmdebstrap said where it failed, and nothing is left then."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    new = tar.with_name(f"new-{tar.name}")  # its ending says what it is
    command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(new)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        new.unlink(missing_ok=True)
        return done.stderr.strip()[-600:]
    new.replace(tar)
    return ""


def make_bare(tar: Path) -> None:
    """The image of BARE, from what make_tar made."""
    container = buildah("from", "scratch").stdout.strip()
    buildah("add", "-q", container, tar, "/")
    # CANN's images have Python's own pip; Debian's refuses to install beside its packages.
    buildah("run", "--env", f"PATH={PATH}", container, "--", "/usr/bin/python3", "-m", "venv", "/opt/python")
    buildah("config", "--env", f"PATH={PATH}", container)
    buildah("commit", "-q", "--format", "docker", "--rm", container, BARE.image)


def make(layout: Layout, trees: Path) -> None:
    """The image of a layout with trees, from the unpatched ones in `trees`."""
    container = buildah("from", "--pull-never", BARE.image).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in _SHIMS.items():
            (folder / "shims" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "shims" / path).write_text(text)
        (folder / "shims/bin/cmake").chmod(0o755)
        buildah("copy", "-q", container, folder / "shims", "/shims")
        for upstream, place in layout.folders.items():
            checkout(trees / upstream, folder / upstream)
            buildah("copy", "-q", container, folder / upstream, place)
    _pip(container, *BUILD)
    for upstream in layout.installed:
        _pip(container, "--no-deps", "--no-build-isolation", "-e", layout.folders[upstream], upstream=upstream)
    buildah("run", container, "--", "rm", "-rf", "/shims", "/root/.cache")
    if layout.owner:
        buildah("run", container, "--", "chown", "-R", layout.owner, *layout.folders.values())
    for key, value in layout.environment.items():
        buildah("config", "--env", f"{key}={value}", container)
    buildah("commit", "-q", "--format", "docker", "--rm", container, layout.image)


def checkout(tree: Path, target: Path) -> None:
    """What `git clone --depth 1` leaves; of a tree that came from an sdist, which is no repository, the files."""
    form = subprocess.run(["git", "-C", tree, "log", "-1", "--format=%an"], capture_output=True, text=True, check=True)
    if form.stdout.strip() == "patchctl":  # the commit that stands for an sdist
        shutil.copytree(tree, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "_version.py"))
        return
    subprocess.run(
        ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--depth", "1", f"file://{tree}", target], check=True
    )


def _pip(container: str, *words: str, upstream: str = "") -> None:
    environment = {"VLLM_TARGET_DEVICE": "empty", "SOC_VERSION": "ascend310p1", "PYTHONPATH": "/shims"}
    environment |= {"PATH": f"/shims/bin:{PATH}", "PIP_NO_CACHE_DIR": "1"}
    if upstream in SCM_VERSIONED:
        environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = version_of(upstream)
    options = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    mounted = ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    index = [word.replace("--build-arg", "--env") for word in index_arguments()]
    buildah("run", *mounted, *options, *index, container, "--", "python3", "-m", "pip", "install", "-q", *words)
