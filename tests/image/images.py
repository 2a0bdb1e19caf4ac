"""What the tests of the images share: buildah, a built image, and the build by scripts/build_image.sh."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pins import profile_on, stack_of

from patchctl.manifest.types import Stack

REPO = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PROFILE = "qwen3-235b"
# The release that the images are of, named as patchctl itself takes it: without one no build is told of any.
RELEASE = os.environ.get("PATCHCTL_RELEASE") or None
RELEASES_PROFILE = profile_on(RELEASE, PROFILE)
ENVIRONMENT = os.environ | {"BUILDAH_ISOLATION": "chroot"}


def stack(upstream: str) -> Stack:
    """The stack that the images have of an upstream."""
    return stack_of(upstream, PROFILE, RELEASE)


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
    def labels(self) -> dict[str, str]:
        return dict(self.config["Labels"])

    @property
    def history(self) -> list[str]:
        """The command that made each layer."""
        found = json.loads(buildah("inspect", "--type", "image", self.name).stdout)["OCIv1"]["history"]
        return [str(one.get("created_by")) for one in found]

    @property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(buildah("inspect", "--type", "image", self.name).stdout)["Docker"]["config"])

    def run(self, *command: str, user: str = "", changed: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command in a container of its own; `changed` is a shell command that is run in it before, as root.

        What it prints goes into files: under load buildah ended before it had passed on all that came through its pipe.
        """
        container = buildah("from", "--pull-never", self.name).stdout.strip()
        try:
            if changed:
                buildah("run", container, "--", "/bin/sh", "-c", changed)
            with TemporaryDirectory() as folder:
                os.chmod(folder, 0o777)
                options = ["--volume", f"{folder}:{folder}", *(["--user", user] if user else [])]
                within = ["/bin/sh", "-c", 'exec "$@" > "$0/stdout" 2> "$0/stderr"', folder, *command]
                done = buildah("run", *options, container, "--", *within, check=False)
                files = [Path(folder) / name for name in ("stdout", "stderr")]
                out, err = (file.read_text() if file.exists() else "" for file in files)
            return subprocess.CompletedProcess(done.args, done.returncode, out, err + done.stderr)
        finally:
            buildah("rm", container)

    def health(self, **more: str) -> subprocess.CompletedProcess[str]:
        """The image's own health check, as a runtime runs it."""
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD-SHELL"
        return self.run("/bin/sh", "-c", *command, **more)


def index_arguments() -> list[str]:
    """The package index that this machine was told of, as arguments of a build."""
    told = [f"{name}={os.environ[name]}" for name in ("PIP_INDEX_URL",) if name in os.environ]
    return [word for argument in told for word in ("--build-arg", argument)]


def digest(image: str) -> str:
    """The digest of an image's manifest."""
    return buildah("inspect", "--type", "image", "--format", "{{.FromImageDigest}}", image).stdout.strip()


def build(name: str, *options: str, tool: str = "buildah", release: str | None = RELEASE) -> Image:
    """scripts/build_image.sh, with this machine's certificates at the same place in the build, and only there."""
    if release:
        options = ("--release", release, *options)
    mounted = ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    command = [str(REPO / "scripts/build_image.sh"), "--tool", tool, "--tag", name, *options]
    command += ["--", "--pull-never", *mounted, *index_arguments()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return Image(name, done.stdout + done.stderr)
