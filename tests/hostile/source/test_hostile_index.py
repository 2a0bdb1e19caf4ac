"""Package indexes that answer with something else than a page: a reason for each, no traceback, no memory filled."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from pathlib import Path

import pytest
from source_builders import Answer, IndexServer, sdist_members, sha256, tar_gz

from patchctl.errors import SourceMismatch, Tried
from patchctl.manifest.types import Sdist
from patchctl.source.package_index import download
from patchctl.source.places import IndexConfig
from patchctl.terminal.progress import Progress

pytestmark = pytest.mark.family("Fetch")

GOOD = tar_gz(sdist_members())
SDIST = Sdist(version="1.0", sha256=sha256(GOOD))
JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
HTML = {"Content-Type": "text/html"}
FILE = {"filename": "demo-1.0.tar.gz", "url": "/files/demo-1.0.tar.gz", "hashes": {}}


def page(**file: object) -> bytes:
    return json.dumps({"meta": {"api-version": "1.0"}, "files": [{**FILE, **file}]}).encode()


PAGES: dict[str, tuple[bytes, dict[str, str]]] = {
    "nested_100000_deep": (b"[" * 100_000, JSON),
    "objects_nested_100000_deep": (b'{"a":' * 100_000, JSON),
    "number_of_5000_digits": (b'{"files": [%s]}' % (b"1" * 5000), JSON),
    "cut_off": (page()[:-9], JSON),
    "a_list": (b"[]", JSON),
    "null": (b"null", JSON),
    "files_is_a_number": (b'{"files": 7}', JSON),
    "files_is_text": (b'{"files": "abc"}', JSON),
    "file_is_a_number": (b'{"files": [7]}', JSON),
    "file_is_null": (b'{"files": [null]}', JSON),
    "url_is_a_number": (page(url=7), JSON),
    "url_is_a_list": (page(url=["/x"]), JSON),
    "url_that_cannot_be_parsed": (page(url="http://[::1/demo-1.0.tar.gz"), JSON),
    "hashes_is_a_list": (page(hashes=["sha256"]), JSON),
    "digest_is_a_number": (page(hashes={"sha256": 7}), JSON),
    "digest_is_a_list": (page(hashes={"sha256": [[]]}), JSON),
    "upload_time_of_words": (page(**{"upload-time": "yesterday"}), JSON),
    "upload_time_is_a_number": (page(**{"upload-time": 7}), JSON),
    "requires_python_is_a_list": (page(**{"requires-python": [1]}), JSON),
    "not_utf_8": (b"\xff\xfe" + page(), JSON),
    "empty": (b"", JSON),
    "html_without_links": (b"<a>" * 50_000, HTML),
    "html_not_utf_8": (b"<a href='\xff\xfe'>\xff</a>", {"Content-Type": "text/html; charset=utf-8"}),
    "unknown_character_set": (b"<a href=x>x</a>", {"Content-Type": "text/html; charset=evil"}),
    "compression_that_is_none": (page(), {**JSON, "Content-Encoding": "gzip"}),
    "file_on_this_disk": (page(url="file:///etc/passwd#demo-1.0.tar.gz"), JSON),
    "data_address": (page(url="data:text/plain,x/demo-1.0.tar.gz"), JSON),
    "control_characters": (page(url="/\x1b[2J\x07/demo-1.0.tar.gz"), JSON),
}


def reasons(index: IndexServer, tmp_path: Path) -> list[Tried]:
    """What the reasons are when this index has no good answer; whatever it said, nothing was written."""
    tried: list[Tried] = []
    into = tmp_path / "into"
    into.mkdir()
    assert download("demo", SDIST, into, Progress(), tried, IndexConfig((index.simple,))) is None
    assert list(into.glob("*.zip")) == []
    return tried


@pytest.mark.parametrize("fault", PAGES)
def test_a_page_with_this_fault_is_a_reason(fault: str, index: IndexServer, tmp_path: Path) -> None:
    body, headers = PAGES[fault]
    index.answers["/simple/demo/"] = Answer(body, headers=headers)
    tried = reasons(index, tmp_path)
    assert tried
    for place in tried:
        assert place.reason and place.reason.isprintable() and place.place.isprintable()
        assert len(place.reason) < 2000


@pytest.mark.heavy("half a gigabyte")
def test_a_page_that_unpacks_to_half_a_gigabyte_is_not_read(index: IndexServer, tmp_path: Path) -> None:
    """512 MiB of blanks in half a MiB: the page is measured as it is unpacked."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(pack.compress(b" " * (1 << 20)) for _ in range(512)) + pack.flush()
    assert len(packed) < 1 << 20
    index.answers["/simple/demo/"] = Answer(packed, headers={**JSON, "Content-Encoding": "gzip"})
    tracemalloc.start()
    try:
        tried = reasons(index, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()
    assert "larger than 8388608 bytes" in tried[0].reason


def test_a_redirect_without_end(index: IndexServer, tmp_path: Path) -> None:
    index.answers["/simple/demo/"] = Answer(status=302, headers={"Location": "/simple/demo/"})
    assert "redirect" in reasons(index, tmp_path)[0].reason.lower()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "ext::sh"])
def test_a_redirect_into_something_else(index: IndexServer, tmp_path: Path, target: str) -> None:
    index.answers["/simple/demo/"] = Answer(status=302, headers={"Location": target})
    assert reasons(index, tmp_path)


def test_one_name_on_two_indexes_the_digest_decides(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", GOOD + b"evil")
    with pytest.raises(SourceMismatch, match=r"no place has .* with the pinned sha256") as caught:
        reasons(index, tmp_path)
    assert caught.value.code == 3 and list((tmp_path / "into").iterdir()) == []
