"""The readers of what comes from elsewhere: bundles, source distributions as tar and zip, pages of a package index."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import socketserver
import struct
import tarfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from fuzz_readers import A, B, Reader, refusal
from fuzz_values import TOKENS, changed_bytes, changed_value
from source_builders import Answer, index_server, sdist_members, tar_gz

from patchctl.bundle.layout import (
    DIGEST,
    END,
    INDEX,
    BundledSource,
    BundleMember,
    Index,
    header,
    padding,
    render_digest,
    render_index,
)
from patchctl.bundle.reader import open_bundle
from patchctl.errors import PatchctlError, SourceUnavailable, Tried
from patchctl.manifest.types import Sdist
from patchctl.source.archive import read_archive
from patchctl.source.package_index import _candidates, _client, _plain_errors
from patchctl.source.places import IndexConfig
from patchctl.terminal.text import visible_line

NAMES: tuple[Any, ...] = (
    "distribution/../../x",
    "distribution/manifests/a.yaml",
    "distribution/manifests",
    "sources/sdist/x.tar.gz",
    "/etc/x",
    "distribution/.git/config",
    "distribution/A",
    "distribution/a",
    "distribution/x\x00y",
    "distribution/" + "d/" * 60 + "x",
    "index.json",
    "distribution/\u00e9",
    "distribution/e\u0301",
)


class BundleReader(Reader):
    """Whole bundles with changed bytes, and bundles that somebody made with another index: their digests agree."""

    name = "bundle"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "x.tar"
        files = {
            "distribution/manifests/upstreams.yaml": b"schema: 1\n",
            "distribution/scripts/run.sh": b"#!/bin/sh\n",
            "sources/git/demo.pack": b"PACK" + bytes(600),
            "sources/sdist/demo-1.0.tar.gz": b"\x1f\x8b" + bytes(100),
        }
        members = tuple(BundleMember(n, len(d), sha256(d).hexdigest(), n.endswith(".sh")) for n, d in files.items())
        sources = (
            BundledSource("demo", "git", A, None, "sources/git/demo.pack", tree=B),
            BundledSource("demo", "sdist", None, "1.0", "sources/sdist/demo-1.0.tar.gz", sha256="d" * 64),
        )
        self.index = Index("full", sources, (("clock", "sdist"),), members)
        self.blocks = b"".join(header(m) + files[m.name] + bytes(padding(m.size)) for m in members)
        self.good = self.bundle(render_index(self.index))

    def bundle(self, index: bytes) -> bytes:
        """A bundle of the members with this index, its digest right."""
        said = render_digest(sha256(index).hexdigest())
        parts = [(INDEX, index), (DIGEST, said)]
        return b"".join(
            [*(header(BundleMember(n, len(d), "")) + d + bytes(padding(len(d))) for n, d in parts), self.blocks, END]
        )

    def case(self, rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return changed_bytes(rng, self.good)
        index: bytes = render_index(self.index)
        if rng.random() < 0.8:
            value = changed_value(rng, json.loads(index), NAMES if rng.random() < 0.5 else ())
            index = (json.dumps(value, indent=1, sort_keys=_sortable(value)) + "\n").encode()
        else:
            index = changed_bytes(rng, index)
        data = self.bundle(index)
        return changed_bytes(rng, data) if rng.random() < 0.1 else data

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        try:
            bundle = open_bundle(self.file)
        except PatchctlError as error:
            return refusal(error)
        for member in bundle.index.members:
            bundle.read(member.name)
        assert all(
            m.name.startswith(("distribution/", "sources/")) and ".." not in m.name.split("/")
            for m in bundle.index.members
        )
        return True


def _sortable(value: Any) -> bool:
    return isinstance(value, dict)


_HEADERS: tuple[bytes, ...] = (
    *TOKENS[:13],
    b"ustar\x0000",
    b"ustar  \0",
    b"0000644\0",
    b"\x80" + bytes(11),
    b"\xff" * 12,
    b"77777777777\0",
)
_PAX: tuple[tuple[str, str], ...] = (
    ("path", "demo-1.0/" + "n" * 200),
    ("path", "../x"),
    ("path", "/x"),
    ("path", "demo-1.0/\x1b[2J"),
    ("size", "5"),
    ("size", "9" * 5000),
    ("size", "-1"),
    ("size", "\u0661"),
    ("comment", "c"),
    ("GNU.sparse.map", "0,1"),
    ("linkpath", "/etc"),
    ("mtime", "nan"),
    ("path", "demo-1.0"),
    ("path", "demo-1.0/README.md"),
)


class TarReader(Reader):
    """Source distributions: what is inside is changed, packed again and pinned as it is, or the packed bytes are."""

    name = "tar archive"
    suffix = ".tar.gz"

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"x{self.suffix}"
        self.good = gzip.decompress(tar_gz(sdist_members(), executable=("demo-1.0/demo/bin/run.sh",)))

    def case(self, rng: random.Random) -> bytes:
        raw = self._with_records(rng) if rng.random() < 0.3 else self.good
        for _ in range(rng.choice((1, 1, 2, 3))):
            raw = self._header_changed(rng, raw) if rng.random() < 0.7 else changed_bytes(rng, raw)
        packed = gzip.compress(raw, 1, mtime=0)
        return changed_bytes(rng, packed) if rng.random() < 0.1 else packed

    def _with_records(self, rng: random.Random) -> bytes:
        """Members with pax records of any kind, written by Python's own tarfile."""
        out = io.BytesIO()
        with tarfile.open(
            fileobj=out, mode="w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
        ) as tar:
            for name, data in rng.sample(sorted(sdist_members().items()), 4):
                info = tarfile.TarInfo(
                    name
                    if rng.random() < 0.7
                    else rng.choice(("demo-1.0/" + "l" * 120, "demo-1.0/A", "demo-1.0/a", "demo-1.0/x/../y", "other/x"))
                )
                info.pax_headers = dict([rng.choice(_PAX)]) if rng.random() < 0.5 else {}
                info.type = rng.choice(
                    (
                        tarfile.REGTYPE,
                        tarfile.REGTYPE,
                        tarfile.DIRTYPE,
                        tarfile.SYMTYPE,
                        tarfile.LNKTYPE,
                        tarfile.FIFOTYPE,
                        tarfile.GNUTYPE_SPARSE,
                    )
                )
                info.size = len(data or b"") if info.isreg() else 0
                with contextlib.suppress(ValueError, UnicodeError):
                    tar.addfile(info, io.BytesIO(data or b""))
        return out.getvalue()

    def _header_changed(self, rng: random.Random, raw: bytes) -> bytes:
        """A field of a header, with a right sum of its bytes again."""
        at = 512 * rng.randrange(max(1, len(raw) // 512))
        block = bytearray(raw[at : at + 512].ljust(512, b"\0"))
        start, size = rng.choice(((0, 100), (100, 8), (124, 12), (148, 8), (156, 1), (157, 100), (257, 8), (345, 155)))
        if start == 156:
            block[156:157] = rng.choice(
                (b"0", b"\0", b"5", b"x", b"g", b"L", b"K", b"1", b"2", b"6", b"S", b"7", rng.randbytes(1))
            )
        else:
            block[start : start + size] = changed_bytes(rng, bytes(block[start : start + size]), _HEADERS)[:size].ljust(
                size, b"\0"
            )
        if rng.random() < 0.9:
            block[148:156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
        return raw[:at] + bytes(block) + raw[at + 512 :]

    def read(self, data: bytes) -> bool:
        self.file.write_bytes(data)
        try:
            files = list(read_archive(self.file, sha256(data).hexdigest()))
        except PatchctlError as error:
            return refusal(error)
        assert all(
            f.path and not f.path.startswith(b"/") and b".." not in f.path.split(b"/") and b"\0" not in f.path
            for f in files
        )
        return True


class ZipReader(TarReader):
    name = "zip archive"
    suffix = ".zip"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "x.zip"
        self.samples = [
            self._zip(method)
            for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        ]

    def _zip(self, method: int) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, data in sdist_members().items():
                info = zipfile.ZipInfo(name + ("/" if data is None else ""), (2026, 1, 1, 0, 0, 0))
                info.external_attr = (0o100644 if data is not None else 0o40755) << 16
                info.compress_type = method
                archive.writestr(info, data or b"")
        return out.getvalue()

    def case(self, rng: random.Random) -> bytes:
        data = rng.choice(self.samples)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = self._record_changed(rng, data) if rng.random() < 0.7 else changed_bytes(rng, data)
        return data

    def _record_changed(self, rng: random.Random, data: bytes) -> bytes:
        """Two or four bytes of a local header, of a central one or of the end."""
        magic = rng.choice((b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"))
        at = data.find(magic, rng.randrange(len(data) + 1))
        at = data.find(magic) if at < 0 else at
        if at < 0:
            return changed_bytes(rng, data)
        where = at + 4 + rng.randrange(60)
        value = rng.choice(
            (0, 1, 0xFFFF, 0xFFFFFFFF, rng.randrange(1 << 16), rng.randrange(1 << 32), 12, 14, 8, 0x800, 0x40, 0x1)
        )
        field = struct.pack("<I", value) if rng.random() < 0.5 else struct.pack("<H", value & 0xFFFF)
        return data[:where] + field + data[where + len(field) :]


class IndexReader(Reader):
    """Pages of a package index, as JSON and as HTML, from a server on loopback: what they offer, or why they are no use."""

    name = "index page"

    def __init__(self, folder: Path) -> None:
        socketserver.StreamRequestHandler.disable_nagle_algorithm = (
            True  # else every answer waits 40 ms for its second half
        )
        self._stack = contextlib.ExitStack()
        self.server = self._stack.enter_context(index_server())
        # One client for all pages: making one takes ten times as long as reading a page.
        self.client = self._stack.enter_context(_client(IndexConfig((self.server.simple,))))
        self.good = tar_gz(sdist_members())
        self.sdist = Sdist(version="1.0", sha256=sha256(self.good).hexdigest())
        self.server.answers["/files/demo-1.0.tar.gz"] = Answer(self.good)
        file = {
            "filename": "demo-1.0.tar.gz",
            "url": "/files/demo-1.0.tar.gz",
            "hashes": {"sha256": self.sdist.sha256},
            "requires-python": ">=3.8",
            "yanked": False,
            "size": len(self.good),
            "upload-time": "2026-01-01T00:00:00Z",
        }
        wheel = {
            **file,
            "filename": "demo-1.0-py3-none-any.whl",
            "url": "/files/demo-1.0-py3-none-any.whl",
            "core-metadata": {"sha256": "d" * 64},
        }
        self.pages = [{"meta": {"api-version": "1.0"}, "name": "demo", "versions": ["1.0"], "files": [file, wheel]}]
        self.html = (
            b"<!DOCTYPE html><html><body>\n"
            b'<a href="/files/demo-1.0.tar.gz#sha256=%s" data-requires-python="&gt;=3.8" data-yanked="no">demo-1.0.tar.gz</a>\n'
            b'<a href="../../files/demo-0.9.tar.gz" data-dist-info-metadata="sha256=x">demo-0.9.tar.gz</a></body></html>\n'
        ) % self.sdist.sha256.encode()

    def case(self, rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            more = (
                "http://[::1",
                "http://host:x/demo-1.0.tar.gz",
                "file:///etc/passwd",
                "demo-1.0.tar.gz",
                "demo-1.0-1-2-3-4-5.whl",
                "//",
                "?x",
                "data:,x",
            )
            data = json.dumps(changed_value(rng, self.pages[0], more)).encode()
            return b"j" + (changed_bytes(rng, data) if rng.random() < 0.3 else data)
        data = self.html
        for _ in range(rng.randint(1, 4)):
            data = changed_bytes(rng, data)
        return b"h" + data

    def read(self, data: bytes) -> bool:
        kind = "application/vnd.pypi.simple.v1+json" if data[:1] == b"j" else "text/html"
        self.server.answers["/simple/demo/"] = Answer(data[1:], headers={"Content-Type": kind})
        self.server.asked.clear()
        tried: list[Tried] = []
        found = []
        with _plain_errors(self.server.simple, tried):
            found = _candidates(self.client, self.server.simple, "index", "demo", self.sdist, tried)
        refusal(SourceUnavailable("demo", tried))
        for candidate in found:
            assert not candidate.url.startswith("file:"), "a page from the network leads into a file"
            visible_line(candidate.shown + candidate.page).encode("utf-8")
            assert candidate.sha256 is None or isinstance(candidate.sha256, str)
        return bool(found)

    def close(self) -> None:
        self._stack.close()


MAKERS: tuple[Callable[[Path], Reader], ...] = (BundleReader, TarReader, ZipReader, IndexReader)
