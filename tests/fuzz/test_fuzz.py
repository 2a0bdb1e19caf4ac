"""The short share of `make fuzz`, and the cases that it found, as small as they get: each once raised what nobody expects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_archives import BundleReader, ZipReader
from fuzz_readers import JOURNALS, STATES, LockReader, MemoReader, Reader
from fuzz_run import SEED, SHARES, Result, fuzz, makers, one, shares

from patchctl.bundle.layout import render_index

CASES = 6000


@pytest.mark.heavy("thousands of inputs")
@pytest.mark.parametrize(("name", "cases"), shares(CASES, list(SHARES)).items())
def test_a_short_share(name: str, cases: int, tmp_path: Path) -> None:
    top = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    folder = top / f"patchctl-{tmp_path.parent.name}-{tmp_path.name}"
    try:
        result = fuzz(name, folder, SEED, range(cases))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not result.faults, "\n".join(
        f"case {n} of seed {SEED}: {data[:300]!r}\n{why}" for n, data, why in result.faults
    )
    assert result.cases == cases and result.taken
    print(result.line())


def test_a_case_is_the_same_whatever_ran_before(tmp_path: Path) -> None:
    class Seen(Reader):
        name = "state"

        def __init__(self) -> None:
            self.inner = makers()["state"](tmp_path / "state")
            self.seen: list[bytes] = []

        case = property(lambda self: self.inner.case)

        def read(self, data: bytes) -> bool:
            self.seen.append(data)
            return True

    both = []
    for numbers in (range(20), range(15, 20)):
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        reader = Seen()
        for number in numbers:
            one(reader, SEED, number, Result("state", 0))
        both.append(reader.seen)
    assert both[0][15:] == both[1] and len(set(both[0])) > 15


def _changed(value: Any, change: Callable[[Any], object]) -> bytes:
    value = json.loads(json.dumps(value))
    change(value)
    return json.dumps(value).encode()


def _lock(change: Callable[[Any], object]) -> Callable[[Reader], bytes]:
    return lambda reader: _changed(reader.samples[0] if isinstance(reader, LockReader) else None, change)


def _memo(change: Callable[[Any], object]) -> Callable[[Reader], bytes]:
    return lambda reader: _changed(reader.samples[0] if isinstance(reader, MemoReader) else None, change)


def _zip_with_place(reader: Reader) -> bytes:
    """The end's record says that the central directory is larger than all that stands before it."""
    assert isinstance(reader, ZipReader)
    data = bytearray(reader.samples[1])
    at = data.rfind(b"PK\x05\x06")
    data[at + 16 : at + 20] = (2**31).to_bytes(4, "little")
    return bytes(data)


def _source_without_name(reader: Reader) -> bytes:
    """A source whose member is a list; every digest is right."""
    assert isinstance(reader, BundleReader)
    index = json.loads(render_index(reader.index))
    index["sources"][0]["member"] = []
    return reader.bundle((json.dumps(index, indent=1, sort_keys=True) + "\n").encode())


KEPT: dict[str, tuple[str, bytes | Callable[[Reader], bytes]]] = {
    "state: NUL in a folder": ("state", _changed(STATES[0], lambda s: s["trees"]["clock"].update(folder="/opt/a\0b"))),
    "state: NUL in a generated file": (
        "state",
        _changed(STATES[0], lambda s: s["trees"]["greeter"].update(generated={"a\0b": "x"})),
    ),
    "state: half a surrogate pair": ("state", _changed(STATES[0], lambda s: s.update(root="\ud83d"))),
    "state: a folder that is not UTF-8": (
        "state",
        _changed(STATES[0], lambda s: s["trees"]["clock"].update(folder="/opt/\udcff")),
    ),
    "journal: forget is a text": ("journal", _changed(JOURNALS[0], lambda j: j["changes"][0].update(forget="x"))),
    "journal: a record that is a list": ("journal", _changed(JOURNALS[0], lambda j: j["changes"][0].update(record=[]))),
    "journal: half a surrogate pair to be written": (
        "journal",
        _changed(JOURNALS[0], lambda j: j["changes"][0].update(generated={"a": "\udcff"})),
    ),
    "lock: a side without an id": ("lock", _lock(lambda d: d["patches"][0]["files"][0].update(before=["100644"]))),
    "lock: a side that is a text": ("lock", _lock(lambda d: d["patches"][0]["files"][0].update(before=""))),
    "lock: a file that is a list": ("lock", _lock(lambda d: d["patches"][0].update(file=["x"]))),
    "lock: a feature left out that is a mapping": ("lock", _lock(lambda d: d["results"][1].update(without=[{}]))),
    "lock: an upstream that is a number": ("lock", _lock(lambda d: d.update(upstream=1))),
    "lock: half a surrogate pair": ("lock", _lock(lambda d: d.update(stack="\ud800"))),
    "memo: files that are a text": ("memo", _memo(lambda d: d["steps"][0].__setitem__(2, "x"))),
    "memo: an id that is none": ("memo", _memo(lambda d: d.update(tip_commit="--output=x"))),
    "memo: a mode that is none": ("memo", _memo(lambda d: d["steps"][0][2][0].__setitem__(1, [0o40000, "a" * 40]))),
    "memo: a pack elsewhere": ("memo", _memo(lambda d: d.update(pack="../../" + d["pack"]))),
    "manifest cache: a text where a mapping is due": (
        "manifest cache",
        b'{"upstreams": "x", "stacks": [], "profiles": [], "practice": null}',
    ),
    "manifest cache: nested deeply": ("manifest cache", b"[" * 100_000),
    "RECORD: a field longer than CSV allows": ("RECORD", b"x" * 140_000 + b",,\n"),
    "RECORD: a NUL": ("RECORD", b"a\0b,,\n"),
    "bundle: a source whose member is a list": ("bundle", _source_without_name),
    "zip: a central directory before the file's start": ("zip archive", _zip_with_place),
}


@pytest.mark.parametrize("name", KEPT)
def test_found_before(name: str, tmp_path: Path) -> None:
    kind, made = KEPT[name]
    (tmp_path / "it").mkdir()
    reader = makers()[kind](tmp_path / "it")
    data = made if isinstance(made, bytes) else made(reader)
    taken = reader.read(data)
    assert taken == (kind == "RECORD" or name == "state: a folder that is not UTF-8")
