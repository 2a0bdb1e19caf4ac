"""Opens a bundle, and unpacks its distribution into a new folder, completely or not at all.

Every byte is checked before anything in it is used, and members again when they are read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from patchctl.atomic import filling, make_folder, staging_of
from patchctl.bundle.layout import (
    BLOCK,
    DIGEST,
    DISTRIBUTION,
    END,
    INDEX,
    INDEX_LIMIT,
    BadIndex,
    BundledSource,
    BundleMember,
    Extent,
    Index,
    NewerBundle,
    extents,
    header,
    padding,
    parse_index,
    render_digest,
)
from patchctl.bundle.signature import (
    BUNDLE,
    NoRegularFile,
    Signature,
    Trust,
    check_signature,
    regular_file,
    signature_file,
)
from patchctl.errors import NotTrusted, PatchctlError, SourceMismatch, WrongUse
from patchctl.language import joined, message
from patchctl.os_errors import error_type, os_reason
from patchctl.source import cache
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import visible_line

_CHUNK = 1 << 20
_SHOWN = 20
_HEX = re.compile(r"[0-9a-f]{64}")
_AGAIN = message("copy it again, and compare its sha256 with the one that `patchctl bundle create` printed")
_DIGEST_MEMBER = BundleMember(DIGEST, len(render_digest("0" * 64)), "")
# The parts of the first header that do not depend on size and checksum.
_FIXED = (slice(0, 124), slice(136, 148), slice(156, BLOCK))
_STRAY_BYTES = 8
_ZERO_BLOCKS = message("the two zero blocks at its end")


@dataclass(frozen=True)
class Bundle:
    """A bundle that passed all checks. `size` and `sha256` are the file's; no handle stays open.

    `signature` is None if it was not checked or is not trusted; then `distrust` is the reason. `unread` is a
    signature file that exists but was not checked.
    """

    path: Path
    size: int
    sha256: str
    index: Index
    places: Mapping[str, Extent]
    signature: Signature | None = None
    distrust: PatchctlError | None = None
    unread: Path | None = None

    def read(self, name: str) -> bytes:
        """Return the bytes of a member. Raises SourceMismatch if they changed since they were checked."""
        extent = self.places[name]
        with opened(self.path) as (file, _):
            file.seek(extent.start)
            data = file.read(extent.member.size)
        if hashlib.sha256(data).hexdigest() != extent.member.sha256:
            raise SourceMismatch(
                message("{name} was modified while the bundle was in use", name=name), where=str(self.path), hint=_AGAIN
            )
        return data

    def source(self, upstream: str, form: str) -> BundledSource | None:
        """Return the source of an upstream in this form, or None."""
        return self.index.source(upstream, form)

    def sha256_of(self, name: str) -> str:
        """Return the digest of a member as the index has it."""
        return self.places[name].member.sha256


def open_bundle(
    path: Path, sha256: str | None = None, progress: Progress | None = None, trust: Trust | None = None
) -> Bundle:
    """Check a whole bundle; with `sha256` its digest, with `trust` its signature, before anything is parsed.

    Raises WrongUse for a file that is not a bundle (or one of a newer patchctl), SourceMismatch with the names of
    modified parts, NotTrusted without the signature that `trust` requires.
    """
    if sha256 is not None and not _HEX.fullmatch(sha256 := sha256.strip().lower()):
        raise WrongUse(
            message("{sha256} is not a sha256", sha256=repr(sha256)), hint=message("a sha256 has 64 hexadecimal digits")
        )
    progress = progress or Progress()
    with opened(path) as (file, size):
        progress.start(message("checking {name}", name=path.name), size)
        try:
            if sha256 is not None:
                _check_digest(path, file, sha256)
            signature, distrust = _signature(path, file, trust)
            bundle = _Reading(path, file, size, progress).bundle()
        finally:
            progress.finish()
    proven = {sha256, signature.sha256 if signature else None} - {None}
    if proven - {bundle.sha256}:
        raise SourceMismatch(message("the bundle was modified while it was being read"), where=str(path), hint=_AGAIN)
    beside = signature_file(bundle.path)
    return replace(
        bundle, signature=signature, distrust=distrust, unread=None if trust or not beside.exists() else beside
    )


def _signature(path: Path, file: IO[bytes], trust: Trust | None) -> tuple[Signature | None, PatchctlError | None]:
    """Return the trusted signature, or why there is none if that is only a warning."""
    try:
        return (check_signature(path, file, trust) if trust else None), None
    except (NotTrusted, WrongUse) as error:
        if trust is None or trust.required:
            raise
        return None, error
    finally:
        file.seek(0)


@contextmanager
def opened(path: Path, called: str = BUNDLE.name) -> Iterator[tuple[IO[bytes], int]]:
    """Yield the open file and its size. Raises WrongUse, or what the machine failed with."""
    try:
        with regular_file(path) as (file, held):
            yield file, held.st_size
    except NoRegularFile as fault:
        raise WrongUse(message("a {called} must be a regular file", called=called), where=str(path)) from fault
    except OSError as error:
        what = message("cannot read the {what}: {error}", what=called, error=os_reason(error))
        raise error_type(error)(what, where=str(path)) from error


def _check_digest(path: Path, file: IO[bytes], wanted: str) -> None:
    total = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        total.update(chunk)
    if total.hexdigest() != wanted:
        what = message("the bundle's sha256 is {digest}, expected {wanted}", digest=total.hexdigest(), wanted=wanted)
        raise SourceMismatch(
            what, where=str(path), hint=message("nothing in it was used; get the bundle or its digest again")
        )
    file.seek(0)


class _Reading:
    """One pass over the file."""

    def __init__(self, path: Path, file: IO[bytes], size: int, progress: Progress) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._progress = progress
        self._total = hashlib.sha256()
        self._faults: list[str] = []

    def bundle(self) -> Bundle:
        index, after = self._index()
        places = {e.member.name: e for e in extents(index.members, after)}
        self._check_size(list(places.values()), after)
        for extent in places.values():
            self._member(extent)
        if self._take(len(END)) != END:
            self._faults.append(_ZERO_BLOCKS)
        behind = 0
        while rest := self._take(_CHUNK):
            behind += len(rest)
        if behind:
            self._faults.append(message("{count} unexpected bytes after its end", count=behind))
        if self._faults:
            raise self._changed(self._faults)
        return Bundle(self._path.absolute(), self._size, self._total.hexdigest(), index, places)

    def _index(self) -> tuple[Index, int]:
        """Return the checked index and where the first member's header is. Verifies the digest before parsing."""
        head = self._take(BLOCK)
        self._check_ours(head)
        size = self._index_size(head)
        data = self._exactly(size, INDEX)
        self._padding(size, INDEX)
        digest_header = self._exactly(BLOCK, DIGEST)
        said = self._exactly(_DIGEST_MEMBER.size, DIGEST)
        if digest_header != header(_DIGEST_MEMBER):
            raise self._changed([message("the header of {name}", name=DIGEST)])
        self._padding(_DIGEST_MEMBER.size, DIGEST)
        if not re.fullmatch(rb"[0-9a-f]{64}  index\.json\n", said):
            raise self._changed([DIGEST])
        if said != render_digest(hashlib.sha256(data).hexdigest()):
            raise self._changed([message("{name}, or the digest of it in {digests}", name=INDEX, digests=DIGEST)])
        if self._faults:
            raise self._changed(self._faults)
        first = Extent(BundleMember(INDEX, size, ""), 0)
        return self._parsed(data), Extent(_DIGEST_MEMBER, first.after).after

    def _parsed(self, data: bytes) -> Index:
        try:
            return parse_index(data)
        except NewerBundle as newer:
            what = message(
                "this bundle has version {version}; this patchctl reads version 1", version=visible_line(str(newer))
            )
            raise WrongUse(
                what, where=str(self._path), hint=message("install the patchctl version that created it")
            ) from newer
        except BadIndex as fault:
            named = f"member {visible_line(fault.member)}: " if fault.member is not None else f"{INDEX}: "
            hint = message("its digests match, so it was created this way. Do not use it")
            raise SourceMismatch(named + fault.reason, where=str(self._path), hint=hint) from fault

    def _check_ours(self, head: bytes) -> None:
        """Tell a modified bundle from a file that is not a bundle."""
        wanted = header(BundleMember(INDEX, 0, ""))
        pairs = ((a, b) for part in _FIXED for a, b in zip(head[part], wanted[part], strict=False))
        if len(head) == BLOCK and sum(a != b for a, b in pairs) <= _STRAY_BYTES:
            return
        if len(head) < BLOCK and head and wanted.startswith(head[:124]):
            header_of = message("the header of {name}", name=INDEX)
            raise self._changed([message("truncated in {name}", name=header_of)])
        raise WrongUse(
            message("not a patchctl bundle"),
            where=str(self._path),
            hint=message("`patchctl bundle create` creates one"),
        )

    def _index_size(self, head: bytes) -> int:
        digits = head[124:135]
        size = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else -1
        if size < 0 or head != header(BundleMember(INDEX, size, "")):
            raise self._changed([message("the header of {name}", name=INDEX)])
        if size > INDEX_LIMIT:
            what = message(
                "{index} announces {size} bytes; the limit is {limit}", index=INDEX, size=size, limit=INDEX_LIMIT
            )
            raise SourceMismatch(what, where=str(self._path))
        return size

    def _check_size(self, places: Sequence[Extent], after: int) -> None:
        """Refuse a truncated file at once, or every member after the end would be listed."""
        end = (places[-1].after if places else after) + len(END)
        if self._size >= end:
            return
        cut = next((e.member.name for e in places if e.after > self._size), _ZERO_BLOCKS)
        at = message("truncated in {name}: {size} of {whole} bytes", name=visible_line(cut), size=self._size, whole=end)
        raise self._changed([at])

    def _member(self, extent: Extent) -> None:
        member = extent.member
        shown = visible_line(member.name)
        if self._take(BLOCK) != header(member):
            self._faults.append(message("the header of {name}", name=shown))
        digest = hashlib.sha256()
        left = member.size
        while left:
            chunk = self._exactly(min(left, _CHUNK), shown)
            digest.update(chunk)
            left -= len(chunk)
        if digest.hexdigest() != member.sha256:
            self._faults.append(shown)
        self._padding(member.size, shown)

    def _padding(self, size: int, name: str) -> None:
        if self._exactly(padding(size), name).strip(b"\0"):
            self._faults.append(message("the padding after {name}", name=name))

    def _exactly(self, n: int, name: str) -> bytes:
        data = self._take(n)
        if len(data) != n:
            raise self._changed([message("truncated in {name}", name=name)])
        return data

    def _take(self, n: int) -> bytes:
        data = self._file.read(n)
        self._total.update(data)
        self._progress.advance(len(data))
        return data

    def _changed(self, faults: Sequence[str]) -> SourceMismatch:
        more = [message("and {count} more", count=len(faults) - _SHOWN)] if len(faults) > _SHOWN else []
        what = message("the bundle was modified: {faults}", faults=joined([*faults[:_SHOWN], *more], "; "))
        return SourceMismatch(what, where=str(self._path), hint=_AGAIN)


def distribution_members(bundle: Bundle) -> dict[str, BundleMember]:
    """Return the files of the distribution by path below its root."""
    members = bundle.index.members
    return {m.name.removeprefix(DISTRIBUTION): m for m in members if m.name.startswith(DISTRIBUTION)}


def distribution_id(bundle: Bundle) -> str:
    """Return an id of the distribution's content, equal for bundles of the same distribution."""
    members = sorted(distribution_members(bundle).items())
    lines = (f"{m.sha256} {'x' if m.executable else '-'} {path}\n" for path, m in members)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def cached_distribution(bundle: Bundle, root: Path) -> Path:
    """Return the bundle's distribution in the cache, <cache>/bundles/<id>, unpacked if necessary and verified.

    Raises SourceMismatch if the cached one was modified.
    """
    place = root / "bundles" / distribution_id(bundle)
    if not place.exists():
        with cache.staging(root) as folder:
            staged = folder / "distribution"
            _write(bundle, staged)
            make_folder(place.parent)
            with contextlib.suppress(OSError):  # another run was faster
                os.rename(staged, place)
    _check(place, distribution_members(bundle))
    return place


def unpack_distribution(bundle: Bundle, folder: Path) -> int:
    """Write the distribution to `folder`, which must not exist or be empty; return the number of files.

    A partial copy of the same distribution, left by a killed run, is completed. Raises WrongUse if the folder has
    anything else or cannot be written.
    """
    members = distribution_members(bundle)
    if folder.exists() and not _begun(folder, members):
        raise WrongUse("the folder is not empty", where=str(folder), hint="name a new or empty folder")
    try:
        with filling(folder, last="manifests") as staged:  # manifests/ goes last: it makes the folder a distribution
            _write(bundle, staged)
    except OSError as error:
        what = f"cannot write the folder: {error.strerror or errno.errorcode.get(error.errno or 0, 'error')}"
        raise error_type(error)(what, where=str(folder)) from error
    return len(members)


def _begun(folder: Path, members: Mapping[str, BundleMember]) -> bool:
    """Whether the folder has nothing but complete files of this distribution, as a killed run leaves it."""
    staged = staging_of(folder)
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(top, name) != staged]
        for path in (Path(top, name) for name in (*folders, *files)):
            if path.is_dir() and not path.is_symlink():
                continue
            member = members.get(path.relative_to(folder).as_posix())
            if member is None or path.is_symlink() or not path.is_file():
                return False
            if hashlib.sha256(path.read_bytes()).hexdigest() != member.sha256:
                return False
    return folder.is_dir()


def _write(bundle: Bundle, folder: Path) -> None:
    """Write the files. Names were checked with the index, so none leads outside."""
    for path, member in distribution_members(bundle).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bundle.read(member.name))
        if member.executable:
            target.chmod(target.stat().st_mode | 0o111)


def _check(folder: Path, wanted: Mapping[str, BundleMember]) -> None:
    hint = message("move {folder} away; it is then unpacked again", folder=folder)
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]  # left by running a script
        for name in (*folders, *files):
            path = Path(top, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() or (not path.is_dir() and shown not in wanted):
                raise SourceMismatch(
                    message("unexpected file or folder in the bundle's distribution"), where=str(path), hint=hint
                )
    for shown, member in wanted.items():
        path = folder / shown
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != member.sha256:
            raise SourceMismatch(
                message("this file of the bundle's distribution was modified"), where=str(path), hint=hint
            )
