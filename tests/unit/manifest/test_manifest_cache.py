"""The validated cache: the same answer, without the imports, and never a wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.distribution import Distribution

REPOSITORY = Path(__file__).parents[3]
PROBE = """
import json, sys
from pathlib import Path
from patchctl.manifest.distribution import Distribution
dist = Distribution.load(Path(sys.argv[1]), Path(sys.argv[2]))
loaded = [m for m in ("yaml", "_yaml") if m in sys.modules]
print(json.dumps([len(dist.stacks), loaded]))
"""


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "manifests").iterdir())


def load_apart(root: Path, cache: Path) -> tuple[int, list[str]]:
    """How many stacks another interpreter loads, and which of the slow modules it imported."""
    command = [sys.executable, "-c", PROBE, str(root), str(cache)]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout
    stacks, loaded = json.loads(out)
    return stacks, loaded


def test_the_second_run_does_not_import_yaml(root: Path, tmp_path: Path) -> None:
    stacks, loaded = load_apart(root, tmp_path / "cache")
    assert stacks == 3
    assert "yaml" in loaded
    assert load_apart(root, tmp_path / "cache") == (3, [])


def test_the_cached_answer_equals_the_validated_one(root: Path, tmp_path: Path) -> None:
    first = Distribution.load(root, tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 1
    assert Distribution.load(root, tmp_path / "cache") == first == Distribution.load(root)


def test_any_changed_byte_is_read_again(root: Path, tmp_path: Path) -> None:
    Distribution.load(root, tmp_path / "cache")
    profile = root / "manifests/profiles/plain.yaml"
    profile.write_text(profile.read_text().replace("as it is", "as it was"))
    assert Distribution.load(root, tmp_path / "cache").profile("plain").summary == "The greeter as it was."
    profile.write_text("nonsense")
    with pytest.raises(InvalidManifest):
        Distribution.load(root, tmp_path / "cache")


def test_a_renamed_file_is_read_again(root: Path, tmp_path: Path) -> None:
    Distribution.load(root, tmp_path / "cache")
    (root / "manifests/profiles/plain.yaml").rename(root / "manifests/profiles/plane.yaml")
    with pytest.raises(InvalidManifest, match="expected 'plane', the file's name"):
        Distribution.load(root, tmp_path / "cache")


def test_what_is_not_right_is_never_kept(root: Path, tmp_path: Path) -> None:
    (root / "patches/clock/v2/second/0001-bugfix-second.patch").unlink()
    with pytest.raises(InvalidManifest):
        Distribution.load(root, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "one_byte", "other_json", "folder"])
def test_a_damaged_entry_is_made_anew(root: Path, tmp_path: Path, damage: str) -> None:
    good = Distribution.load(root, tmp_path / "cache")
    entry = entries(tmp_path / "cache")[0]
    data = entry.read_bytes()
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    else:
        flipped = data.replace(b"2222222222", b"2222222223")
        entry.write_bytes({"empty": b"", "cut": data[:-40], "one_byte": flipped, "other_json": b"{}\n{}"}[damage])
    assert Distribution.load(root, tmp_path / "cache") == good
    if damage != "folder":
        assert entry.read_bytes() == data


def test_an_entry_with_a_right_digest_and_another_shape_is_made_anew(root: Path, tmp_path: Path) -> None:
    import hashlib

    good = Distribution.load(root, tmp_path / "cache")
    entry = entries(tmp_path / "cache")[0]
    body = entry.read_bytes().partition(b"\n")[2].replace(b'"patches":[', b'"patches":[7,')
    entry.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert Distribution.load(root, tmp_path / "cache") == good


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert len(Distribution.load(root, closed).stacks) == 3
    assert list(closed.iterdir()) == []


def test_a_cache_that_is_a_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert len(Distribution.load(root, tmp_path / "cache").stacks) == 3
    assert len(Distribution.load(root, Path("/dev/null/cache")).stacks) == 3


def test_nothing_half_written_stays(root: Path, tmp_path: Path) -> None:
    Distribution.load(root, tmp_path / "cache")
    assert [p.suffix for p in entries(tmp_path / "cache")] == [".json"]
