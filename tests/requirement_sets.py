"""A small set of requirements in a distribution of `distribution.make_distribution`, for tests that need no network.

The lock is written with the library's own renderer, so that `verify` takes it; its digests are of nothing.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path

from distribution import Made, write_files

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS
from patchctl.requirements.declared import FILE, Declared, render
from patchctl.requirements.lockfile import Locked, RequirementsLock, inputs_of, lock_path
from patchctl.requirements.lockfile import render as render_lock
from patchctl.requirements.sets import read_set

NAME = "small"
SET = f"""schema: 1
name: {NAME}
summary: What the greeter runs on.
python: "3.11"
exclude_newer: "2024-01-01T00:00:00Z"
declared:
  - {{upstream: greeter, file: needs.txt}}
  - {{upstream: clock, file: needs.txt, optional: nobody reads the clock}}
overrides:
  - {{requirement: "packaging>=23", reason: "The clock wants an older one, and is installed first."}}
left_out:
  - {{packages: triton, reason: it is for GPUs, breaks: it hides triton-ascend}}
"""
NEEDS = {"greeter": "packaging>=23\niniconfig\n", "clock": "packaging<23 # older\nsix\n"}
VERSIONS = {"packaging": "23.2", "iniconfig": "2.0.0", "six": "1.16.0"}
STACKS = {"greeter": "v1", "clock": "v2"}


def with_set(made: Made, *, lock: bool = True) -> Made:
    """Adds the set to a distribution whose upstreams have NEEDS as needs.txt; without `lock` nothing that is generated."""
    write_files(made.root, {f"manifests/requirements/{NAME}/set.yaml": SET})
    for profile in ("full", "plain"):
        made.edit(f"manifests/profiles/{profile}.yaml", "stacks:", f"requirements: {NAME}\nstacks:")
    if lock:
        write_locks(made.root)
    return made


def write_locks(root: Path, versions: Mapping[str, str] = VERSIONS) -> None:
    """declared.txt and the locks, as `lock --requirements` would write them with these versions."""
    from patchctl.git.objects import object_id

    dist = Distribution.load(root)
    named = read_set(dist, NAME)
    declared = [
        Declared(name, STACKS[name], "needs.txt", object_id("blob", text.encode()), lines(text))
        for name, text in NEEDS.items()
    ]
    (named.folder / FILE).write_text(render(declared))
    inputs = inputs_of(dist, named)
    for platform in PLATFORMS:
        packages = {n: Locked(n, v, (f"sha256:{'0' * 64}",), ("greeter/needs.txt",)) for n, v in versions.items()}
        for elsewhere, text in render_lock(
            RequirementsLock(platform, packages, inputs.digest(platform), "uv", inputs.value.exclude_newer), named
        ).items():
            lock_path(named, platform, elsewhere=elsewhere).write_text(text)


def lines(text: str) -> tuple[str, ...]:
    """The requirements in a text of NEEDS."""
    return tuple(line.partition(" #")[0] for line in text.splitlines())


def install_metadata(site: Path, **versions: str) -> None:
    """Distributions of these versions in a folder of packages: their metadata, which is all that anybody asks for."""
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def site_of(environment: Path) -> Path:
    """The folder of packages of a virtual environment."""
    return environment / Path(sysconfig.get_path("purelib")).relative_to(Path(sysconfig.get_path("data")))
