"""Inputs that are small until they are read: made piece by piece, never held whole by the test that makes them."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

BLOCK = 512
MIB = 1 << 20


def header(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    """A ustar header; what it says of the size need not be true."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\00000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: bytes, size: int, pieces: Iterable[bytes], kind: bytes = b"0") -> Iterator[bytes]:
    yield header(name, size, kind)
    yield from pieces
    yield bytes(-size % BLOCK)


def zeros(size: int) -> Iterator[bytes]:
    for _ in range(size // MIB):
        yield bytes(MIB)
    yield bytes(size % MIB)


def end() -> bytes:
    return bytes(2 * BLOCK)


def pax(key: bytes, value: bytes) -> bytes:
    """An extended header of one record."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(str(length)) + len(rest):
        length += 1
    data = str(length).encode() + rest
    return header(b"pax", len(data), b"x") + data + bytes(-len(data) % BLOCK)


def zero_files(total_mib: int, each_mib: int = 32) -> Iterator[bytes]:
    """Zeros, in files that each keep the limit: at once a ratio of a thousand."""
    for number in range(total_mib // each_mib):
        yield from member(b"demo-1.0/f%d" % number, each_mib * MIB, zeros(each_mib * MIB))
    yield end()


def one_file(mib: int) -> Iterator[bytes]:
    yield from member(b"demo-1.0/f", mib * MIB, zeros(mib * MIB))
    yield end()


def noise_files(files: int, each_mib: int) -> Iterator[bytes]:
    """What does not pack: the most that the limits allow is held and written."""
    source = random.Random(1)
    for number in range(files):
        size = each_mib * MIB
        yield from member(b"demo-1.0/f%d" % number, size, (source.randbytes(MIB) for _ in range(each_mib)))
    yield end()


def many_files(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield from member(b"demo-1.0/f%d" % number, 8, [struct.pack(">Q", number)])
    yield end()


def long_names(count: int) -> Iterator[bytes]:
    """Names of 1,000 bytes, whose folders differ in each."""
    folder = "ΐ".encode() * 120
    for number in range(count):
        name = b"demo-1.0/" + b"/".join([folder + b"%07d" % number, folder, folder, folder])
        yield pax(b"path", name) + header(b"f", 0)
    yield end()


def pax_headers(count: int) -> Iterator[bytes]:
    """Extended headers without a member that they belong to."""
    for number in range(count):
        yield pax(b"k%d" % number, b"v" * 300)
    yield end()


def behind_the_end(mib: int) -> Iterator[bytes]:
    yield from member(b"demo-1.0/f", 1, [b"x"])
    yield end()
    yield from zeros(mib * MIB)


def folders(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield header(b"demo-1.0/d%d/" % number, 0, b"5")
    yield end()


def write_gzip(path: Path, pieces: Iterable[bytes], level: int = 6) -> Path:
    pack = zlib.compressobj(level, zlib.DEFLATED, 31)
    with path.open("wb") as out:
        for piece in pieces:
            out.write(pack.compress(piece))
        out.write(pack.flush())
    return path


def image_of(path: Path, *layers: bytes) -> Path:
    """An image as `docker save` writes it, of these layers, gzipped or not."""
    named = {f"{number}/layer.tar": one for number, one in enumerate(layers)}
    digests = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    files = {
        "manifest.json": json.dumps([{"Config": "config.json", "Layers": [*named]}]).encode(),
        "config.json": json.dumps({"rootfs": {"diff_ids": digests}}).encode(),
    } | named
    with path.open("wb") as out:
        for name, data in files.items():
            out.writelines(member(name.encode(), len(data), [data]))
        out.write(end())
    return path


def write_zip(path: Path, files: int, each_mib: int) -> Path:
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for number in range(files):
            with out.open(f"demo-1.0/f{number}", "w") as inner:
                for piece in zeros(each_mib * MIB):
                    inner.write(piece)
    return path


def write_crowded_zip(path: Path, names: int) -> Path:
    """A central directory of empty members, all at one place, behind one real one."""
    local = b"PK\x03\x04" + struct.pack("<5H3I2H", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    with path.open("wb") as out:
        out.write(local)
        for number in range(names):
            name = b"demo-1.0/%07d" % number
            head = struct.pack("<6H3I5H2I", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0)
            out.write(b"PK\x01\x02" + head + name)
        size = out.tell() - len(local)
        out.write(b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, names & 0xFFFF, names & 0xFFFF, size, len(local), 0))
    return path
