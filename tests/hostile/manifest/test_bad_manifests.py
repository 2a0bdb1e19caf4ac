"""Every file in bad/ has one fault, which its name says; the .txt beside it holds each message in full, with its place.

A line there is `LINE:COLUMN KEY: MESSAGE`. One that ends in `...` is not compared further: the words after it come from
libyaml or from PyYAML's own parser, which are tried both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from patchctl.errors import BadManifest, Where
from patchctl.manifest.diagnostics import SHOWN, InvalidManifest
from patchctl.manifest.files import MAX_BYTES
from patchctl.manifest.load import loads, read
from patchctl.manifest.schema import models
from patchctl.manifest.types import Profile, Stack

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))
SECRETS = ("secret", "sometoken")


def model_of(path: Path) -> type:
    return models()[path.name.partition("-")[0]]


def refused(path: Path) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        read(path, model_of(path))
    return caught.value


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML was built without libyaml")
    return str(request.param)


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_every_fault_is_named_at_its_place(path: Path, parser: str) -> None:
    found = [f"{p.line}:{p.column} {p}" for p in refused(path).problems]
    expected = path.with_suffix(".txt").read_text().splitlines()
    assert expected
    if expected[0].endswith("..."):
        assert [line.partition(":")[0] for line in found] == [line.partition(":")[0] for line in expected]
        if parser == "libyaml":
            assert found[0].startswith(expected[0][:-3])
    else:
        assert found == expected


@pytest.mark.family("YAML")
@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_the_error_names_the_file_and_shows_nothing_dangerous(path: Path) -> None:
    error = refused(path)
    assert isinstance(error, BadManifest)
    assert error.code == 2
    assert isinstance(error.where, Where)
    assert Path(error.where.file).name == path.name
    assert error.where.line == error.problems[0].line
    lines = str(error).splitlines()
    assert len(lines) == min(len(error.problems), SHOWN)
    assert all(Path(line.partition(".yaml:")[0]).name == path.stem for line in lines)
    assert all(c.isprintable() for line in lines for c in line)
    assert not any(secret in str(error) for secret in SECRETS)


def test_every_expectation_has_its_manifest() -> None:
    assert {p.stem for p in BAD} == {p.stem for p in (Path(__file__).parent / "bad").glob("*.txt")}
    assert len(BAD) > 100


def test_all_faults_of_a_file_are_told_at_once() -> None:
    data = b"schema: 2\nname: V\nsumary: x\nstacks: {greeter: 1.0}\nstacks: {}\nruntime:\n  torch: &x 2.9\n"
    with pytest.raises(InvalidManifest) as caught:
        loads(data, Profile, "p.yaml")
    assert [(p.line, p.key) for p in caught.value.problems] == [
        (1, "summary"),
        (1, "schema"),
        (2, "name"),
        (3, "sumary"),
        (4, "stacks.greeter"),
        (5, "stacks"),
        (7, "runtime.torch"),
        (7, "runtime.torch"),
    ]
    assert caught.value.as_json()["problems"] == [
        {"file": p.file, "line": p.line, "column": p.column, "key": p.key, "what": p.what}
        for p in caught.value.problems
    ]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_bytes(b"schema: 1\n" + b"#" * MAX_BYTES)
    with pytest.raises(InvalidManifest, match=f"the file is larger than {MAX_BYTES} bytes"):
        read(path, Stack)


@pytest.mark.parametrize(
    "data",
    [
        b"note: " + b"a" * (MAX_BYTES - 10),
        b"patches:\n" + b"- 1\n" * 60_000,
        b"x" * 100_000 + b": 1\n",
        b"a: 1\n" * 50_000,
    ],
    ids=["one_long_text", "many_items", "one_long_key", "one_key_many_times"],
)
def test_the_largest_files_give_a_short_answer(data: bytes) -> None:
    with pytest.raises(InvalidManifest) as caught:
        loads(data, Stack, "stack.yaml")
    assert len(str(caught.value)) < 60_000
    assert str(caught.value).count("\n") <= SHOWN


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    import os

    path = tmp_path / "stack.yaml"
    os.mkfifo(path)
    with pytest.raises(InvalidManifest, match="expected a regular file"):
        read(path, Stack)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"gone\.yaml:1: cannot be read: No such file"):
        read(tmp_path / "gone.yaml", Stack)
