"""What `import` takes in place of a tree's modules: each case is run by Python, too."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import write_files

from patchctl.workspace.imports import additions, forged, shadows

MODULES = {
    "space/core/__init__.py": "",
    "space/core/plain.py": "NAME = 'ours'\n",
    "space/old/deep/plain.py": "NAME = 'ours'\n",
    "space/core/inner/plain.py": "NAME = 'ours'\n",
}
FILES = {name.encode() for name in MODULES}
EVIL = "NAME = 'theirs'\n"


def imported(folder: Path, module: str, *options: str) -> str:
    """Which of the two Python takes, or the end of its error."""
    code = f"import {module} as m; print(getattr(m, 'NAME', 'ours'))"
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr[-300:]


@pytest.mark.parametrize(
    ("name", "hidden", "module"),
    [
        ("space.py", "space/", "space"),
        ("space/__init__.py", "space/", "space"),
        ("space/old.py", "space/old/", "space.old"),
        ("space/old/__init__.py", "space/old/", "space.old"),
        ("space/old/deep.py", "space/old/deep/", "space.old.deep"),
        ("space/core/inner.py", "space/core/inner/", "space.core.inner"),
    ],
)
def test_what_hides_a_namespace_package(tmp_path: Path, name: str, hidden: str, module: str) -> None:
    write_files(tmp_path, MODULES)
    assert (list(shadows(tmp_path, FILES)), list(additions(tmp_path, FILES))) == ([], [])
    assert imported(tmp_path, module) == "ours"
    write_files(tmp_path, {name: EVIL})
    assert imported(tmp_path, module) == "theirs"
    assert list(shadows(tmp_path, FILES)) == [(name.encode(), hidden.encode())]
    assert list(additions(tmp_path, FILES)) == []


def test_a_folder_of_another_package_hides_nothing_that_is_not_installed(tmp_path: Path) -> None:
    """In site-packages, where a wheel brings `examples/__init__.py` and the stack's folder of that name is in no wheel."""
    write_files(tmp_path, {"space/core/__init__.py": "", "space/old/__init__.py": EVIL})
    assert list(shadows(tmp_path, FILES)) == []


@pytest.mark.parametrize("name", ["space.abi3.so", "space/old.abi3.so", "space/core/inner.so"])
def test_an_extension_hides_a_namespace_package(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, MODULES | {name: "x"})
    assert [path for path, _ in shadows(tmp_path, FILES)] == [name.encode()]
    assert "file too short" in imported(tmp_path, name.partition(".")[0].replace("/", "."))


@pytest.mark.parametrize("name", ["space/mine.py", "space/old/mine/__init__.py"])
def test_a_module_in_a_namespace_package_is_an_addition(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, MODULES | {name: ""})
    assert list(additions(tmp_path, FILES)) == [name.encode()]
    assert list(shadows(tmp_path, FILES)) == []


def test_byte_code_in_place_of_a_module_that_is_gone(tmp_path: Path) -> None:
    write_files(tmp_path, MODULES | {"evil.py": EVIL})
    byte_code = tmp_path / "space/core/plain.pyc"
    py_compile.compile(str(tmp_path / "evil.py"), cfile=str(byte_code))
    assert imported(tmp_path, "space.core.plain") == "ours" and list(shadows(tmp_path, FILES)) == []
    (tmp_path / "space/core/plain.py").unlink()
    assert imported(tmp_path, "space.core.plain") == "theirs"
    assert list(shadows(tmp_path, FILES)) == [(b"space/core/plain.pyc", b"space/core/plain.py")]


def test_byte_code_of_any_optimization_is_compiled_again(tmp_path: Path) -> None:
    write_files(tmp_path, MODULES)
    source = str(tmp_path / "space/core/plain.py")
    made = Path(importlib.util.cache_from_source(source, optimization="3"))
    py_compile.compile(source, cfile=str(made), optimize=2)
    assert forged(tmp_path, FILES) == ([], [])
    made.write_bytes(made.read_bytes()[:16] + marshal.dumps(compile(EVIL, source, "exec")))
    assert imported(tmp_path, "space.core.plain", "-OOO") == "theirs"
    assert forged(tmp_path, FILES)[0] == [os.fsencode(made.relative_to(tmp_path))]


def test_byte_code_without_columns_is_no_forgery(tmp_path: Path) -> None:
    """As PYTHONNODEBUGRANGES has it made."""
    write_files(tmp_path, MODULES | {"space/core/plain.py": "def f(x):\n    return x.a + x.b\n"})
    options = [sys.executable, "-X", "no_debug_ranges", "-m", "compileall", "-q", "space"]
    subprocess.run(options, cwd=tmp_path, check=True)
    assert forged(tmp_path, FILES) == ([], [])


def test_a_fifo_in_place_of_byte_code_is_found_and_not_waited_for(tmp_path: Path) -> None:
    write_files(tmp_path, MODULES)
    made = Path(importlib.util.cache_from_source(str(tmp_path / "space/core/plain.py")))
    made.parent.mkdir()
    os.mkfifo(made)
    assert forged(tmp_path, FILES)[0] == [os.fsencode(made.relative_to(tmp_path))]
