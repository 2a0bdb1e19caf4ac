"""The bundle format: a plain tar archive, fully determined by its content.

    patchctl-bundle/index.json          every other member with size and sha256, and the list of sources
    patchctl-bundle/index.json.sha256   the digest of the index, for `sha256sum -c`
    patchctl-bundle/distribution/...    manifests, locks, patches, carried files, licences
    patchctl-bundle/sources/git/...     an uncompressed pack per base in form git: one commit and its tree
    patchctl-bundle/sources/sdist/...   source distributions as served by the package index

Members are in index order (sorted by name), each header follows from the index, padding is zeros, and two zero blocks
end the file. So the same content gives the same bytes on every machine, whatever its zlib, clock and user, and any
modified byte can be located: in a header, a member, padding or past the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from patchctl.doc import Doc
from patchctl.patch.names import collision_key, why_refused

VERSION = 1
BLOCK = 512
TOP = "patchctl-bundle/"
INDEX = "index.json"
DIGEST = "index.json.sha256"
DISTRIBUTION = "distribution/"
SOURCES = "sources/"
END = bytes(2 * BLOCK)
# Generous for the largest profile we have: 90 MB in 650 members, with an index of 140 kB. Parsed, an index takes
# thirty times its size in memory.
INDEX_LIMIT = 4 << 20
MEMBER_LIMIT = 2 << 30
TOTAL_LIMIT = 16 << 30
COUNT_LIMIT = 20_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


class BadIndex(Exception):
    """An index that we do not accept. `member` is the member's name, if the error is about one."""

    def __init__(self, reason: str, member: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.member = member


class NewerBundle(Exception):
    """The index has a version that this patchctl does not know."""


@dataclass(frozen=True)
class BundleMember:
    """A file of the bundle."""

    name: Annotated[str, Doc("path below the bundle's top folder")]
    size: Annotated[int, Doc("size in bytes")]
    sha256: Annotated[str, Doc("sha256 of the file")]
    executable: bool = False


@dataclass(frozen=True)
class BundledSource:
    """One form of an upstream's pin. Form git has `commit` and `tree`, form sdist `version` and `sha256`."""

    upstream: Annotated[str, Doc("upstream name")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    commit: Annotated[str | None, Doc("pinned commit; null for form `sdist`")]
    version: Annotated[str | None, Doc("version of the source distribution; null for form `git`")]
    member: Annotated[str, Doc("path of the source in the bundle")]
    tree: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Index:
    """The index of a bundle.

    `missing` lists (upstream, form) that were unavailable when it was created. `release` is the profile's release;
    absent for a profile without releases.
    """

    profile: str
    sources: tuple[BundledSource, ...]
    missing: tuple[tuple[str, str], ...]
    members: tuple[BundleMember, ...]
    release: str | None = None

    def source(self, upstream: str, form: str) -> BundledSource | None:
        """Return the source of an upstream in this form, or None."""
        return next((s for s in self.sources if (s.upstream, s.form) == (upstream, form)), None)

    @property
    def size(self) -> int:
        """Total size of the members in bytes."""
        return sum(m.size for m in self.members)


def render_index(index: Index) -> bytes:
    """Return the index member; equal indexes give equal bytes."""
    data = {"bundle": VERSION, **asdict(index)}
    if index.release is None:
        del data["release"]
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("ascii")


def render_digest(index_sha256: str) -> bytes:
    """Return the member with the index's digest."""
    return f"{index_sha256}  {INDEX}\n".encode("ascii")


def parse_index(data: bytes) -> Index:
    """Parse an index strictly. Raises BadIndex, or NewerBundle for an unknown version."""
    try:
        held = json.loads(data.decode("ascii"))
        version = held["bundle"]
        if version != VERSION:
            raise NewerBundle(str(version)[:20])
        index = _index(held)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadIndex(f"cannot be parsed: {type(error).__name__}") from error
    _check_members(index.members)
    _check_sources(index)
    # Duplicate or unknown keys and other whitespace would let two readers see different things. Checked last, since
    # it takes much memory.
    if render_index(index) != data:
        raise BadIndex("not in patchctl's canonical form")
    return index


def _index(held: Mapping[str, Any]) -> Index:
    sources = tuple(BundledSource(**s) for s in held["sources"])
    missing = tuple((u, f) for u, f in held["missing"])
    return Index(
        held["profile"], sources, missing, tuple(BundleMember(**m) for m in held["members"]), held.get("release")
    )


def _check_members(members: Sequence[BundleMember]) -> None:
    if len(members) > COUNT_LIMIT:
        raise BadIndex(f"more than {COUNT_LIMIT} members")
    names = _Names()
    for member in members:
        names.take(member.name)
        right = isinstance(member.size, int) and not isinstance(member.size, bool) and 0 <= member.size <= MEMBER_LIMIT
        if not right:
            raise BadIndex(f"its size is invalid or above {MEMBER_LIMIT} bytes", member.name)
        if not isinstance(member.executable, bool):
            raise BadIndex("its executable flag is not a boolean", member.name)
        if not isinstance(member.sha256, str) or not _SHA256.fullmatch(member.sha256):
            raise BadIndex("its digest is not a sha256", member.name)
    if sum(m.size for m in members) > TOTAL_LIMIT:
        raise BadIndex(f"its members exceed {TOTAL_LIMIT} bytes in total")
    if [m.name for m in members] != sorted(m.name for m in members):
        raise BadIndex("its members are not sorted by name")


class _Names:
    """The names so far and their rules: unique, inside the bundle, without collisions."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._keys: dict[str, str] = {}

    def take(self, name: str) -> None:
        if not isinstance(name, str):
            raise BadIndex("a name is not a string")
        reason = why_refused(name.encode("utf-8", "surrogatepass"))
        if reason is None and not name.startswith((DISTRIBUTION, SOURCES)):
            reason = f"it is neither in {DISTRIBUTION} nor in {SOURCES}"
        if reason is None and not fits(name):
            reason = "its name is too long for a tar header"
        if reason:
            raise BadIndex(reason, name)
        if name in self._files:
            raise BadIndex("duplicate member", name)
        parts = name.split("/")
        above = {"/".join(parts[:end]) for end in range(1, len(parts))}
        if name in self._folders or above & self._files:
            raise BadIndex("both a file and a folder", name)
        for path in sorted(above | {name}):
            other = self._keys.setdefault(collision_key(path.encode()), path)
            if other != path:
                raise BadIndex(f"collides with {other} where case or Unicode form is ignored", name)
        self._files.add(name)
        self._folders |= above


def _check_sources(index: Index) -> None:
    texts = [
        index.profile,
        *([] if index.release is None else [index.release]),
        *(v for s in index.sources for v in (s.upstream, s.form)),
    ]
    texts += [text for pair in index.missing for text in pair]
    if not all(isinstance(t, str) and _NAME.fullmatch(t) for t in texts):
        raise BadIndex("invalid name of a profile, upstream or form")
    if not all(isinstance(s.member, str) for s in index.sources):
        raise BadIndex("invalid member name of a source")
    known = {m.name for m in index.members}
    seen: set[tuple[str, str]] = set()
    for source in index.sources:
        if (source.upstream, source.form) in seen or source.form not in ("git", "sdist"):
            raise BadIndex(f"{source.upstream} in form {source.form} is a duplicate or of unknown form")
        if not isinstance(source.member, str) or source.member not in known or not source.member.startswith(SOURCES):
            raise BadIndex(f"{source.upstream} in form {source.form} has no member")
        _check_pin(source)
        seen.add((source.upstream, source.form))
    if {s.member for s in index.sources} != {n for n in known if n.startswith(SOURCES)}:
        raise BadIndex("a member below sources/ is not a listed source")


def _check_pin(source: BundledSource) -> None:
    """Check that exactly the fields that identify a source in its form are set and well formed."""
    ids, archive = (source.commit, source.tree), (source.version, source.sha256)
    if source.form == "git":
        if not all(isinstance(i, str) and _ID.fullmatch(i) for i in ids) or archive != (None, None):
            raise BadIndex(f"{source.upstream} in form git needs a commit and a tree, and nothing else")
        return
    pairs = zip(archive, (_NAME, _SHA256), strict=True)
    if not all(isinstance(text, str) and known.fullmatch(text) for text, known in pairs) or ids != (None, None):
        raise BadIndex(f"{source.upstream} in form sdist needs a version and a sha256, and nothing else")


def fits(name: str) -> bool:
    """Whether a tar header can hold this name."""
    return _split(TOP + name) is not None


def _split(name: str) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) of a ustar header with the shortest prefix, or None if the name is too long."""
    if len(name.encode()) <= 100:
        return b"", name.encode()
    parts = name.split("/")
    for cut in range(1, len(parts)):
        prefix, rest = "/".join(parts[:cut]).encode(), "/".join(parts[cut:]).encode()
        if len(rest) <= 100:
            return (prefix, rest) if len(prefix) <= 155 else None
    return None


def header(member: BundleMember) -> bytes:
    """Return a member's tar header (POSIX.1-1988 ustar). Not from tarfile, whose bytes vary by Python version."""
    split = _split(TOP + member.name)
    assert split is not None
    prefix, rest = split
    block = bytearray(BLOCK)
    block[: len(rest)] = rest
    block[100:124] = (b"0000755\0" if member.executable else b"0000644\0") + b"0000000\0" * 2
    block[124:136] = b"%011o\0" % member.size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = b"0"
    block[257:265] = b"ustar\00000"
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padding(size: int) -> int:
    """Return how many zeros follow a member of this size."""
    return -size % BLOCK


@dataclass(frozen=True)
class Extent:
    """Where a member is in the file: its header at `at`, its bytes at `start`, the next header at `after`."""

    member: BundleMember
    at: int

    @property
    def start(self) -> int:
        return self.at + BLOCK

    @property
    def after(self) -> int:
        return self.start + self.member.size + padding(self.member.size)


def extents(members: Sequence[BundleMember], at: int) -> Iterator[Extent]:
    """Yield where these members are if the first header is at `at`."""
    for member in members:
        extent = Extent(member, at)
        yield extent
        at = extent.after
