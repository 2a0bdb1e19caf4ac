"""Compile caches on a real disk: what is found, what is kept, and what is taken away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patchctl.errors import WrongUse
from patchctl.training.preflight.caches import Cache, caches_of, clear, find_caches


def put(file: Path, size: int = 3, age: float = 1000.0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (age, age))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """The folder that training starts in, the home folder, and an environment."""
    start, home = tmp_path / "verl", tmp_path / "home"
    put(start / "kernel_meta" / "a.o", 3, 1000.0)
    put(start / "kernel_meta" / "deep" / "b.o", 4, 2000.0)
    put(start / "verl" / "trainer.py")
    put(home / "atc_data" / "kernel_cache" / "c.o")
    put(home / ".cache" / "huggingface" / "hub" / "model.safetensors")
    put(home / ".cache" / "modelscope" / "hub" / "model.safetensors")
    put(home / ".cache" / "vllm" / "torch_compile_cache" / "d.py")
    put(home / ".cache" / "torch_extensions" / "e.so")
    (home / ".torchair_cache").mkdir()
    return start, home, {"HOME": str(home)}


def test_compiled_code_is_found_and_downloads_are_not(places: tuple[Path, Path, dict[str, str]]) -> None:
    start, home, environment = places
    found = find_caches([start], environment)
    assert found == [
        Cache(str(start / "kernel_meta"), 7, 2000.0, 1000.0),
        Cache(str(home / "atc_data"), 3, 1000.0, 1000.0),
        Cache(str(home / ".cache/torch_extensions"), 3, 1000.0, 1000.0),
        Cache(str(home / ".cache/vllm/torch_compile_cache"), 3, 1000.0, 1000.0),
    ]


def test_the_folder_of_a_variable_is_never_one_itself(places: tuple[Path, Path, dict[str, str]]) -> None:
    start, home, _ = places
    put(home / "mine" / "kernel_cache" / "a.o")
    put(home / "mine" / "thesis.tex")
    found = find_caches([], {"ASCEND_CACHE_PATH": str(home / "mine"), "ACL_OP_COMPILER_CACHE_DIR": str(home / "mine")})
    assert [c.path for c in found] == [str(home / "mine" / "kernel_cache")]
    assert find_caches([], {"ASCEND_CACHE_PATH": str(start)}) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "a.o")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "atc_data").symlink_to(tmp_path / "elsewhere")
    assert find_caches([tmp_path / "home"], {"HOME": str(tmp_path / "home")}) == []


def test_a_folder_with_downloads_in_it_is_kept(tmp_path: Path) -> None:
    put(tmp_path / "kernel_meta" / "huggingface" / "model.safetensors")
    assert find_caches([tmp_path], {}) == []


def test_clearing_takes_away_what_was_found_and_nothing_else(places: tuple[Path, Path, dict[str, str]]) -> None:
    start, home, environment = places
    found = find_caches([start], environment)
    assert clear(found[:2]) == [c.path for c in found[:2]]
    assert not (start / "kernel_meta").exists() and not (home / "atc_data").exists()
    assert (start / "verl/trainer.py").exists() and (home / ".cache/huggingface/hub/model.safetensors").exists()
    assert find_caches([start], environment) == found[2:]


def test_a_cache_that_cannot_be_taken_away_is_told(places: tuple[Path, Path, dict[str, str]]) -> None:
    start, home, environment = places
    found = find_caches([start], environment)
    with pytest.raises(WrongUse, match="nothing/there cannot be taken away: No such file") as refused:
        clear([found[0], Cache(str(home / "nothing/there"), 1, 1.0, 1.0), found[1]])
    assert refused.value.hint == f"taken away before it: {found[0].path}"
    assert (home / "atc_data").exists()


def test_caches_of_a_recording() -> None:
    row = {"path": "/a", "bytes": 1, "modified": 2.5}
    assert caches_of([{**row, "oldest": 1.5}]) == [Cache("/a", 1, 2.5, 1.5)]
    assert caches_of([row]) == [Cache("/a", 1, 2.5, 2.5)]  # as it was recorded before the oldest file was looked at
    for data in (None, {"path": "/a"}, [1], [{"path": "/a"}], [{"path": "/a", "bytes": "x", "modified": 1}]):
        assert caches_of(data) is None
