"""Caches validated manifests, so that the next run on the same bytes reads no YAML.

The key covers the tool's version, this package's own source, and path and bytes of every manifest. An unreadable or
damaged entry is a miss; one that cannot be written is skipped, so that a read-only home works.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from patchctl import __version__
from patchctl.atomic import replace_file
from patchctl.errors import WorkspaceBusy
from patchctl.manifest.files import ManifestFiles
from patchctl.manifest.typeinfo import build
from patchctl.manifest.types import ManifestContent, Practice, Profile, Release, Stack, Upstreams


def find(cache_dir: Path, files: ManifestFiles) -> ManifestContent | None:
    """Return the cached content for exactly these files, or None."""
    try:
        digest, _, body = _entry(cache_dir, files).read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        return _content(json.loads(body))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def keep(cache_dir: Path, files: ManifestFiles, content: ManifestContent) -> None:
    """Cache `content` for these files. Does nothing if the cache cannot be written."""
    body = json.dumps(_plain(content), separators=(",", ":")).encode()
    data = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    with contextlib.suppress(OSError, WorkspaceBusy):
        replace_file(_entry(cache_dir, files), data)


def _entry(cache_dir: Path, files: ManifestFiles) -> Path:
    return cache_dir / "manifests" / f"{_key(files)}.json"


def _key(files: ManifestFiles) -> str:
    total = hashlib.sha256()

    def add(name: str, data: bytes) -> None:
        # Lengths keep two lists of files from hashing to the same bytes.
        total.update(f"{len(name.encode('utf-8', 'surrogateescape'))} {len(data)} ".encode())
        total.update(name.encode("utf-8", "surrogateescape") + data)

    add("version", __version__.encode())
    # A development checkout changes what it accepts without changing its version.
    for source in sorted(Path(__file__).parent.glob("*.py")):
        add(source.name, source.read_bytes())
    for name, data in files.content.items():
        add(name, data)
    return total.hexdigest()


def _plain(content: ManifestContent) -> dict[str, Any]:
    return {
        "upstreams": asdict(content.upstreams),
        "stacks": [asdict(s) for s in content.stacks.values()],
        "profiles": [asdict(p) for p in content.profiles.values()],
        "practice": asdict(content.practice) if content.practice else None,
        "releases": [asdict(s) for s in content.releases.values()],
    }


def _content(data: dict[str, Any]) -> ManifestContent:
    stacks: list[Stack] = [build(Stack, s) for s in data["stacks"]]
    profiles: list[Profile] = [build(Profile, p) for p in data["profiles"]]
    upstreams: Upstreams = build(Upstreams, data["upstreams"])
    practice: Practice | None = build(Practice, data["practice"]) if data["practice"] else None
    releases: list[Release] = [build(Release, s) for s in data["releases"]]
    known = {(s.upstream, s.name): s for s in stacks}
    return ManifestContent(upstreams, known, {p.name: p for p in profiles}, practice, {s.name: s for s in releases})
