"""The types of a requirement set; `types` explains the annotations.

A set is not part of `ManifestContent`, since apply, revert and verify of a workspace do not need it. `patchctl.requirements`
reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from patchctl.doc import Doc
from patchctl.manifest.types import (
    Address,
    Distributed,
    FormatVersion,
    Name,
    OneOrMore,
    PackageRequirement,
    Pattern,
    RelativePath,
    Text,
    Version,
)

Platform = Literal["x86_64", "aarch64"]
PLATFORMS: tuple[Platform, ...] = ("x86_64", "aarch64")
Packages = Annotated[
    str, Pattern(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(-\*)?", "a distribution name, or a family such as nvidia-*")
]
Instant = Annotated[
    str, Pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a UTC time such as 2026-03-01T00:00:00Z")
]


@dataclass(frozen=True)
class DeclaredFile:
    """A file in an upstream's tree that declares its requirements: pip lines, a setup.py with a plain list, or a pyproject.toml."""

    upstream: Annotated[Name, Doc("The upstream whose tree has the file.")]
    file: Annotated[
        RelativePath,
        Doc("Its path: pip requirement lines, a setup.py whose install_requires is a list, or a pyproject.toml."),
    ]
    optional: Annotated[Text | None, Doc("Why training works if some of it is missing; null if it does not.")] = None
    extras: Annotated[list[Name], Doc("Of a pyproject.toml: the extras that count beside its dependencies.")] = field(
        default_factory=list
    )
    limits: Annotated[
        Text | None,
        Doc(
            "Why it installs nothing, and only limits the versions of what is locked; null if what it names is installed."
        ),
    ] = None

    @property
    def name(self) -> str:
        """The file with its extras, as pip writes them."""
        return f"{self.file}[{','.join(self.extras)}]" if self.extras else self.file


@dataclass(frozen=True)
class Override:
    """A requirement that replaces whatever the trees declare for a package."""

    requirement: Annotated[PackageRequirement, Doc("The package with its version or limits.")]
    reason: Annotated[Text, Doc("Which trees contradict each other, and why this one wins.")]


@dataclass(frozen=True)
class LeftOutPackages:
    """Packages that a tree declares but that are not installed."""

    packages: Annotated[
        list[Packages], OneOrMore(), Doc("Package names; nvidia-* matches every name with this prefix.")
    ]
    reason: Annotated[Text, Doc("What requires them, and why they are not needed here.")]
    breaks: Annotated[Text | None, Doc("What breaks if one is installed anyway; null if nothing does.")] = None


@dataclass(frozen=True)
class Elsewhere:
    """Packages from another index: a different build, or a version that the package index lacks.

    They have no digest in the lock. Exactly one of `local` and `version` is set.
    """

    packages: Annotated[list[Distributed], OneOrMore(), Doc("Package names.")]
    platform: Annotated[Platform, Doc("The platform that needs them.")]
    index: Annotated[Address, Doc("The index that provides the build.")]
    reason: Annotated[Text, Doc("Why the package index's own build does not work.")]
    local: Annotated[Name | None, Doc("The build's local version: cpu in 2.9.0+cpu.")] = None
    version: Annotated[
        Version | None,
        Doc("The version, if the package index has none for this Python; its dependencies are not resolved."),
    ] = None


@dataclass(frozen=True)
class RequirementSet:
    """manifests/requirements/NAME/set.yaml: how trees, profiles and recipes resolve to one lock per platform."""

    schema: FormatVersion
    name: Annotated[Name, Doc("The set's name, equal to this file's folder.")]
    summary: Annotated[Text, Doc("What it is for, in one line.")]
    python: Annotated[Version, Doc("The Python version that the lock is for, such as 3.11.")]
    exclude_newer: Annotated[Instant, Doc("Ignore anything published later, so that the lock is reproducible.")]
    declared: Annotated[list[DeclaredFile], Doc("The files in which the trees declare their requirements.")]
    overrides: Annotated[
        list[Override], Doc("Requirements that win where trees contradict each other or are wrong.")
    ] = field(default_factory=list)
    left_out: Annotated[list[LeftOutPackages], Doc("Declared packages that are not installed.")] = field(
        default_factory=list
    )
    elsewhere: Annotated[list[Elsewhere], Doc("Packages from another index, without a digest.")] = field(
        default_factory=list
    )
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None
