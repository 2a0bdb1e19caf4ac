"""The cache holds whole bases or nothing, whoever is killed and whoever else is writing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from source_builders import (
    Answer,
    IndexServer,
    Repo,
    demo_stack,
    demo_upstream,
    make_repo,
    sdist_members,
    sha256,
    tar_gz,
)

from patchctl.errors import SourceMismatch, WrongUse
from patchctl.manifest.types import Sdist
from patchctl.source.cache import BaseRecord, entries, new_repository, place, seal, staging
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain
from patchctl.source.places import IndexConfig
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

ARCHIVE = tar_gz(sdist_members())
PINNED = Sdist(version="1.0", sha256=sha256(ARCHIVE))
FETCH = """
import sys
from pathlib import Path
from patchctl.manifest.types import Pin, Sdist, Stack, Upstream
from patchctl.terminal.progress import Progress
from patchctl.source.obtain import obtain
from patchctl.source.types import SourceOptions
cache, mirror, commit, sha256 = sys.argv[1:]
pin = Pin(commit=commit, sdist=Sdist(version="1.0", sha256=sha256))
stack = Stack(schema=1, upstream="demo", name="v1", pin=pin)
upstream = Upstream(summary="", license="MIT", sdist="demo")
options = SourceOptions(cache=Path(cache), source="git" if mirror else "sdist", mirrors={"demo": [mirror]} if mirror else {})
print("ready", flush=True)
print(obtain(upstream, stack, options, Progress()).commit, flush=True)
"""


def start(cache: Path, mirror: str = "", commit: str = "0" * 40) -> subprocess.Popen[str]:
    """A process that fetches; it has imported everything when this returns."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, str(cache), mirror, commit, PINNED.sha256],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def check_all(cache: Path) -> int:
    found = entries(cache)
    for repo, record in found:
        check_base(Base("demo", record.form, repo, record.commit, record.tree, record.origin, 0))
    return len(found)


@pytest.fixture
def big(tmp_path: Path) -> Repo:
    return make_repo(tmp_path / "big", {f"d{i % 20}/f{i}": os.urandom(20_000) for i in range(150)})


@pytest.mark.heavy("kills a fetch at eight times")
def test_a_git_fetch_that_is_killed_at_any_time_leaves_nothing_half(big: Repo, options: SourceOptions) -> None:
    took = time.monotonic()
    start(options.cache.with_name("timed"), str(big.path), big.commit).wait(timeout=60)
    took = time.monotonic() - took
    whole = 0
    for step in range(8):
        cache = options.cache / str(step)
        process = start(cache, str(big.path), big.commit)
        time.sleep(took * step / 16)
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole += check_all(cache)
        again = replace(options, cache=cache, mirrors={"demo": [str(big.path)]})
        base = obtain(demo_upstream(), demo_stack(big.commit, big.tree), again, Progress())
        assert check_base(base) == 151
    assert whole < 8  # some were killed before the end, or this test shows nothing


def test_a_download_that_is_killed_leaves_nothing(
    index: IndexServer, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(ARCHIVE)))
        handler.end_headers()
        handler.wfile.write(ARCHIVE[: len(ARCHIVE) // 2])
        handler.wfile.flush()
        time.sleep(30)

    index.offer("demo-1.0.tar.gz", ARCHIVE)
    whole = index.answers["/files/demo-1.0.tar.gz"]
    index.answers["/files/demo-1.0.tar.gz"] = Answer(half)
    monkeypatch.setenv("PIP_INDEX_URL", index.simple)
    process = start(options.cache)
    while "/files/demo-1.0.tar.gz" not in index.paths():
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert entries(options.cache) == [] and not (options.cache / "sdist").exists()
    index.answers["/files/demo-1.0.tar.gz"] = whole
    monkeypatch.setattr("patchctl.source.package_index.machine_config", lambda: IndexConfig((index.simple,)))
    base = obtain(demo_upstream(sdist="demo"), demo_stack(sdist=PINNED), options, Progress())
    check_base(base)


def test_several_runs_may_fetch_the_same_at_once(big: Repo, options: SourceOptions) -> None:
    mirrored = replace(options, mirrors={"demo": [str(big.path)]})

    def fetch(_: int) -> Base:
        return obtain(demo_upstream(), demo_stack(big.commit, big.tree), mirrored, Progress())

    with ThreadPoolExecutor(6) as pool:
        bases = list(pool.map(fetch, range(6)))
    assert len({(b.repo, b.commit, b.tree) for b in bases}) == 1
    assert check_all(options.cache) == 1
    assert not list((options.cache / "tmp").iterdir())


def test_a_base_that_another_run_puts_there_while_it_is_looked_for(tmp_path: Path) -> None:
    """It is there or it is not; nobody sees it without its record."""
    record = BaseRecord("greeter", "git", "1" * 40, "2" * 40, "file:///nowhere")
    places = [(tmp_path / "staged" / f"{n}.git", tmp_path / "git" / f"{n}.git") for n in range(500)]
    for staged, _ in places:
        seal(new_repository(staged), record)

    look = """
import sys
from pathlib import Path
from patchctl.source.cache import read_record
print(flush=True)
for n in range(500):
    while read_record(Path(sys.argv[1], f"{n}.git")) is None:
        pass
"""
    with subprocess.Popen([sys.executable, "-c", look, tmp_path / "git"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        for staged, final in places:
            place(staged, final, replace=False)
    assert other.returncode == 0


def test_what_killed_runs_left_goes_after_a_day(options: SourceOptions) -> None:
    old, new = (options.cache / "tmp" / name for name in ("fetch-old", "fetch-new"))
    for folder in (old, new):
        (folder / "x").mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    with staging(options.cache) as folder:
        assert folder.is_dir()
    assert new.exists() and not old.exists() and not folder.exists()


@pytest.mark.parametrize("where", ["a file", "/proc/patchctl"])
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(WrongUse, match="cannot be written") as caught, staging(tmp_path / where):
        pass
    assert "PATCHCTL_CACHE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "extra": 2, "declared": []}', "\x00", "null"]
)
def test_a_damaged_record_is_a_mismatch_and_not_a_crash(repo: Repo, options: SourceOptions, text: str) -> None:
    mirrored = replace(options, mirrors={"demo": [str(repo.path)]})
    base = obtain(demo_upstream(), demo_stack(repo.commit), mirrored, Progress())
    (base.repo / "patchctl.json").write_text(text)
    with pytest.raises(SourceMismatch, match="record"):
        obtain(demo_upstream(), demo_stack(repo.commit), mirrored, Progress())
    (base.repo / "patchctl.json").unlink()
    with pytest.raises(SourceMismatch, match="record"):
        obtain(demo_upstream(), demo_stack(repo.commit), mirrored, Progress())
    again = obtain(demo_upstream(), demo_stack(repo.commit), replace(mirrored, refresh=True), Progress())
    assert check_base(again) == 3
