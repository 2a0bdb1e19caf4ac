"""What a requirement set holds, as plain data; `types` says how such dataclasses are read.

A set is no part of `Content`: apply, verify of a workspace and revert need none. `patchctl.requirements` reads it.
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
    str, Pattern(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(-\*)?", "a distribution's name, or a family of them: nvidia-*")
]
Instant = Annotated[
    str, Pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a time: 2026-03-01T00:00:00Z")
]


@dataclass(frozen=True)
class DeclaredFile:
    """A file of an upstream's tree in which it says what it needs: lines for pip, or a setup.py with a plain list."""

    upstream: Annotated[Name, Doc("The upstream in whose tree it lies.")]
    file: Annotated[
        RelativePath, Doc("Where: lines as pip reads them, or a setup.py whose install_requires is a list.")
    ]
    optional: Annotated[Text | None, Doc("Why training runs where some of it is missing; null where it does not.")] = (
        None
    )


@dataclass(frozen=True)
class Override:
    """What holds of a package whatever the trees declare of it."""

    requirement: Annotated[PackageRequirement, Doc("The package with its version or limits.")]
    reason: Annotated[Text, Doc("Who contradicts whom, and why this one holds.")]


@dataclass(frozen=True)
class LeftOut:
    """Packages that somebody declares and that are not installed."""

    packages: Annotated[list[Packages], OneOrMore(), Doc("Their names; nvidia-* stands for all that begin so.")]
    reason: Annotated[Text, Doc("Who brings them, and why they are of no use here.")]
    breaks: Annotated[Text | None, Doc("What goes wrong where one is there all the same; null for nothing.")] = None


@dataclass(frozen=True)
class Elsewhere:
    """Packages of which a platform needs another build than the package index has, or a version that it lacks: no digest of it
    is in the lock. Either `local` or `version` says which."""

    packages: Annotated[list[Distributed], OneOrMore(), Doc("Their names.")]
    platform: Annotated[Platform, Doc("Where.")]
    index: Annotated[Address, Doc("The index that has the build.")]
    reason: Annotated[Text, Doc("Why the package index's own build does not do.")]
    local: Annotated[Name | None, Doc("The build's local version: cpu in 2.9.0+cpu.")] = None
    version: Annotated[
        Version | None,
        Doc("The version, where the package index has none for this Python: what it needs is not resolved."),
    ] = None


@dataclass(frozen=True)
class RequirementSet:
    """manifests/requirements/NAME/set.yaml: how one resolved lock a platform follows from trees, profiles and recipes."""

    schema: FormatVersion
    name: Annotated[Name, Doc("The set's name, as this file's folder.")]
    summary: Annotated[Text, Doc("What it is for, in a line.")]
    python: Annotated[Version, Doc("The Python that the lock is for: 3.11.")]
    exclude_newer: Annotated[Instant, Doc("Nothing that was published later is looked at, so that the lock stays.")]
    declared: Annotated[list[DeclaredFile], Doc("The files in which the trees say what they need.")]
    overrides: Annotated[list[Override], Doc("What holds where trees contradict each other, or are wrong.")] = field(
        default_factory=list
    )
    left_out: Annotated[list[LeftOut], Doc("What somebody declares and is not installed.")] = field(
        default_factory=list
    )
    elsewhere: Annotated[list[Elsewhere], Doc("What comes from another index, without a digest.")] = field(
        default_factory=list
    )
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None
