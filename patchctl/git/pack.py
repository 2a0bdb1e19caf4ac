"""Writes git packs directly, one file instead of a process or a loose file per object; copies packs, and checks their digests.

Formats: git's Documentation/gitformat-pack.txt, pack and index version 2. An older version of an object becomes a
delta against the newer one, so that the newest, from which a tree is written, is whole. No search for delta bases. On
1,000 patches of verl's history: 7 MB compressed, where whole objects took 28 MB and 1 s more.
"""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from patchctl import delta
from patchctl.atomic import make_folder, replacing
from patchctl.errors import SourceMismatch
from patchctl.git.objects import object_id
from patchctl.language import message

_PIECE, _DIGEST = 1 << 20, 20
_AGAIN = message("`patchctl fetch --refresh` fetches it again")


def bring_pack(pack: Path, folder: Path, *, anew: bool = False) -> None:
    """Copy a pack and its index into another object store. Raises SourceMismatch if either was modified.

    With `anew`, an existing file is replaced if its bytes differ. Files are copied, not hard-linked: a byte that
    changes in the cache must not change a workspace. Their digests are checked here because git does so only in `git
    fsck`, and a bad object must not be found with half of a tree written.
    """
    make_folder(folder)
    for source in (pack, pack.with_suffix(".idx")):
        target = folder / source.name
        if target.exists() and not (anew and _is_other(target, source)):
            continue
        # fsynced, since the journal relies on it
        with _opened(source) as whole, replacing(target, 0o444) as out:
            if not _copied(whole, out):
                raise _changed(source)


def ends_with_digest(file: Path) -> bool:
    """Whether a pack or index ends with the SHA-1 of all that precedes. Raises OSError."""
    with open(file, "rb") as source:
        return _copied(source, None)


def _is_other(target: Path, source: Path) -> bool:
    with _opened(source):
        pass
    if not filecmp.cmp(target, source, shallow=False):
        return True
    if not ends_with_digest(source):
        raise _changed(source)
    return False


def _opened(file: Path) -> IO[bytes]:
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise SourceMismatch(message("the file is gone"), where=str(file), hint=_AGAIN) from None


def _changed(file: Path) -> SourceMismatch:
    return SourceMismatch(message("the file was modified: its digest does not match"), where=str(file), hint=_AGAIN)


def _copied(source: IO[bytes], out: IO[bytes] | None) -> bool:
    """Copy in pieces, since packs can be hundreds of megabytes; return whether the trailing digest matches."""
    digest, last = hashlib.sha1(usedforsecurity=False), b""
    while piece := source.read(_PIECE):
        if out is not None:
            out.write(piece)
        held = last + piece
        digest.update(held[:-_DIGEST])
        last = held[-_DIGEST:]
    return digest.digest() == last


_KINDS = {"commit": 1, "tree": 2, "blob": 3}
_OFFSET_DELTA = 6
# Measured on 999 patches of real history: level 1 takes a third of the time of level 6 for packs 15 % larger.
_COMPRESSION = 1
_STORED = 256
# git's default for pack.depth: reading the oldest object applies this many deltas.
_DEEPEST = 50
# delta.make slices and copies, so larger objects are stored whole. Offsets in a delta have 32 bits.
_LARGEST_DELTA = 64 * 1024 * 1024


class _Waiting(NamedTuple):
    """An object not yet written: type and content, or with `base` (an id) its delta against that object."""

    kind: int
    data: bytes
    base: str | None = None


class PackWriter:
    """Collects objects and writes them as one pack with its index.

    With `stored` nothing is compressed, so the same objects give the same bytes with any zlib. With `spool`, a
    folder, objects are packed as they arrive and wait in an unnamed file there instead of memory; none becomes a
    delta.
    """

    def __init__(self, *, stored: bool = False, spool: Path | None = None) -> None:
        self._deflate = _store if stored else _deflate
        self._chunks: list[bytes] = []
        self._spool: IO[bytes] | None = tempfile.TemporaryFile(dir=spool) if spool else None  # noqa: SIM115
        self._at = 12  # the pack's header
        self._places: dict[str, tuple[int, int]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._depths: dict[str, int] = {}  # length of the delta chain that ends at an object

    def __len__(self) -> int:
        return len(self._places) + len(self._waiting)

    def add(self, kind: str, data: bytes) -> str:
        """Add an object and return its id. Duplicates are stored once."""
        oid = object_id(kind, data)
        self.add_known(oid, kind, data)
        return oid

    def add_known(
        self, oid: str, kind: str, data: bytes, origin: str | None = None, kept: Sequence[delta.Copy] | None = None
    ) -> None:
        """Like `add`, for a caller that has already hashed `data`.

        `origin` is the id of the object of the same type that `data` was made from. `kept` lists the regions both
        share, with `origin` as the target; without it the contents are compared.
        """
        if oid in self._places or oid in self._waiting:
            return
        self._waiting[oid] = _Waiting(_KINDS[kind], data)
        if self._spool is not None:
            self._pack()
        elif origin is not None:
            self._to_delta(origin, oid, data, kept)

    def _to_delta(self, origin: str, oid: str, data: bytes, kept: Sequence[delta.Copy] | None) -> None:
        """Turn the waiting object `origin` into a delta against the new one, if that saves enough."""
        old = self._waiting.get(origin)
        depth = self._depths.get(origin, 0) + 1
        if old is None or old.base is not None or depth > _DEEPEST or max(len(data), len(old.data)) > _LARGEST_DELTA:
            return
        limit = len(old.data) // 2
        made = delta.make(data, old.data, limit) if kept is None else delta.render(len(data), old.data, kept, limit)
        if made is not None:
            self._waiting[origin] = _Waiting(_OFFSET_DELTA, made, oid)
            self._depths[oid] = depth

    def _pack(self) -> None:
        """Pack waiting objects: whole ones in order, then deltas in reverse, since their bases were added later."""
        whole = [oid for oid, one in self._waiting.items() if one.base is None]
        deltas = [oid for oid, one in self._waiting.items() if one.base is not None]
        for oid in (*whole, *reversed(deltas)):
            one = self._waiting.pop(oid)
            head = _object_header(one.kind, len(one.data))
            if one.base is not None:
                head += _distance(self._at - self._places[one.base][0])
            chunk = head + self._deflate(one.data)
            self._places[oid] = (self._at, zlib.crc32(chunk))
            if self._spool is None:
                self._chunks.append(chunk)
            else:
                self._spool.write(chunk)
            self._at += len(chunk)

    def write(self, folder: Path) -> Path | None:
        """Write pack-<id>.pack and .idx into `folder` and return the pack's path; None without objects.

        Files are renamed into place, the index last, so that a killed run leaves no pack that git would read.
        """
        self._pack()
        if not self._places:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha1(usedforsecurity=False)
        for piece in self._body():
            digest.update(piece)
        trailer = digest.digest()
        pack = folder / f"pack-{trailer.hex()}.pack"
        _place(pack, itertools.chain(self._body(), [trailer]))
        _place(pack.with_suffix(".idx"), [_index(self._places, trailer)])
        return pack

    def _body(self) -> Iterator[bytes]:
        yield struct.pack(">4sII", b"PACK", 2, len(self._places))
        if self._spool is None:
            yield from self._chunks
            return
        self._spool.seek(0)
        while piece := self._spool.read(_PIECE):
            yield piece


def _deflate(data: bytes) -> bytes:
    """Return a zlib stream. Small data is stored, since setting up the compressor would take longer."""
    return zlib.compress(data, _COMPRESSION) if len(data) > _STORED else _store(data)


def _store(data: bytes) -> bytes:
    """Return a zlib stream (RFC 1950, 1951) of stored blocks, whose length is limited to 16 bits."""
    blocks = [data[at : at + 0xFFFF] for at in range(0, len(data), 0xFFFF)] or [b""]
    parts = [b"\x78\x01"]
    for number, block in enumerate(blocks, 1):
        last = b"\x01" if number == len(blocks) else b"\x00"
        parts += [last, struct.pack("<HH", len(block), len(block) ^ 0xFFFF), block]
    return b"".join([*parts, struct.pack(">I", zlib.adler32(data))])


def _distance(back: int) -> bytes:
    """Encode an offset delta's distance: 7 bits per byte, highest first, each byte but the last plus one."""
    out = [back & 0x7F]
    while back := back >> 7:
        back -= 1
        out.append(0x80 | back & 0x7F)
    return bytes(reversed(out))


def _object_header(kind: int, size: int) -> bytes:
    """Encode type (bits 4 to 6 of the first byte) and size (its low 4 bits, then 7 bits per byte, lowest first)."""
    byte = kind << 4 | size & 15
    size >>= 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    out.append(byte)
    return bytes(out)


def _index(places: dict[str, tuple[int, int]], pack_trailer: bytes) -> bytes:
    ordered = sorted(places)
    fanout = [0] * 256
    for oid in ordered:
        fanout[int(oid[:2], 16)] += 1
    for i in range(1, 256):
        fanout[i] += fanout[i - 1]
    large: list[int] = []
    offsets = []
    for oid in ordered:
        offset = places[oid][0]
        if offset < 0x80000000:
            offsets.append(offset)
        else:
            offsets.append(0x80000000 | len(large))
            large.append(offset)
    body = b"".join(
        [
            b"\xfftOc" + struct.pack(">I", 2),
            struct.pack(">256I", *fanout),
            bytes.fromhex("".join(ordered)),
            struct.pack(f">{len(ordered)}I", *(places[oid][1] for oid in ordered)),
            struct.pack(f">{len(ordered)}I", *offsets),
            struct.pack(f">{len(large)}Q", *large),
            pack_trailer,
        ]
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _place(path: Path, pieces: Iterable[bytes]) -> None:
    if path.exists():  # a pack's name is its content's digest
        return
    with replacing(path, 0o444) as out:
        out.writelines(pieces)
