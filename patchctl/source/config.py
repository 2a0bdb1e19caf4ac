"""The user's own configuration: where this machine's mirrors and its cache are.

# ~/.config/patchctl/config.yaml
cache: /scratch/patchctl
mirrors:
  verl: [https://git.example.com/mirrors/verl.git, /srv/git/verl.git]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import BadManifest, WrongUse
from patchctl.manifest.types import FORBID_UNKNOWN, Name

if TYPE_CHECKING:
    from patchctl.manifest.load import Positions


@dataclass(frozen=True)
class UserConfig:
    """`mirrors` maps an upstream to addresses or absolute paths, tried before the manifest's remotes."""

    mirrors: dict[Name, list[str]] = field(default_factory=dict)
    cache: str | None = None
    __pydantic_config__ = FORBID_UNKNOWN


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """$PATCHCTL_CONFIG, else $XDG_CONFIG_HOME/patchctl/config.yaml, else ~/.config/patchctl/config.yaml."""
    named = environment.get("PATCHCTL_CONFIG")
    if named:
        return Path(named)
    shared = environment.get("XDG_CONFIG_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".config") / "patchctl" / "config.yaml"


def read_user_config(environment: Mapping[str, str] = os.environ) -> UserConfig:
    """The configuration of this user; an empty one when there is no file. Raises BadManifest with file and line.

    A file that PATCHCTL_CONFIG names must be there.
    """
    path = config_path(environment)
    if not path.exists():
        if environment.get("PATCHCTL_CONFIG"):
            raise BadManifest("PATCHCTL_CONFIG names a file that is not there", where=str(path))
        return UserConfig()
    from patchctl.manifest.load import read

    loaded = read(path, UserConfig)
    _check(loaded.value, loaded.positions)
    config = loaded.value
    return replace(config, cache=os.path.expanduser(config.cache)) if config.cache else config


def _check(config: UserConfig, positions: Positions) -> None:
    from patchctl.manifest.problems import InvalidManifest
    from patchctl.source.places import parse_place

    problems = []
    for name, addresses in config.mirrors.items():
        for number, address in enumerate(addresses):
            try:
                place = parse_place(address)
                relative = place.local is not None and not address.startswith(("/", "~", "file:"))
                fault = "a relative path; expected an absolute one" if relative else None
            except WrongUse as error:
                fault = error.what
            if fault:
                problems.append(positions.problem(("mirrors", name, number), fault))
    if config.cache is not None and not os.path.isabs(os.path.expanduser(config.cache)):
        problems.append(positions.problem(("cache",), "a relative path; expected an absolute one"))
    if problems:
        raise InvalidManifest(problems)
