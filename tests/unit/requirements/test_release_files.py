"""Which files of a release a lock has the digests of: what its platform and its Python can install, and nothing else."""

from __future__ import annotations

import pytest

from patchctl.manifest.requirement_types import Platform
from patchctl.requirements.relock import fitting, listed

FITS: dict[str, bool] = {
    "a-1-py3-none-any.whl": True,
    "a-1-py2.py3-none-any.whl": True,
    "a-1-py311-none-any.whl": True,
    "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl": True,
    "a-1-cp311-cp311-manylinux1_x86_64.whl": True,
    "a-1-cp38-abi3-manylinux_2_28_x86_64.whl": True,
    "a-1-cp311-none-manylinux_2_28_x86_64.whl": True,
    "a-1-cp311-cp311-manylinux_2_34_x86_64.whl": True,  # glibc of the machine, which the lock does not know
    "a-1-cp311-cp311-linux_x86_64.whl": True,
    "a-1-1-cp311-cp311-manylinux_2_28_x86_64.whl": True,  # with the number of a build
    "a-1-py2-none-any.whl": False,
    "a-1-py312-none-any.whl": False,
    "a-1-cp312-cp312-manylinux_2_28_x86_64.whl": False,
    "a-1-cp312-abi3-manylinux_2_28_x86_64.whl": False,
    "a-1-cp311-cp311d-manylinux_2_28_x86_64.whl": False,
    "a-1-cp311-cp311-manylinux_2_28_aarch64.whl": False,
    "a-1-cp311-cp311-musllinux_1_2_x86_64.whl": False,
    "a-1-cp311-cp311-macosx_11_0_arm64.whl": False,
    "a-1-cp311-cp311-win_amd64.whl": False,
    "a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl": False,
}
SDIST = "a-1.tar.gz"


@pytest.mark.parametrize(("file", "fits"), FITS.items())
def test_a_wheel_that_fits(file: str, fits: bool) -> None:
    assert (file in fitting([file, SDIST], "x86_64", "3.11")) is fits


@pytest.mark.parametrize(
    ("platform", "python", "kept"),
    [
        ("x86_64", "3.12", "a-1-cp312-cp312-manylinux_2_17_x86_64.whl"),
        ("aarch64", "3.12", "a-1-cp312-cp312-manylinux_2_17_aarch64.whl"),
        ("aarch64", "3.10", SDIST),
    ],
)
def test_it_is_of_the_platform_and_the_python(platform: Platform, python: str, kept: str) -> None:
    wheels = [f"a-1-cp312-cp312-manylinux_2_17_{name}.whl" for name in ("x86_64", "aarch64", "ppc64le")]
    assert fitting([*wheels, SDIST], platform, python) == [kept]


def test_the_sources_stay_where_only_a_newer_glibc_has_a_wheel() -> None:
    """A machine with the oldest glibc that the lock is for builds it."""
    assert fitting([SDIST], "x86_64", "3.11") == [SDIST]
    newer = "a-1-cp311-cp311-manylinux_2_34_x86_64.whl"
    assert fitting([newer, SDIST], "x86_64", "3.11") == [newer, SDIST]
    older = "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert fitting([newer, older, SDIST], "x86_64", "3.11") == [newer, older]


def test_a_name_that_nobody_can_read_stays() -> None:
    assert fitting(["a-1-whatever.whl", "a-1-py3-none-any.whl"], "x86_64", "3.11") == [
        "a-1-whatever.whl",
        "a-1-py3-none-any.whl",
    ]


UV = f"""lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "antlr4-python3-runtime"
version = "4.9.3"
sdist = {{ url = "https://a.example/a/antlr4-python3-runtime-4.9.3.tar.gz", size = 117034, hashes = {{ sha256 = "{"1" * 64}" }} }}

[[packages]]
name = "frozenlist"
version = "1.8.0"
index = "https://a.example/simple"
sdist = {{ url = "https://a.example/frozenlist-1.8.0.tar.gz", hashes = {{ sha256 = "{"2" * 64}" }} }}
wheels = [
    {{ url = "https://a.example/frozenlist-1.8.0%2Bcpu-py3-none-any.whl", upload-time = 2021-11-06T17:52:23Z, hashes = {{ sha256 = "{"3" * 64}" }} }},
    {{ url = "https://a.example/frozenlist-1.8.0-cp311-cp311-win32.whl", hashes = {{}} }},
    {{ path = "wheels/frozenlist-1.8.0-cp311-cp311-manylinux1_x86_64.whl", hashes = {{ sha256 = "{"4" * 64}" }} }},
]

[[packages]]
name = "bare"
version = "1"
wheels = [{{ url = "https://a.example/bare-1-py3-none-any.whl" }}]
"""


def test_what_uv_says_of_files() -> None:
    assert listed(UV) == {
        "antlr4-python3-runtime": {"antlr4-python3-runtime-4.9.3.tar.gz": f"sha256:{'1' * 64}"},
        "frozenlist": {
            "frozenlist-1.8.0.tar.gz": f"sha256:{'2' * 64}",
            "frozenlist-1.8.0+cpu-py3-none-any.whl": f"sha256:{'3' * 64}",
            "frozenlist-1.8.0-cp311-cp311-manylinux1_x86_64.whl": f"sha256:{'4' * 64}",
        },
        "bare": {},
    }
    assert listed('lock-version = "1.0"\n') == {}  # of no package
