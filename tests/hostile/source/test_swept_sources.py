"""Every hostile archive, bundle and index page through the tool itself, while the system watches.

The archives are pinned by the distribution that they belong to: whoever wrote it could compute the digest too.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import warnings
from pathlib import Path

import pytest
from distribution import Made, Upstream, make_distribution
from harmless import assert_harmless
from on_disk import snapshot
from source_builders import Answer, index_server
from test_hostile_archives import END, GZIP_FAULTS, TAR_FAULTS, ZIP_FAULTS, file
from test_hostile_bundles import FORGED, forged, good, made
from test_hostile_index import PAGES
from watched import Watched, run_all

pytestmark = pytest.mark.heavy("thousands of changed inputs")

__all__ = ["good", "made"]
GOOD = file(b"demo-1.0/a.py")


def archives() -> dict[str, bytes]:
    """Every archive of the corpus by the name of its fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {f"tar {k}": gzip.compress(stream + END, mtime=0) for k, (stream, _, _) in TAR_FAULTS.items()}
    found |= {f"gzip {k}": damage(gzip.compress(GOOD + END, mtime=0)) for k, (damage, _) in GZIP_FAULTS.items()}
    return found | {f"zip {k}": data for k, (data, _) in ZIP_FAULTS.items()}


def pinning(root: Path, made: Made, archive: bytes, version: str) -> Path:
    """The distribution `made` in `root`, with `archive` pinned as this version's source distribution."""
    for path in sorted(p for p in made.root.rglob("*") if p.is_file()):
        target = root / path.relative_to(made.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text().replace("0" * 64, hashlib.sha256(archive).hexdigest())
        target.write_text(text.replace('version: "1.0"', f'version: "{version}"'))
    return root


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A distribution with one upstream, of a source distribution alone, whose pinned digest is zeros."""
    made = make_distribution(
        tmp_path_factory.mktemp("pinned"), (Upstream("demo", "v1", {"a.py": "x\n"}, sdist=("a.py",)),)
    )
    stack = made.root / "manifests/stacks/demo/v1.yaml"
    digest = hashlib.sha256((made.index / "demo-1.0.tar.gz").read_bytes()).hexdigest()
    stack.write_text(stack.read_text().replace(digest, "0" * 64))
    return made


def assert_kept_out(done: Watched, *allowed: Path) -> None:
    assert done.outside(*allowed) == []
    names = {os.path.basename(path) for path in done.executed or ()}
    assert {n for n in names if not n.startswith(("python", "pip"))} <= {"git", "ldconfig", "sh", "gcc", "uname"}, names


def test_archives(pinned: Made, tmp_path: Path) -> None:
    """One cache for all: an archive that was taken would be found in it."""
    home, cache, index, cases = tmp_path / "home", tmp_path / "cache", tmp_path / "index", archives()
    index.mkdir()
    lines = []
    for number, (fault, archive) in enumerate(cases.items()):
        root = pinning(tmp_path / f"root/{number}", pinned, archive, f"1.{number}")
        (index / f"demo-1.{number}{'.zip' if fault.startswith('zip') else '.tar.gz'}").write_bytes(archive)
        lines.append([f"--root={root}", f"--cache={cache}", "fetch", "-p", "full", "--source", "sdist"])
    before = {top: snapshot(top) for top in (tmp_path / "root", index)}
    done = run_all(lines, home=home, results=tmp_path / "results", env={"PIP_FIND_LINKS": str(index)})
    assert_kept_out(done, cache, home, tmp_path / "results")
    assert {top: snapshot(top) for top in before} == before
    assert not (cache / "sdist").exists() and not list((cache / "tmp").glob("*"))
    for fault, run in zip(cases, done.runs, strict=True):
        assert run.code == 3 and "download." in run.stderr, (fault, run)
        assert_harmless(run.stdout, run.stderr, where=fault)


def test_bundles(good: bytes, tmp_path: Path) -> None:
    home, cache, lines = tmp_path / "home", tmp_path / "cache", []
    for number, (change, more, _) in enumerate(FORGED.values()):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(forged(good, change, more))
        lines.append([f"--cache={cache}", "bundle", "verify", str(path)])
        lines.append([f"--cache={cache}", "bundle", "unpack", str(path), "--to", str(tmp_path / "to" / str(number))])
        lines.append(
            [f"--cache={cache}", "apply", "--bundle", str(path), "-p", "full", "-w", str(tmp_path / f"ws/{number}")]
        )
    done = run_all(lines, home=home, results=tmp_path / "results")
    assert_kept_out(done, cache, home, tmp_path / "results")
    assert not (tmp_path / "to").exists() and not (tmp_path / "ws").exists()
    assert not (cache / "bundles").exists() and not (cache / "git").exists()
    for line, run in zip(lines, done.runs, strict=True):
        assert run.code in (2, 3), (line, run)
        assert_harmless(run.stdout, run.stderr, where=" ".join(line[1:]))
        assert ".tar" in run.stderr


def test_pages_of_an_index(pinned: Made, tmp_path: Path) -> None:
    """Every page as an index of its own, all asked in one run: each one's reason is told, and the next one is asked."""
    home, cache = tmp_path / "home", tmp_path / "cache"
    with index_server() as index:
        for number, (body, headers) in enumerate(PAGES.values()):
            index.answers[f"/{number}/demo/"] = Answer(body, headers=headers)
        urls = " ".join(f"{index.url}/{number}/" for number in range(len(PAGES)))
        line = [f"--root={pinned.root}", f"--cache={cache}", "fetch", "-p", "full", "--source", "sdist"]
        env = {
            "PIP_NO_INDEX": "0",
            "PIP_INDEX_URL": urls.partition(" ")[0],
            "PIP_EXTRA_INDEX_URL": urls.partition(" ")[2],
        }
        done = run_all([line, [*line, "--json"]], home=home, results=tmp_path / "results", env=env)
    assert_kept_out(done, cache, home, tmp_path / "results")
    for form, run in zip(("text", "json"), done.runs, strict=True):
        assert run.code == 3
        assert_harmless(run.stdout, run.stderr, where=form, form=form)
        assert run.stderr.count("  tried ") >= len(PAGES)
    assert not (cache / "sdist").exists()
