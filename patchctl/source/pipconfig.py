"""The package index configuration of this machine, asked from pip itself.

A machine behind a company index, or offline with a folder of files, is already configured for pip. pip merges its
files (system, user, site, PIP_CONFIG_FILE) with PIP_* variables; `pip config list` prints the result.
"""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PYPI = "https://pypi.org/simple"
_PIP_SECONDS = 60.0
# Later sections win, as in `pip download`; `install` is where most people set it.
_SECTIONS = ("global", "install", "download", ":env:")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True)
class IndexConfig:
    """Where packages come from. `find_links` are folders, pages or archives; `timeout` is for reads, in seconds."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    timeout: float = 15.0


def machine_config() -> IndexConfig:
    """Return `read_config` of this process's environment, cached: pip takes a third of a second to answer."""
    return _config_of(frozenset(os.environ.items()))


@functools.lru_cache(maxsize=1)
def _config_of(environment: frozenset[tuple[str, str]]) -> IndexConfig:
    return read_config(dict(environment))


def read_config(environment: Mapping[str, str]) -> IndexConfig:
    """Return pip's configuration, or only the PIP_* variables if pip cannot be run."""
    settings = _from_pip(environment)
    return from_settings(dict(_from_variables(environment) if settings is None else settings), environment)


def from_settings(settings: Mapping[str, str], environment: Mapping[str, str]) -> IndexConfig:
    """Build an IndexConfig from `settings`: pip's long options without dashes, values as in pip's files."""

    def words(name: str) -> tuple[str, ...]:
        return tuple(settings.get(name, "").split())

    main = settings.get("index-url") or settings.get("pypi-url") or PYPI
    indexes = () if settings.get("no-index", "").lower() in _TRUE else (main, *words("extra-index-url"))
    cert = settings.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    return IndexConfig(
        index_urls=tuple(dict.fromkeys(indexes)),
        find_links=tuple(dict.fromkeys(words("find-links"))),
        cert=cert or None,
        client_cert=settings.get("client-cert") or None,
        trusted_hosts=words("trusted-host"),
        proxy=settings.get("proxy") or None,
        timeout=_seconds(settings.get("timeout") or settings.get("default-timeout")),
    )


def _seconds(text: str | None) -> float:
    try:
        return max(1.0, float(text)) if text else 15.0
    except ValueError:
        return 15.0


def _from_pip(environment: Mapping[str, str]) -> list[tuple[str, str]] | None:
    for command in _pips(environment):
        try:
            done = subprocess.run(
                [*command, "config", "list"],
                env={**environment, "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                cwd=os.path.abspath(
                    os.sep
                ),  # `python -m pip` would import a folder named pip from the current directory
                capture_output=True,
                timeout=_PIP_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return _parse(done.stdout.decode("utf-8", "replace"))
    return None


def _pips(environment: Mapping[str, str]) -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    folders = [p for p in environment.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p)]
    for name in ("pip", "pip3"):
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found:
            yield [found]


def _parse(text: str) -> list[tuple[str, str]]:
    """Parse lines section.key='value', quoted as in Python. Sorted so that later ones win."""
    by_section: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
    for line in text.splitlines():
        place, equals, quoted = line.partition("=")
        section, _, key = place.rpartition(".")
        if not equals or section not in by_section:
            continue
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        by_section[section].append((key, str(value)))
    return [pair for section in _SECTIONS for pair in by_section[section] if pair[1].strip()]


def _from_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if name.startswith("PIP_") and value.strip():
            yield name.removeprefix("PIP_").lower().replace("_", "-"), value
