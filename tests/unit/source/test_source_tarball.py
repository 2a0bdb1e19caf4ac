"""Our tar reader against Python's on archives that both take, and that it ends at the first fault."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchctl.source.archive import BLOCK, BadArchive, TarMember, members

NAMES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=70).filter(
        lambda part: part not in (".", "..")
    ),
    min_size=1,
    max_size=4,
).map("/".join)


def read(data: bytes, limit: int = 1 << 20) -> list[TarMember]:
    return list(members(io.BytesIO(data), limit))


def tar(files: dict[str, bytes], form: int) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as out:
        for number, (name, data) in enumerate(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o600 + number % 64, number + 0.5
            out.addfile(info, io.BytesIO(data))
    return raw.getvalue()


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAMES, st.binary(max_size=1200), max_size=6),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_what_python_writes_is_read_as_it_was(files: dict[str, bytes], form: int) -> None:
    found = read(tar(files, form))
    assert {m.name.decode(): m.data for m in found} == files
    assert [m.mode for m in found] == [0o600 + number % 64 for number in range(len(files))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_refused_or_read_and_never_anything_else(data: st.DataObject) -> None:
    good = bytearray(tar({"a/b": b"x" * 600, "a/" + "c" * 150: b"y"}, tarfile.PAX_FORMAT))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except BadArchive as fault:
        assert fault.reason


@pytest.mark.parametrize("cut", [1, 511, 512, 700, 1023, 1024, 1025, 1535])
def test_an_archive_that_ends_early_is_refused(cut: int) -> None:
    whole = tar({"a/b": b"x" * 600}, tarfile.USTAR_FORMAT)[: 4 * BLOCK + BLOCK]
    read(whole)
    with pytest.raises(BadArchive, match="truncated"):
        read(whole[:cut])


def test_long_names_of_both_formats_are_read() -> None:
    name = "top/" + "d" * 120 + "/" + "f" * 200 + "ü"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert read(tar({name: b"x"}, form)) == [TarMember(name.encode(), 0o600, b"x")]


def test_the_prefix_of_ustar_is_read() -> None:
    name = "top/" + "d" * 90 + "/" + "f" * 90
    assert read(tar({name: b"x"}, tarfile.USTAR_FORMAT))[0].name == name.encode()


def test_a_file_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadArchive, match="the limit is 100"):
        read(tar({"a/b": b"x" * 101}, tarfile.USTAR_FORMAT), limit=100)
