"""Which files of a release a lock has the digests of, by their names: those that its platform and its Python can install.

An index has a release's wheels for every platform and every Python, some twenty a package; pip takes one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from patchctl.manifest.requirement_types import Platform

# glibc 2.28: openEuler 24.03 and Ubuntu 22.04, which the images of CANN are made of, have newer ones. Up to 2.40, the newest that uv
# knows, a machine's own glibc decides which of the wheels pip prefers.
OLDEST_GLIBC, NEWEST_GLIBC = 28, 40
_PACKAGE = re.compile(r'(?m)^\[\[packages\]\]\nname = "([^"]+)"')
_FILE = re.compile(r'\b(?:url|path) = "([^"]+)"[^{}\n]*\bhashes = \{ sha256 = "([0-9a-f]{64})"')


def fitting(files: Iterable[str], platform: Platform, python: str) -> list[str]:
    """The wheels that Linux on the platform can install, whatever its glibc; the source distribution as well where some machine
    has to build it, since none of them fits the oldest glibc."""
    wheels, sources, everywhere = list[str](), list[str](), False
    for file in files:
        if not file.endswith(".whl"):
            sources.append(file)
            continue
        try:
            tags = parse_wheel_filename(file)[3]
        except InvalidWheelFilename:
            wheels.append(file)  # what pip makes of it is not for us to say
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
    # Without its name packaging asks the Python that runs for how it was built.
    own = cpython_tags(version, [name], platforms)
    return frozenset([*own, *compatible_tags(version, name, platforms)])


def listed(text: str) -> dict[str, dict[str, str]]:
    """The digests of each package's files by their names, from a pylock.toml of uv, which has a file a line; Python 3.10 reads no
    TOML. Files without a digest are left out."""
    starts = [*_PACKAGE.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {
        canonicalize_name(match[1]): {
            unquote(place).rpartition("/")[2]: f"sha256:{digest}"
            for place, digest in _FILE.findall(text[match.start() : end])
        }
        for match, end in zip(starts, ends, strict=True)
    }
