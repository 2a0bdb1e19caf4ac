"""What files of trees and scripts declare is read, and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.errors import BadManifest
from patchctl.requirements.declared import Declared, changes, parse
from patchctl.requirements.lockfile import dependencies, imported


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("numpy<2.0.0\n", ["numpy<2.0.0"]),
        ("# a remark\n\ntorch==2.9.0 # why\n", ["torch==2.9.0"]),
        ("#--pre\n--extra-index-url https://example.com/x\ncmake>=3.26", ["cmake>=3.26"]),
        ("protobuf >= 6.30.0 # needed\ngrpcio>=1.76.0", ["protobuf>=6.30.0", "grpcio>=1.76.0"]),
        ('six>=1.16.0; python_version > "3.11"', ['six>=1.16.0; python_version > "3.11"']),
        ("fastapi[standard] >= 0.115.0", ["fastapi[standard]>=0.115.0"]),
    ],
)
def test_lines_for_pip(text: str, wanted: list[str]) -> None:
    assert list(parse("requirements.txt", text.encode())) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("setup(name='x', install_requires=['numpy<2', 'ray[default]>=2.41.0'])", ["numpy<2", "ray[default]>=2.41.0"]),
        ("needs = ['a']\nfrom setuptools import setup\nsetup(install_requires=needs)", ["a"]),
        ("import os\nos._exit(9)\nsetup(install_requires=())", []),
    ],
)
def test_a_setup_py(text: str, wanted: list[str]) -> None:
    assert list(parse("setup.py", text.encode())) == wanted


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("setup.py", "setup(install_requires=open('x').read().split())", "not a list of string literals"),
        ("setup.py", "setup(install_requires=needs)", "not a list of string literals"),
        ("setup.py", "setup(name='x')", "not a list of string literals"),
        ("setup.py", "setup(install_requires=['a b'])", "not a requirement"),
        ("r.txt", "-r common.txt\n", "includes another file"),
        ("r.txt", "numpy<2\nnumpy <> 2\n", "r.txt:2: not a requirement"),
    ],
)
def test_what_cannot_be_told_is_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(BadManifest) as refused:
        list(parse(name, text.encode()))
    assert says in str(refused.value)


PROJECT = """[project]
name = "Of.Greeter"
dependencies = ["numpy>=2"]
dynamic = ["version"]
[project.optional-dependencies]
Core_1 = ["of-greeter[queue, core-1]", "six ; python_version < '3.12'"]
queue = ["TransferQueue>=0.1.10"]
gpu = ["cupy"]
"""


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("pyproject.toml", ["numpy>=2"]),
        ("pyproject.toml[core-1]", ["numpy>=2", 'six; python_version < "3.12"', "TransferQueue>=0.1.10"]),
        ("sub/pyproject.toml[queue,gpu]", ["numpy>=2", "TransferQueue>=0.1.10", "cupy"]),
    ],
)
def test_a_pyproject(name: str, wanted: list[str]) -> None:
    pytest.importorskip("tomllib")
    assert list(parse(name, PROJECT.encode())) == wanted


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("pyproject.toml[cor]", PROJECT, "has no extra cor; it has core-1, gpu, queue"),
        ("pyproject.toml", PROJECT.replace("dependencies = [", "#").replace("version", "dependencies"), "are dynamic"),
        ("pyproject.toml[gpu]", PROJECT.replace('"cupy"', '"cu py"'), "not a requirement"),
        ("pyproject.toml[gpu]", PROJECT.replace('["cupy"]', "5"), "not PEP 621's [project]"),
        ("pyproject.toml", "[project", "not PEP 621's [project]"),
        ("pyproject.toml", "[tool.x]", "not PEP 621's [project]"),
    ],
)
def test_what_a_pyproject_does_not_tell(name: str, text: str, says: str) -> None:
    pytest.importorskip("tomllib")
    with pytest.raises(BadManifest) as refused:
        list(parse(name, text.encode()))
    assert says in str(refused.value)


def declared(file: str, *requirements: str) -> Declared:
    return Declared("clock", "v1", file, "0" * 40, requirements)


def test_what_changed_between_two_pins() -> None:
    old = [declared("a.txt", "kept<2", "Gone_Away", "limits>=1", 'twice<2; python_version < "3"', "twice>=2")]
    new = [declared("a.txt", "limits>=1.5", "new", "kept<2", "twice>=2"), declared("b.txt", "of-a-new-file")]
    assert [*changes([*old, declared("not-read-now.txt", "x")], new)] == [
        "clock/a.txt: no longer asks for Gone_Away",
        "clock/a.txt: asks for limits>=1.5, where it was limits>=1",
        "clock/a.txt: asks for new, and did not",
        'clock/a.txt: asks for twice>=2, where it was twice<2; python_version < "3" and twice>=2',
        "clock/b.txt: asks for of-a-new-file, and did not",
    ]


def test_a_script_with_a_block(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    (tmp_path / "beside.py").write_text("")
    file.write_text(
        '"""Says."""\n\n# /// script\n# requires-python = ">=3.10"\n# dependencies = [\n#   "mathruler>=0.1",\n# ]\n# ///\n'
        "import json, os.path\nimport beside\nfrom . import near\n\n\ndef late():\n    from mathruler.grader import grade\n"
    )
    assert dependencies(file) == ("mathruler>=0.1",)
    assert imported(file) == {"mathruler"}
    file.write_text("import json\n")
    assert (dependencies(file), imported(file)) == ((), set())
