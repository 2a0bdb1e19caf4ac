"""What scripts/build_image.sh hands to the builder of a bundle: nothing that was not checked. The builds themselves are in tests/image."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from distribution import REPO, Made, make_distribution
from pins import distribution

from patchctl.catalog.release_sets import on_set

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


def build(folder: Path, *options: str, config: str = "", release_set: str = "") -> subprocess.CompletedProcess[str]:
    tool = folder / "docker"
    tool.write_text(BUILDER)
    tool.chmod(0o755)
    (folder / "config.yaml").write_text(config or "cache: /nowhere\n")
    env = {**os.environ, "LOG": str(folder / "log"), "PATCHCTL_CONFIG": str(folder / "config.yaml")}
    env["PATCHCTL_SET"] = release_set
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


def taken_on(profile: str) -> str:
    """The release set that patchctl takes the profile on by itself."""
    found = on_set(distribution(), None, print).profile(profile).set
    assert found is not None
    return found


@pytest.mark.parametrize("profile", sorted(distribution().variants))
@pytest.mark.parametrize("way", [(), ("--into",)])
def test_without_a_set_the_base_is_that_of_the_one_that_patchctl_takes(
    tmp_path: Path, profile: str, way: tuple[str, ...]
) -> None:
    assert build(tmp_path, "--profile", profile, *way).returncode == 42
    said = (tmp_path / "log").read_text().splitlines()
    build(tmp_path, "--profile", profile, *way, "--set", taken_on(profile))
    assert said == (tmp_path / "log").read_text().splitlines()
    assert f"SET={taken_on(profile)}" in said


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.into"])
def test_a_build_without_the_script_has_that_base_too(file: str) -> None:
    text = (REPO / file).read_text()
    (profile,) = set(re.findall(r"^ARG PROFILE=(\S+)", text, re.M))
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", text, re.M)
    assert f"\n# base of {taken_on(profile)}: {base}" in text


@pytest.mark.parametrize(
    ("options", "base"),
    [
        (("--set", "2026.02"), "quay.io/ascend/cann:8.5.0-a3-openeuler24.03-py3.11"),
        (("--set", "2026.02", "--into"), "quay.io/ascend/vllm-ascend:v0.14.0rc1-a3-openeuler"),
        (("--set", "2026.11"), "quay.io/ascend/cann:9.1.0-a3-openeuler24.03-py3.12"),
        (("--set", "2026.11", "--into"), "quay.io/ascend/vllm-ascend:v0.23.0-a3-openeuler"),
        (("--set", "2026.11", "--base", "mine:1"), "mine:1"),
    ],
)
def test_the_base_is_that_of_the_release_set(tmp_path: Path, options: tuple[str, ...], base: str) -> None:
    done = build(tmp_path, "--profile", "qwen3-32b", *options)
    assert done.returncode == 42, done.stderr
    assert {f"BASE_IMAGE={base}", f"SET={options[1]}"} <= set((tmp_path / "log").read_text().splitlines())


def test_the_release_set_of_the_shell_is_that_of_the_image(tmp_path: Path) -> None:
    """PATCHCTL_SET, as every verb of patchctl takes it; --set goes before it."""
    base = "BASE_IMAGE=quay.io/ascend/vllm-ascend:"
    assert build(tmp_path, "--profile", "qwen3-32b", "--into", release_set="2026.11").returncode == 42
    assert {"SET=2026.11", f"{base}v0.23.0-a3-openeuler"} <= set((tmp_path / "log").read_text().splitlines())
    assert (
        build(tmp_path, "--profile", "qwen3-32b", "--into", "--set", "2026.02", release_set="2026.11").returncode == 42
    )
    assert {"SET=2026.02", f"{base}v0.14.0rc1-a3-openeuler"} <= set((tmp_path / "log").read_text().splitlines())


def test_a_release_set_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    done = build(tmp_path, "--set", "2026.12")
    assert done.returncode == 2 and "there is no release set 2026.12" in done.stderr


def test_a_release_set_of_which_the_dockerfile_names_no_base_is_wrong_use(tmp_path: Path) -> None:
    """The base of another set would be patched, and found out in a training."""
    for name in ("scripts", "manifests"):
        shutil.copytree(REPO / name, tmp_path / name)
    (tmp_path / "manifests/sets/2030.01.yaml").write_text("")
    shutil.copy(REPO / "Dockerfile", tmp_path)
    line = [str(tmp_path / "scripts/build_image.sh"), "--profile", "qwen3-235b", "--set", "2030.01"]
    done = subprocess.run([*line, "--tool", "/bin/true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "names no base of 2030.01" in done.stderr and "--base IMAGE" in done.stderr
    done = subprocess.run([*line, "--base", "x", "--tool", "/bin/false"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "names no base" not in done.stderr
