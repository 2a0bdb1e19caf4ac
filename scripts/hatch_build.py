"""A hook of hatchling: the files at the top of the distribution, which `sources` in pyproject.toml cannot move, go into the wheel.

As `force-include` they would be in an editable install, too, as a second folder `patchctl` in site-packages.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The last four are for images, which are built of the tool, too (scripts/build_image.sh).
FILES = ("LICENSE", "NOTICE", "Dockerfile", "Dockerfile.into", "pyproject.toml", "README.md")


class TopFiles(BuildHookInterface):
    """Adds FILES to a wheel that is no editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"] |= {name: f"patchctl/_distribution/{name}" for name in FILES}
