"""Which manifest files a distribution has, and their bytes; and the cache of validated manifests, so that the next run on the same
bytes reads no YAML.

The key covers the tool's version, this package's own source, and path and bytes of every manifest. An unreadable or
damaged entry is a miss; one that cannot be written is skipped, so that a read-only home works.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from patchctl import __version__
from patchctl.atomic import folder_lock, replace_file
from patchctl.errors import WorkspaceBusy, WrongUse
from patchctl.extension import registered
from patchctl.manifest.diagnostics import InvalidManifest, Problem, quoted, shown
from patchctl.manifest.series import MUTANTS, PROPOSED, RECORD, TESTS
from patchctl.manifest.typeinfo import parse
from patchctl.manifest.types import ManifestContent, Practice, Profile, Release, Stack, Upstreams
from patchctl.manifest.yamltree import MAX_BYTES, plain


@dataclass(frozen=True)
class _Kept:
    upstreams: Upstreams
    practice: Practice | None
    stacks: list[Stack]
    profiles: list[Profile]
    releases: list[Release]


def validated_before(cache_dir: Path, files: ManifestFiles) -> ManifestContent | None:
    """Return the cached content for exactly these files, or None."""
    try:
        digest, _, body = _entry(cache_dir, files).read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        kept = parse(_Kept, body)
    except (OSError, ValueError):
        return None
    stacks = {(s.upstream, s.name): s for s in kept.stacks}
    profiles, releases = {p.name: p for p in kept.profiles}, {r.name: r for r in kept.releases}
    return ManifestContent(kept.upstreams, stacks, profiles, kept.practice, releases)


def keep_validated(cache_dir: Path, files: ManifestFiles, content: ManifestContent) -> None:
    """Cache `content` for these files. Does nothing if the cache cannot be written."""
    named = ([*found.values()] for found in (content.stacks, content.profiles, content.releases))
    kept = _Kept(content.upstreams, content.practice, *named)
    body = json.dumps(asdict(kept), separators=(",", ":")).encode()
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


# Read elsewhere: generated files, and the requirement sets (patchctl.requirements). Extensions declare what they
# read.
_READ_BY_OTHERS = frozenset(["locks", "trees", "keys", "schema", "requirements"])
PRACTICE = "practice.yaml"  # optional


@dataclass(frozen=True)
class ManifestFiles:
    """Manifest bytes by path below the root ('/', sorted).

    Each file is read once, so that the cache key covers exactly what is parsed.
    """

    content: dict[str, bytes]
    problems: tuple[Problem, ...]

    @classmethod
    def scan(cls, root: Path) -> ManifestFiles:
        """List and read all manifests. Unexpected or unreadable files become problems."""
        content: dict[str, bytes] = {}
        problems: list[Problem] = []
        for relative, fault in _listing(root):
            try:
                if fault:
                    raise InvalidManifest([Problem(shown(root / relative), 1, 1, "", fault)])
                content[relative] = file_bytes(root / relative)
            except InvalidManifest as error:
                problems.extend(error.problems)
        return cls(content, tuple(problems))


def _listing(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every manifest's path, or a path and why it is not one."""
    yield "manifests/upstreams.yaml", ""
    known = _READ_BY_OTHERS.union(
        {"upstreams.yaml", "stacks", "releases", "profiles"}, *(e.manifests for e in registered())
    )
    for name, is_folder in _entries(root, "manifests"):
        if name == PRACTICE and not is_folder:
            yield f"manifests/{name}", ""
        elif name not in known:
            yield (
                f"manifests/{name}",
                _stray(name, f"upstreams.yaml, {PRACTICE}, stacks/, releases/ and profiles/", is_folder),
            )
    for upstream, is_folder in _entries(root, "manifests/stacks"):
        if not is_folder:
            yield f"manifests/stacks/{upstream}", _stray(upstream, "one folder per upstream", is_folder)
            continue
        yield from _yaml_files(root, f"manifests/stacks/{upstream}")
    yield from _yaml_files(root, "manifests/releases")
    yield from _yaml_files(root, "manifests/profiles")


def _yaml_files(root: Path, folder: str) -> Iterator[tuple[str, str]]:
    for name, is_folder in _entries(root, folder):
        good = name.endswith(".yaml") and not is_folder
        yield f"{folder}/{name}", "" if good else _stray(name, "files NAME.yaml", is_folder)


def _stray(name: str, expected: str, is_folder: bool) -> str:
    kind = "folder" if is_folder else "file"
    return f"unexpected {kind} {quoted(name)}; expected {expected} here"


def _entries(root: Path, folder: str) -> list[tuple[str, bool]]:
    """Return sorted names and whether each is a folder, without hidden files and editor backups."""
    try:
        with os.scandir(root / folder) as found:
            entries = [(e.name, e.is_dir()) for e in found]
    except FileNotFoundError:
        return []
    except OSError as error:
        place = shown(root / folder)
        raise InvalidManifest([Problem(place, 1, 1, "", f"cannot be listed: {error.strerror}")]) from None
    return sorted(e for e in entries if not e[0].startswith(".") and not e[0].endswith("~"))


def file_bytes(path: Path) -> bytes:
    """Read at most one byte more than a manifest may have. Raises InvalidManifest.

    Refuses anything but a regular file before opening it: a FIFO would block.
    """
    name = shown(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidManifest([Problem(name, 1, 1, "", "expected a regular file")])
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidManifest([Problem(name, 1, 1, "", f"cannot be read: {error.strerror}")]) from None


def rewrite_patches(text: str, names: Sequence[str]) -> str:
    """Return a stack's manifest with `names` as its `patches`; comments stay with their item, whatever its number.

    Raises WrongUse unless it is a block list.
    """
    lines = text.split("\n")
    found = _block(lines, "patches")
    if found is None:
        raise WrongUse("the manifest has no block list `patches:`", hint="write it with one `- item` per line")
    above: list[str] = []
    comments: dict[str, tuple[list[str], str]] = {}
    for line in lines[found.start + 1 : found.stop]:
        item, behind = _parted(line)
        if item:
            comments[_unnumbered(item.strip("- \t\"'"))], above = (above, behind), []
        elif behind:
            above.append(line)
    block = [("patches:" if names else "patches: []") + _parted(lines[found.start])[1]]
    for name in names:
        before, behind = comments.get(_unnumbered(name), ([], ""))
        block += [*before, f"  - {name}{behind}"]
    block += above
    return "\n".join([*lines[: found.start], *block, *lines[found.stop :]])


def _parted(line: str) -> tuple[str, str]:
    """A line, and the comment behind it with the blanks before it."""
    item = line.partition("#")[0].rstrip()
    return item, line[len(item) :].rstrip()


def _unnumbered(name: str) -> str:
    return name.lstrip("0123456789-")


def rewrite_texts(text: str, key: str, texts: Mapping[str, str]) -> str:
    """Return `text` with `texts` as the top-level mapping `key`, in place or before `generated:`; removed if empty."""
    lines = text.rstrip("\n").split("\n")
    last = next((i for i, line in enumerate(lines) if line.startswith("generated:")), len(lines))
    found = _block(lines, key) or range(last, last)
    own = [f"  {plain(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in texts.items()]
    return "\n".join([*lines[: found.start], *([f"{key}:", *own] if own else []), *lines[found.stop :], ""])


def _block(lines: Sequence[str], key: str) -> range | None:
    """Return the lines of a top-level key and its value."""
    heads = (f"{key}:", f"{key}: []", f"{key}: {{}}")
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in heads), None)
    if start is None:
        return None
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith((" ", "-", "#"))):
        end += 1
    while not lines[end - 1].strip() or lines[end - 1].startswith("#"):  # what stands before the next key belongs to it
        end -= 1
    return range(start, end)


def exclusive_writer(root: Path) -> AbstractContextManager[None]:
    """Hold the distribution for the block. Raises WorkspaceBusy if another run holds it."""
    return folder_lock(root / "manifests", "another run is writing patches of this distribution")


# Only for `identify` and editors, and features' tests and records.
_NOT_NEEDED = re.compile(
    rf"manifests/(trees|schema)/|patches/[^/]+/[^/]+/[^/]+/({TESTS}/|{MUTANTS}/|{PROPOSED}/|{RECORD}$)"
)


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
