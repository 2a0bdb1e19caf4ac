"""What scripts/build_image.sh hands to the builder of a bundle: nothing that was not checked. The builds themselves are in tests/image."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from distribution import REPO, Made, make_distribution
from pins import distribution, oldest

from patchctl.catalog.chosen_release import on_release

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")

# Stands for docker: keeps what it is told and which bundle lies in the context, and ends before anything is built.
BUILDER = """#!/bin/bash
[[ $1 == build ]] || exit 0
printf '%s\\n' "$@" >"$LOG"
cp *.bundle "$LOG.bundle" 2>/dev/null
exit 42
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("image"), lock=True)


@pytest.fixture
def signed(made: Made, tmp_path: Path) -> Path:
    """A signed bundle, and `allowed` beside it."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    made.good("bundle", "create", "-p", "full", "-o", str(tmp_path / "full.tar"), "--sign", str(key))
    (tmp_path / "allowed").write_text(f"me@example.com {key.with_suffix('.pub').read_text()}")
    return tmp_path / "full.tar"


def build(folder: Path, *options: str, config: str = "", release: str = "") -> subprocess.CompletedProcess[str]:
    tool = folder / "docker"
    tool.write_text(BUILDER)
    tool.chmod(0o755)
    (folder / "config.yaml").write_text(config or "cache: /nowhere\n")
    env = {**os.environ, "LOG": str(folder / "log"), "PATCHCTL_CONFIG": str(folder / "config.yaml")}
    env["PATCHCTL_RELEASE"] = release
    line = [str(REPO / "scripts/build_image.sh"), "--tool", str(tool), *options]
    return subprocess.run(line, env=env, cwd=folder, capture_output=True, text=True, check=False)


def test_the_build_gets_what_was_signed_by_its_digest(signed: Path) -> None:
    folder = signed.parent
    done = build(folder, "--bundle", "full.tar", "--allowed-signers", "allowed")
    assert done.returncode == 42, done.stderr
    sha256 = hashlib.sha256(signed.read_bytes()).hexdigest()
    assert f"BUNDLE={sha256}.bundle" in (folder / "log").read_text().splitlines()
    assert (folder / "log.bundle").read_bytes() == signed.read_bytes()
    assert "signed by me@example.com" in done.stderr
    assert not (REPO / f"{sha256}.bundle").exists()


@pytest.mark.parametrize("asked", ["by-option", "by-configuration"])
def test_nothing_is_built_of_what_nobody_signed(signed: Path, asked: str) -> None:
    folder = signed.parent
    signed.with_name("full.tar.sig").unlink()
    config = f"bundles:\n  signatures: require\n  allowed_signers: {folder / 'allowed'}\n"
    options = ("--allowed-signers", "allowed") if asked == "by-option" else ()
    done = build(folder, "--bundle", "full.tar", *options, config="" if options else config)
    assert done.returncode == 3 and "has no signature" in done.stderr, done.stderr
    assert not (folder / "log").exists()


def test_signers_without_a_bundle_are_wrong_use(signed: Path) -> None:
    assert build(signed.parent, "--allowed-signers", "allowed").returncode == 2


def test_the_old_name_of_in_place_is_refused_with_the_new_one(tmp_path: Path) -> None:
    done = build(tmp_path, "--into")
    assert done.returncode == 2 and "called --in-place now" in done.stderr


def taken_on(profile: str) -> str:
    """The release that patchctl takes the profile on by itself."""
    found = on_release(distribution(), None, print).profile(profile).release
    assert found is not None
    return found


@pytest.mark.parametrize("profile", sorted(distribution().variants))
@pytest.mark.parametrize("way", [(), ("--in-place",)])
def test_without_a_release_the_base_is_that_of_the_one_that_patchctl_takes(
    tmp_path: Path, profile: str, way: tuple[str, ...]
) -> None:
    assert build(tmp_path, "--profile", profile, *way).returncode == 42
    said = (tmp_path / "log").read_text().splitlines()
    build(tmp_path, "--profile", profile, *way, "--release", taken_on(profile))
    assert said == (tmp_path / "log").read_text().splitlines()
    assert f"RELEASE={taken_on(profile)}" in said


def image_of(release: str, key: str) -> str | None:
    images = distribution().release(release).images
    return images.into if key == "into" else images.base


@pytest.mark.parametrize(("file", "key"), [("Dockerfile", "base"), ("Dockerfile.into", "into")])
def test_a_build_without_the_script_has_that_base_too(file: str, key: str) -> None:
    text = (REPO / file).read_text()
    (profile,) = set(re.findall(r"^ARG PROFILE=(\S+)", text, re.M))
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", text, re.M)
    assert base == image_of(taken_on(profile), key)


@pytest.mark.parametrize("release", distribution().releases)
@pytest.mark.parametrize(("options", "base"), [((), "base"), (("--in-place",), "into"), (("--base", "mine:1"), "")])
@pytest.mark.parametrize("way", ["option", "shell"])
def test_the_base_is_that_of_the_release(
    tmp_path: Path, release: str, options: tuple[str, ...], base: str, way: str
) -> None:
    """By --release, or by PATCHCTL_RELEASE, as every verb of patchctl takes it."""
    named = ("--release", release) if way == "option" else ()
    other = next(name for name in distribution().releases if name != release)
    done = build(tmp_path, "--profile", "qwen3-32b", *named, *options, release=other if way == "option" else release)
    assert done.returncode == 42, done.stderr
    wanted = image_of(release, base) if base else "mine:1"
    assert {f"BASE_IMAGE={wanted}", f"RELEASE={release}"} <= set((tmp_path / "log").read_text().splitlines())


def test_the_release_is_that_of_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHCTL", "false")  # there is none
    index = tmp_path / "patchctl-bundle/index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"profile": "qwen3-32b", "release": oldest()}))
    with tarfile.open(tmp_path / "x.tar", "w") as bundle:
        bundle.add(index, "patchctl-bundle/index.json")
    for named, release in ((), oldest()), (("--release", taken_on("qwen3-32b")), taken_on("qwen3-32b")):
        done = build(tmp_path, "--profile", "qwen3-32b", "--bundle", "x.tar", *named)
        assert done.returncode == 42, done.stderr
        assert f"RELEASE={release}" in (tmp_path / "log").read_text().splitlines()


def test_a_release_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    done = build(tmp_path, "--release", "2001.12")
    assert done.returncode == 2 and "there is no release 2001.12" in done.stderr


def test_a_release_without_a_base_is_wrong_use(tmp_path: Path) -> None:
    """The base of another release would be patched, and found out in a training."""
    for name in ("scripts", "manifests"):
        shutil.copytree(REPO / name, tmp_path / name)
    newest = next(iter(distribution().releases))
    (tmp_path / "manifests/releases/2030.01.yaml").write_text("")
    (tmp_path / "manifests/releases/2030.02.yaml").write_text(f'extends: "{newest}"\n')
    shutil.copy(REPO / "Dockerfile", tmp_path)
    line = [str(tmp_path / "scripts/build_image.sh"), "--profile", "qwen3-235b", "--release", "2030.01"]
    done = subprocess.run([*line, "--tool", "/bin/true"], capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2 and "release 2030.01 names no base image" in done.stderr and "--base IMAGE" in done.stderr
    )
    done = subprocess.run([*line, "--base", "x", "--tool", "/bin/false"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "names no base" not in done.stderr
    line = [str(tmp_path / "scripts/build_image.sh"), "--profile", "qwen3-235b"]
    done = subprocess.run([*line, "--tool", "/bin/false"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "names no base" not in done.stderr, "the newest has that of the one that it extends"


def test_without_a_dockerfile_it_is_wrong_use(tmp_path: Path) -> None:
    """As in an unpacked bundle: a dry run says it as well."""
    for name in ("scripts", "manifests"):
        shutil.copytree(REPO / name, tmp_path / name)
    line = [str(tmp_path / "scripts/build_image.sh"), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "there is no Dockerfile in" in done.stderr and done.stdout == ""
