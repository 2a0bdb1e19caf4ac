"""The stand-in bases: a bare one, and two that hold trees where vllm-ascend's images and verl's for Ascend have them.

All are Debian or Ubuntu, whichever has the Python that the release wants, with an environment of it in front of the PATH, where
CANN's images have openEuler or Ubuntu with CANN, and their own Python: no registry is asked. The trees are checkouts where the sources
came from git, and `pip install -e` put them into the environment, running upstream's own setup.py. What such a build has not here is
stood in for: the part of torch that vllm's setup.py asks for a device, CANN's compiler, catlass, and cmake, which leaves a shared
library of Python's as the compiled ones. Like the real ones, they are ignored by git and must outlive patching.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from images import CERTIFICATES, RELEASES_PROFILE, buildah, index_arguments, stack
from pins import index_version, oldest

from patchctl.doctor.runtime import fits

# apt is of what mmdebstrap takes for minimal in Debian, and not in Ubuntu.
PACKAGES = "apt,python3,python3-venv,python3-pip,git,ca-certificates,make"
PATH = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What upstream's pyproject.toml files ask for, less torch, torch_npu and cmake.
BUILD = ("setuptools>=77.0.3,<81", "setuptools-scm>=8", "setuptools-rust>=1.9", "wheel", "packaging>=24.2", "pybind11")


@dataclass(frozen=True)
class System:
    """A release of Debian or Ubuntu, the Python that it has, and where mmdebstrap takes it from; it finds the keys by itself."""

    name: str
    suite: str
    python: str
    source: tuple[str, ...] = ()
    keyring: Path | None = None

    @property
    def site(self) -> str:
        return f"/opt/python/lib/python{self.python}/site-packages"


UBUNTU_KEYS = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
SYSTEMS = (
    System("Debian 12", "bookworm", "3.11"),
    # Its venv and jemalloc are in universe.
    System(
        "Ubuntu 24.04", "noble", "3.12", ("http://archive.ubuntu.com/ubuntu", "--components=main,universe"), UBUNTU_KEYS
    ),
)
SYSTEM = next(one for one in SYSTEMS if fits(one.python, RELEASES_PROFILE.runtime["python"]))
OLDEST_RELEASE = RELEASES_PROFILE.release == oldest()
# v0.14.0rc1's build_aclnn.sh has nothing for this chip, v0.23.0's runs its build.sh and the installer that comes of it for an A3's.
SOC_VERSION = "ascend310p1" if OLDEST_RELEASE else "ascend910_9391"
_EXTENSION = f"vllm_ascend_C.cpython-{SYSTEM.python.replace('.', '')}-x86_64-linux-gnu.so"
_OPERATORS = "vendors/custom_transformer/op_api/lib/libcust_opapi.so"
COMPILED = (f"vllm_ascend/{_EXTENSION}", *([] if OLDEST_RELEASE else [f"vllm_ascend/_cann_ops_custom/{_OPERATORS}"]))
_SHIMS = {
    "torch/__init__.py": "from types import SimpleNamespace\nversion = SimpleNamespace(cuda=None, hip=None)\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "CUDA_HOME = ROCM_HOME = None\n",
    "bin/cmake": f"""#!/bin/sh
library=$(ls /usr/lib/python{SYSTEM.python}/lib-dynload/_ctypes.*.so)
case $1$PWD in
  --build*/csrc/build) printf '#!/bin/sh\\ninstall -D %s "${{1#*=}}"/{_OPERATORS}\\n' "$library" >cann-ops-transformer.run ;;
  --build*) cp "$library" ./{_EXTENSION} ;;
esac
""",
    "bin/bisheng": "#!/bin/sh\n",
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
# docker/ascend/Dockerfile.ascend_8.3.rc1_a3 of verl (main, 2026-01), and for the newer release v0.9.0's Dockerfile.ascend_9.1.0_a3, which
# installs Megatron-LM as well.
VERL = Layout(
    "verl",
    {
        "vllm": "/vllm",
        "vllm-ascend": "/vllm-ascend",
        "mindspeed": "/MindSpeed",
        "megatron-lm": "/Megatron-LM",
        "verl": "/verl",
    },
    ("vllm", "vllm-ascend", "mindspeed", *([] if OLDEST_RELEASE else ["megatron-lm"]), "verl"),
    {"PYTHONPATH": "/Megatron-LM"} if OLDEST_RELEASE else {},
)
# Those whose setup.py asks git for its version.
SCM_VERSIONED = ("vllm", "vllm-ascend")


def make_tar(tar: Path) -> str:
    """The system as a tar file; why not, where its keys are missing or mmdebstrap failed, and nothing is left then."""
    if SYSTEM.keyring and not SYSTEM.keyring.exists():
        return f"{SYSTEM.keyring} is missing: Debian's package ubuntu-keyring brings it, which Debian 12 has not and 13 has"
    tar.parent.mkdir(parents=True, exist_ok=True)
    new = tar.with_name(f"new-{tar.name}")  # its ending says what it is
    asked = ("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", SYSTEM.suite, str(new), *SYSTEM.source)
    done = subprocess.run(asked, capture_output=True, text=True)
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
        for program in (folder / "shims/bin").iterdir():
            program.chmod(0o755)
        buildah("copy", "-q", container, folder / "shims", "/shims")
        for upstream, place in layout.folders.items():
            checkout(trees / upstream, folder / upstream)
            if upstream == "vllm-ascend":  # a submodule, which no source here holds
                catlass = folder / upstream / "csrc/third_party/catlass/include"
                catlass.mkdir(parents=True)
                (catlass / "catlass.hpp").touch()
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
    environment = {"VLLM_TARGET_DEVICE": "empty", "SOC_VERSION": SOC_VERSION, "PYTHONPATH": "/shims"}
    environment |= {"ASCEND_HOME_PATH": "/shims/cann"}
    environment |= {"PATH": f"/shims/bin:{PATH}", "PIP_NO_CACHE_DIR": "1"}
    if upstream in SCM_VERSIONED:
        environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = index_version(stack(upstream))
    options = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    mounted = ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    index = [word.replace("--build-arg", "--env") for word in index_arguments()]
    buildah("run", *mounted, *options, *index, container, "--", "python3", "-m", "pip", "install", "-q", *words)
