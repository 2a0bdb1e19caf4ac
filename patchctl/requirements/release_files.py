"""Selects, by name, the files of a release whose digests a lock needs: those its platform and Python can install.

An index has wheels for every platform and Python, about twenty per release; pip installs one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from patchctl.manifest.requirement_types import Platform

# glibc 2.28: openEuler 24.03 and Ubuntu 22.04, the bases of CANN's images, have newer ones. Up to 2.40, the newest
# that uv knows, a machine's own glibc decides which wheel pip prefers.
OLDEST_GLIBC, NEWEST_GLIBC = 28, 40
_PACKAGE = re.compile(r'(?m)^\[\[packages\]\]\nname = "([^"]+)"')
_FILE = re.compile(r'\b(?:url|path) = "([^"]+)"[^{}\n]*\bhashes = \{ sha256 = "([0-9a-f]{64})"')


def fitting(files: Iterable[str], platform: Platform, python: str) -> list[str]:
    """Return the wheels that Linux on the platform can install, whatever its glibc.

    Adds the source distribution if no wheel fits the oldest glibc, so that some machine has to build it.
    """
    wheels, sources, everywhere = list[str](), list[str](), False
    for file in files:
        if not file.endswith(".whl"):
            sources.append(file)
            continue
        try:
            tags = parse_wheel_filename(file)[3]
        except InvalidWheelFilename:
            wheels.append(file)  # kept: pip may still accept it
            continue
        if tags & _tags(platform, python, NEWEST_GLIBC):
            wheels.append(file)
            everywhere |= bool(tags & _tags(platform, python, OLDEST_GLIBC))
    return wheels if everywhere else [*wheels, *sources]


@cache
def _tags(platform: Platform, python: str, glibc: int) -> frozenset[Tag]:
    version = [int(part) for part in python.split(".")[:2]]
    name = "cp" + "".join(map(str, version))
    platforms = [f"manylinux_2_{minor}_{platform}" for minor in range(glibc, 4, -1)]
    platforms += [f"{older}_{platform}" for older in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    # Without a name, packaging would ask how the running Python was built.
    own = cpython_tags(version, [name], platforms)
    return frozenset([*own, *compatible_tags(version, name, platforms)])


def listed(text: str) -> dict[str, dict[str, str]]:
    """Return each package's digests by file name, from uv's pylock.toml, which has one file per line.

    By regular expression, since Python 3.10 has no TOML reader. Files without a digest are left out.
    """
    starts = [*_PACKAGE.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {
        canonicalize_name(match[1]): {
            unquote(place).rpartition("/")[2]: f"sha256:{digest}"
            for place, digest in _FILE.findall(text[match.start() : end])
        }
        for match, end in zip(starts, ends, strict=True)
    }
