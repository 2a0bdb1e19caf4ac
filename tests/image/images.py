"""What the tests of the images share: buildah, and a stand-in base.

The stand-in base is Debian 12 with a Python 3.11 environment in front of the PATH, where CANN's images have openEuler or
Ubuntu with CANN, and their own Python: no registry is asked. It has no CANN and no torch_npu, so what the trees run on and
vllm-ascend's operators are left out of these builds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = "python3,python3-venv,python3-pip,git,ca-certificates,make"
BASE, BASE_INTO = "localhost/patchctl-test-base", "localhost/patchctl-test-base-into"
# What `pip install -e` leaves in site-packages, which in the real image ran upstream's build.
AS_EDITABLE = """
import pathlib, sys, sysconfig
name, version = sys.argv[1:]
site = pathlib.Path(sysconfig.get_path("purelib"))
(site / f"__editable__.{name}.pth").write_text(f"/vllm-workspace/{name}\\n")
info = site / f"{name.replace('-', '_')}-{version}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
"""
ENVIRONMENT = os.environ | {"BUILDAH_ISOLATION": "chroot"}


def buildah(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One command of buildah's; what it printed, for the message where it fails."""
    done = subprocess.run(["buildah", *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True)
    assert not check or done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@dataclass(frozen=True)
class Image:
    """A built image."""

    name: str
    build_log: str = ""

    @property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(buildah("inspect", "--type", "image", self.name).stdout)["Docker"]["config"])

    def run(self, *command: str, user: str = "", changed: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command in a container of its own; `changed` is a shell command that is run in it before, as root."""
        container = buildah("from", "--pull-never", self.name).stdout.strip()
        try:
            if changed:
                buildah("run", container, "--", "/bin/sh", "-c", changed)
            options = ["--user", user] if user else []
            return buildah("run", *options, container, "--", *command, check=False)
        finally:
            buildah("rm", container)

    def health(self, **more: str) -> subprocess.CompletedProcess[str]:
        """The image's own health check, as a runtime runs it."""
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD-SHELL"
        return self.run("/bin/sh", "-c", *command, **more)


def build(name: str, *options: str) -> Image:
    """scripts/build_image.sh, with this machine's certificates at the same place in the build, and only there."""
    mounted = ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    index = [word for variable in ("PIP_INDEX_URL",) if variable in os.environ
             for word in ("--build-arg", f"{variable}={os.environ[variable]}")]  # fmt: skip
    command: Sequence[str] = [
        str(REPO / "scripts/build_image.sh"), "--tool", "buildah", "--tag", name, "--no-runtime",
        *options, "--", "--pull-never", *mounted, *index,
    ]  # fmt: skip
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return Image(name, done.stdout + done.stderr)
