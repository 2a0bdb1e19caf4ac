"""The payload sent to every node: patchctl's modules and the distribution, in one archive.

A node needs only Python and git: manifests are sent validated (manifest.cache), so that yaml is not imported, and
verify, status and apply from git, a cache or a bundle use only the standard library. The same distribution and
patchctl give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, PROPOSED, RECORD, TESTS

PACKAGE = Path(__file__).resolve().parent.parent
CODE, DISTRIBUTION, CACHE = "code", "distribution", "cache"
# Only for `identify` and editors, and features' tests and records.
_NOT_NEEDED = re.compile(
    rf"manifests/(trees|schema)/|patches/[^/]+/[^/]+/[^/]+/({TESTS}/|{MUTANTS}/|{PROPOSED}/|{RECORD}$)"
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Payload:
    """The archive, and the digest of the distribution in it."""

    data: bytes
    distribution_digest: str


def make_payload(dist: Distribution) -> Payload:
    """Build the payload, reading each file once. Raises InvalidManifest if the manifests became invalid."""
    members = {f"{CODE}/patchctl/{p.relative_to(PACKAGE).as_posix()}": p for p in _sources()}
    members |= {f"{DISTRIBUTION}/{name}": path for name, path in distribution_files(dist.root)}
    with tempfile.TemporaryDirectory(prefix="patchctl-payload-") as name:
        cache = Path(name)
        Distribution.load(dist.root, cache)
        members |= {f"{CACHE}/{p.relative_to(cache).as_posix()}": p for p in cache.rglob("*") if p.is_file()}
        return Payload(_archive(members), distribution_digest(dist.root))


def distribution_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that determine trees, by path below the root: manifests, locks, patches, carried files."""
    for top in ("manifests", "patches"):
        for path in sorted((root / top).rglob("*")):
            name = path.relative_to(root).as_posix()
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts)
            if path.is_file() and not hidden and _NOT_NEEDED.match(name) is None:
                yield name, path


def distribution_digest(root: Path) -> str:
    """Return one sha256 over paths and content of `distribution_files`."""
    lines = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {name}\n" for name, p in distribution_files(root))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sources() -> list[Path]:
    """Return the tool's modules, without the distribution that an installed one has beside them."""
    found = (
        p for p in PACKAGE.rglob("*.py") if not {"__pycache__", "_distribution"} & set(p.relative_to(PACKAGE).parts)
    )
    return sorted(found)


def _archive(members: dict[str, Path]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()
