"""The user's configuration of this machine: mirrors, cache, signatures, limits.

# ~/.config/patchctl/config.yaml
cache: /scratch/patchctl
mirrors:
  verl: [https://git.example.com/mirrors/verl.git, /srv/git/verl.git]
bundles:
  signatures: require
  allowed_signers: ~/.config/patchctl/allowed_signers
archives: {unpacked_mib: 4096}
images: {unpacked_mib: 16384}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from patchctl.errors import BadManifest, WrongUse
from patchctl.manifest.default_roots import user_folder
from patchctl.manifest.types import Name, Written
from patchctl.source.types import ArchiveLimits, ImageLimits

if TYPE_CHECKING:
    from patchctl.manifest.load import Positions


@dataclass(frozen=True)
class BundlePolicy:
    """Whether bundles must be signed, by keys in `allowed_signers` that are not in `revoked_keys` (paths).

    Set by the user only: no distribution, bundle or repository can change it.
    """

    signatures: Annotated[Literal["off", "warn", "require"], Written()] = "off"  # a plain off is a boolean in YAML
    allowed_signers: str | None = None
    revoked_keys: str | None = None


@dataclass(frozen=True)
class UserConfig:
    """The configuration file.

    `mirrors` maps an upstream to addresses or absolute paths, tried before the manifest's remotes; `archives` limits
    source distributions, and `images` what `image verify` reads.
    """

    mirrors: dict[Name, list[str]] = field(default_factory=dict)
    cache: str | None = None
    bundles: BundlePolicy = field(default_factory=BundlePolicy)
    archives: ArchiveLimits = field(default_factory=ArchiveLimits)
    images: ImageLimits = field(default_factory=ImageLimits)


def config_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return $PATCHCTL_CONFIG, else patchctl/config.yaml in $XDG_CONFIG_HOME or ~/.config; None for a user without a home."""
    named = environment.get("PATCHCTL_CONFIG")
    if named:
        return Path(named)
    folder = user_folder("XDG_CONFIG_HOME", "~/.config", environment)
    return folder / "config.yaml" if folder else None


def read_user_config(environment: Mapping[str, str] = os.environ) -> UserConfig:
    """Return the user's configuration, empty without a file. Raises BadManifest with file and line.

    A file named by PATCHCTL_CONFIG must exist.
    """
    path = config_path(environment)
    if path is None:
        return UserConfig()
    if not path.exists():
        if environment.get("PATCHCTL_CONFIG"):
            raise BadManifest("PATCHCTL_CONFIG names a file that does not exist", where=str(path))
        _refuse_out_of_reach(path)
        return UserConfig()
    from patchctl.manifest.load import read

    loaded = read(path, UserConfig)
    _check(loaded.value, loaded.positions)
    config, bundles = loaded.value, loaded.value.bundles
    bundles = replace(bundles, allowed_signers=_full(bundles.allowed_signers), revoked_keys=_full(bundles.revoked_keys))
    return replace(config, cache=_full(config.cache), bundles=bundles)


def _full(path: str | None) -> str | None:
    return os.path.expanduser(path) if path else None


def archive_limits() -> ArchiveLimits:
    """Return the user's archive limits, for callers without the run's options."""
    return read_user_config().archives


def _refuse_out_of_reach(path: Path) -> None:
    """A link to nothing is no missing file: what it is to name may require signatures."""
    for one in (path, *path.parents):
        if os.path.lexists(one) and not one.is_dir():
            what = "the configuration cannot be reached: this is a link to nothing, or a file in place of a folder"
            raise BadManifest(what, where=str(one), hint="mend it, or remove it to go without a configuration")


def _check(config: UserConfig, positions: Positions) -> None:
    from patchctl.manifest.diagnostics import InvalidManifest
    from patchctl.source.places import parse_place

    problems = []
    for name, addresses in config.mirrors.items():
        for number, address in enumerate(addresses):
            try:
                place = parse_place(address)
                relative = place.local is not None and not address.startswith(("/", "~", "file:"))
                fault = "expected an absolute path" if relative else None
            except WrongUse as error:
                fault = error.what
            if fault:
                problems.append(positions.problem(("mirrors", name, number), fault))
    bundles = config.bundles
    paths = {
        ("cache",): config.cache,
        ("bundles", "allowed_signers"): bundles.allowed_signers,
        ("bundles", "revoked_keys"): bundles.revoked_keys,
    }
    for key, path in paths.items():
        if path is not None and not os.path.isabs(os.path.expanduser(path)):
            problems.append(positions.problem(key, "expected an absolute path"))
    if bundles.signatures != "off" and not bundles.allowed_signers:
        what = f"{bundles.signatures} needs allowed_signers, the file of trusted signers"
        problems.append(positions.problem(("bundles", "signatures"), what))
    for section, limits in (("archives", config.archives), ("images", config.images)):
        for name, limit in asdict(limits).items():
            if limit < 1:
                problems.append(positions.problem((section, name), "a limit must be a positive integer"))
    if problems:
        raise InvalidManifest(problems)
