"""`make release`, in a clone of this repository: what it asks for, and what it makes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from distribution import GIT_ENV, REPO, git

from patchctl import __version__

pytestmark = pytest.mark.skipif(not (REPO / ".git").exists(), reason="not a checkout of git")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--shared", str(REPO), str(tmp_path / "clone")], env=GIT_ENV, check=True)
    return tmp_path / "clone"


def release(clone: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "scripts/make_release.py", *options]
    return subprocess.run(line, cwd=clone, capture_output=True, text=True, check=False)


def refused(clone: Path, *options: str) -> str:
    done = release(clone, *options)
    assert done.returncode == 2 and not (clone / "dist").exists(), (done.stdout, done.stderr)
    return done.stderr


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_it_asks_where_the_project_is_hosted(clone: Path) -> None:
    assert "[project.urls]: where is the project hosted?" in refused(clone)


def test_the_changelog_has_the_version(clone: Path) -> None:
    edit(clone / "CHANGELOG.md", f"## {__version__} - ", "## 1.0 - ")
    assert f"CHANGELOG.md has no heading `## {__version__} - " in refused(clone, "--homepage", "none")


def test_what_is_unreleased_has_no_version(clone: Path) -> None:
    """Its notes would not say what is in it. A rehearsal without an address says so and goes on."""
    edit(
        clone / "pyproject.toml", "[project.scripts]", '[project.urls]\nRepository = "https://host"\n[project.scripts]'
    )
    edit(clone / "CHANGELOG.md", f"## {__version__} - ", f"- Something.\n\n## {__version__} - ")
    text = (clone / "CHANGELOG.md").read_text(encoding="utf-8")
    (clone / "CHANGELOG.md").write_text(
        re.sub(r"(?s)## Unreleased.*?- Something", "## Unreleased\n\n- Something", text)
    )
    assert "CHANGELOG.md has entries below Unreleased" in refused(clone)
    edit(clone / "CHANGELOG.md", "- Something.\n\n", "")
    assert "changes that are not committed" in refused(clone)


def test_the_version_is_the_newest_releases(clone: Path) -> None:
    edit(clone / "patchctl/__init__.py", __version__, "1.0")
    assert "the version is 1.0, and the newest release" in refused(clone, "--homepage", "none")


def test_what_is_not_committed_is_in_no_release(clone: Path) -> None:
    (clone / "patches/mine").write_text("mine\n")
    assert "changes that are not committed" in refused(clone, "--homepage", "none")


def test_a_key_that_cannot_sign_is_refused_before_anything_is_built(clone: Path) -> None:
    assert "not a signing key" in refused(clone, "--homepage", "none", "--sign", "README.md")


@pytest.mark.heavy("builds the wheel and the sdist twice, and installs them")
def test_a_release_is_what_its_sums_say_and_names_its_commit(clone: Path) -> None:
    """That both builds have the same bytes, and that the wheel runs, the target itself holds."""
    key = clone.with_name("key")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    done = release(clone, "--homepage", "none", "--sign", str(key))
    assert done.returncode == 0, done.stderr
    sums = (clone / "dist/SHA256SUMS").read_text().splitlines()
    names = [name for _, name in (line.split("  ") for line in sums)]
    wheel_name, sdist_name = f"patchctl-{__version__}-py3-none-any.whl", f"patchctl-{__version__}.tar.gz"
    assert {wheel_name, sdist_name} < {*names}
    bills = [json.loads((clone / "dist" / name).read_text()) for name in {*names} - {wheel_name, sdist_name}]
    assert {one["bomFormat"] for one in bills} == {"CycloneDX"} and len(bills) > 3
    allowed = clone.with_name("allowed")
    allowed.write_text(f"patchctl@localhost {key.with_suffix('.pub').read_text()}")
    checked = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "patchctl@localhost", "-n", "patchctl-release"]
    with (clone / "dist/SHA256SUMS").open("rb") as signed:
        subprocess.run([*checked, "-s", clone / "dist/SHA256SUMS.sig"], stdin=signed, check=True, capture_output=True)
    for digest, name in (line.split("  ") for line in sums):
        assert hashlib.sha256((clone / "dist" / name).read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(clone / "dist" / wheel_name) as wheel:
        assert wheel.read("patchctl/commit.txt").decode().strip() == git(clone, "rev-parse", "HEAD").strip()
        metadata = wheel.read(f"patchctl-{__version__}.dist-info/METADATA").decode()
    assert "Author-email: patchctl <patchctl@localhost>" in metadata and not re.search(
        r"(?m)^(Home-page|Project-URL)", metadata
    )
