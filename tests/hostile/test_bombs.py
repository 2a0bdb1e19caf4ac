"""Bombs, the real sizes: each in a process of its own, whose peak memory the kernel tells and which is held against a stated bound.

`python tests/hostile/test_bombs.py` prints the table of docs/hostile-input.md. Those of more than a few seconds are marked slow
(`make test-bombs`).
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import bombs
from bombs import MIB, image_of, write_crowded_zip, write_gzip, write_zip

BOUND_MIB = 768
"""What a run may take at most with the limits as they are: 256 packed, four times a file of 64, names and the tool itself."""
# What takes more address space than this fails, so that a fault does not take the machine with it.
LIMIT_MIB = 3072

# argv: an archive, a folder for the base. What `fetch` does with an archive, up to the base in the cache.
RUNNER = """
import gc, hashlib, sys
from pathlib import Path
gc.disable()
from patchctl.errors import PatchctlError
from patchctl.manifest.types import Sdist
from patchctl.source import cache
from patchctl.source.archive import read_archive
from patchctl.source.sdist import write_commit
archive, folder = Path(sys.argv[1]), Path(sys.argv[2])
with archive.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else None
digest = digest or hashlib.sha256(archive.read_bytes()).hexdigest()
try:
    write_commit(cache.new_repository(folder), read_archive(archive, digest), "demo", Sdist(version="1.0", sha256=digest))
    print("taken")
except PatchctlError as error:
    print(f"{error.code} {error.what}")
"""


# argv: a patch file, and a folder that is not used. What every verb does with a patch first.
PATCH_RUNNER = """
import sys
from pathlib import Path
from patchctl.errors import PatchctlError
from patchctl.stack.patches import load_patch
try:
    load_patch(Path(sys.argv[1]), Path(sys.argv[1]).parent)
    print("taken")
except PatchctlError as error:
    print(f"{error.code} {error.what}")
"""

# argv: an image, and a folder to unpack into. What `image verify` does with it first.
IMAGE_RUNNER = """
import sys
from pathlib import Path, PurePosixPath
from patchctl.errors import PatchctlError
from patchctl.image.image_archive import ImageFile, open_image
from patchctl.source.types import ImageLimits
to = Path(sys.argv[2])
to.mkdir()
try:
    with open_image(ImageFile(Path(sys.argv[1]), "image.tar"), ImageLimits()) as image:
        image.unpack(to, [PurePosixPath("/opt/patched")])
    print("taken")
except PatchctlError as error:
    print(f"{error.code} {error.what}")
"""


@dataclass(frozen=True)
class Bomb:
    """`make` writes it to a path; `says` is what the tool ends with; `size` is what it is when unpacked."""

    make: Callable[[Path], Path]
    says: str
    size: str
    slow: bool = False
    runner: str = RUNNER


def _patch(path: Path, line: Iterable[bytes]) -> Path:
    """A patch that adds one line to a file."""
    head = b"From: A <a@example.com>\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nSubject: [PATCH] x\n\nWhy.\n---\n"
    with path.open("wb") as out:
        out.write(head + b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n")
        out.writelines(line)
        out.write(b"\n")
    return path


def _gz(pieces: Callable[[], object]) -> Callable[[Path], Path]:
    return lambda path: write_gzip(path, pieces())  # type: ignore[arg-type]


def _image(pieces: Callable[[], Iterable[bytes]]) -> Callable[[Path], Path]:
    return lambda path: image_of(path, write_gzip(path, pieces()).read_bytes())


BOMBS = {
    "zeros": Bomb(_gz(lambda: bombs.zero_files(512)), "3 it unpacks to more than 100 times", "512 MiB of zeros"),
    "one_file": Bomb(_gz(lambda: bombs.one_file(300)), "3 member demo-1.0/f: announces", "a file of 300 MiB"),
    "zip": Bomb(lambda p: write_zip(p, 8, 60), "3 it unpacks to more than 100 times", "480 MiB of zeros in a zip"),
    "crowded_zip": Bomb(
        lambda p: write_crowded_zip(p, 2_000_000),
        "3 more than 100000 names",
        "2,000,000 names, 120 MiB packed",
    ),
    "many_files": Bomb(_gz(lambda: bombs.many_files(120_000)), "3 more than 100000 names", "120,000 files", slow=True),
    "folders": Bomb(_gz(lambda: bombs.folders(300_000)), "3 more than 100000 names", "300,000 folders", slow=True),
    "pax_headers": Bomb(
        _gz(lambda: bombs.pax_headers(30_000)), "3 duplicate extended header", "30,000 extended headers"
    ),
    "behind_the_end": Bomb(
        _gz(lambda: bombs.behind_the_end(400)), "3 it unpacks to more than 100 times", "400 MiB behind the end"
    ),
    "long_names": Bomb(_gz(lambda: bombs.long_names(20_000)), "taken", "20,000 names of 1,000 bytes", slow=True),
    "patch_with_a_line_of_300_mib": Bomb(
        lambda p: _patch(p, [b"+", *bombs.zeros(300 * MIB)]),
        "2 .*larger than 256 MiB",
        "a patch of 300 MiB in one line",
        runner=PATCH_RUNNER,
    ),
    "patch_with_a_line_of_100_mib": Bomb(
        lambda p: _patch(p, [b"+", *[b"x" * MIB] * 100]),
        "2 a line is longer than 4 MiB",
        "a patch of 100 MiB in one line",
        runner=PATCH_RUNNER,
    ),
    "zeros_of_5_gib": Bomb(
        _gz(lambda: bombs.zero_files(5120)), "3 it unpacks to more than 100 times", "5 GiB of zeros", slow=True
    ),
    "image_of_zeros": Bomb(
        _image(lambda: bombs.member(b"opt/patched/f", 512 * MIB, bombs.zeros(512 * MIB))),
        "2 '0/layer.tar' unpacks to more than 100 times",
        "an image's layer of 512 MiB of zeros",
        runner=IMAGE_RUNNER,
    ),
    "image_with_a_name_of_512_mib": Bomb(
        _image(lambda: bombs.member(b"name", 512 * MIB, bombs.zeros(512 * MIB), b"L")),
        "2 .*an extended header announces",
        "a layer with a name of 512 MiB",
        runner=IMAGE_RUNNER,
    ),
    "image_of_many_names": Bomb(
        _image(lambda: bombs.many_files(600_000)),
        "taken",
        "a layer of 600,000 files elsewhere",
        slow=True,
        runner=IMAGE_RUNNER,
    ),
    "noise": Bomb(
        _gz(lambda: bombs.noise_files(3, 63)), "taken", "189 MiB that do not pack, in files of 63 MiB", slow=True
    ),
    "as_many_files_as_may_be": Bomb(_gz(lambda: bombs.many_files(99_000)), "taken", "99,000 files", slow=True),
}


FAMILIES = {RUNNER: "Archives", PATCH_RUNNER: "Parser bombs", IMAGE_RUNNER: "Images"}


def exploded(bomb: Bomb, folder: Path) -> tuple[str, int, float, int]:
    """What the tool says of it, its peak memory in MiB, its seconds, and the bomb's size in bytes."""
    archive, out = bomb.make(folder / "archive"), folder / "out"
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_MIB * MIB, LIMIT_MIB * MIB))
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        os.execv(sys.executable, [sys.executable, "-c", bomb.runner, str(archive), str(folder / "base.git")])
    _, status, used = os.wait4(pid, 0)
    assert status == 0, status
    return out.read_text().strip(), used.ru_maxrss // 1024, time.monotonic() - begun, archive.stat().st_size


def _case(name: str, bomb: Bomb) -> Any:
    family = pytest.mark.family(FAMILIES[bomb.runner])
    return pytest.param(name, marks=[family, pytest.mark.slow] if bomb.slow else [family])


@pytest.mark.heavy("archives of many megabytes, with their peak memory")
@pytest.mark.parametrize("name", [_case(*item) for item in BOMBS.items()])
def test_a_bomb_stays_under_the_bound(name: str, tmp_path: Path) -> None:
    said, peak, _, _ = exploded(BOMBS[name], tmp_path)
    assert re.match(BOMBS[name].says, said), said
    assert peak < BOUND_MIB
    assert said == "taken" or not list(tmp_path.glob("base.git/objects/pack/*"))


@pytest.mark.heavy("archives of many megabytes, with their peak memory")
def test_the_bound_is_one_that_a_bomb_could_pass(tmp_path: Path) -> None:
    """A program that unpacks the same bomb at once needs more than the bound: the measure measures."""
    archive = BOMBS["one_file"].make(tmp_path / "archive")
    pid = os.fork()
    if pid == 0:
        program = f"import gzip; a = gzip.decompress(open({str(archive)!r}, 'rb').read()); b = a + a; print(len(b))"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, "-c", program])
    assert os.wait4(pid, 0)[2].ru_maxrss // 1024 > BOUND_MIB


def main() -> None:
    """The measured table."""
    print("| bomb | packed | peak memory | time | what is said |\n|---|---|---|---|---|")
    for bomb in BOMBS.values():
        with TemporaryDirectory() as folder:
            said, peak, seconds, size = exploded(bomb, Path(folder))
        print(f"| {bomb.size} | {size / MIB:.1f} MiB | {peak} MiB | {seconds:.1f} s | {said.partition(':')[0][:60]} |")


if __name__ == "__main__":
    main()
