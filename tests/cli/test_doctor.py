"""`patchctl doctor` on machines that lack something: each test takes one thing away, and says what stands for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from chinese import IN_CHINESE, english_in
from distribution import GREETER, REPO, Made, make_distribution, write_files

from patchctl.doctor.machine import DEPENDENCIES, check_python
from patchctl.doctor.runtime import check_runtime, fits
from patchctl.manifest.types import Requirement

RUNTIME = """requirements:
  torch:
    summary: PyTorch.
    kind: python
    distribution: torch
  cann:
    summary: The toolkit.
    kind: system
  crystal:
    summary: Something that doctor does not know.
    kind: system
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("doctor"), lock=True)
    upstreams = made.root / "manifests" / "upstreams.yaml"
    upstreams.write_text(upstreams.read_text() + RUNTIME)
    runtime = 'runtime:\n  torch: "2.9.0"\n  cann: "8.5.0"\n  crystal: "1"\nstacks:'
    made.edit("manifests/profiles/full.yaml", "stacks:", runtime)
    return made


def doctor(made: Made, code: int, *args: str, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The findings by name."""
    done = made.patchctl("doctor", *args, "--json", env=env)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "patchctl.doctor/1"
    assert found["healthy"] == (code == 0) == (not any(f["blocks"] for f in found["findings"]))
    return {f["name"]: f for f in found["findings"]}


def programs(folder: Path, **scripts: str) -> str:
    """A PATH with these programs alone."""
    for name, script in scripts.items():
        write_files(folder, {f"{name}.sh": f"#!/bin/sh\n{script}\n"})
        (folder / f"{name}.sh").rename(folder / name.replace("_", "-"))
    return str(folder)


def test_a_machine_with_everything(made: Made) -> None:
    found = doctor(made, 0)
    assert {found[n]["level"] for n in ("git", "python", "dependencies", "cache", "space")} == {"ok"}
    assert str(shutil.which("git")) in found["git"]["what"] and "2." in found["git"]["what"]
    assert "file system" in found["cache"]["what"]
    assert found["greeter v1"]["level"] == "ok" and "in the cache (form git)" in found["greeter v1"]["what"]
    assert "git answers at" in found["clock v2"]["what"]
    assert found["torch"]["needed"] is False
    assert "nothing that patchctl needs is missing" in made.good("doctor")


def test_nothing_is_left_behind(made: Made) -> None:
    before = sorted(made.cache.rglob("*"))
    doctor(made, 0)
    assert sorted(made.cache.rglob("*")) == before


def test_the_list_of_dependencies_is_the_projects() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        tomllib = pytest.importorskip("tomli")
    declared = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [f"{name}>={oldest}" for name, _, oldest in DEPENDENCIES] == [one.partition(",")[0] for one in declared]


def test_no_git(made: Made, tmp_path: Path) -> None:
    found = doctor(made, 1, env={"PATH": programs(tmp_path / "bin")})
    assert found["git"]["level"] == "missing" and "2.32" in found["git"]["todo"]
    assert "lacking: git" in made.patchctl("doctor", env={"PATH": str(tmp_path / "bin")}).stdout


def test_an_old_git(made: Made, tmp_path: Path) -> None:
    """A script stands for a git of 2018."""
    path = programs(tmp_path / "bin", git='echo "git version 2.20.1"')
    found = doctor(made, 1, env={"PATH": path})
    assert "2.20" in found["git"]["what"] and f"{path}/git" in found["git"]["what"]


def test_a_git_that_cannot_be_isolated_does_nothing(made: Made, tmp_path: Path) -> None:
    """Before 2.32 git knows no GIT_CONFIG_GLOBAL: hooks and monitors of the user's own settings would run."""
    git = f'case $1 in *version) echo "git version 2.31.8"; exit;; esac; echo "$@" >> {tmp_path}/ran'
    path = programs(tmp_path / "bin", git=git)
    done = made.patchctl("apply", "--profile", "full", "-w", str(tmp_path / "ws"), env={"PATH": path})
    assert done.returncode == 2 and "git 2.31" in done.stderr and "install git 2.32" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_an_ssh_keygen_is_needed_by_who_wants_signatures(made: Made, tmp_path: Path) -> None:
    git = programs(tmp_path / "bin", git=f'exec {shutil.which("git")} "$@"')
    found = doctor(made, 0, env={"PATH": git})["signatures"]
    assert (found["level"], found["needed"]) == ("warning", False) and "openssh-client" in found["todo"]
    write_files(tmp_path, {"allowed": ""})
    (tmp_path / "config.yaml").write_text(f"bundles:\n  signatures: warn\n  allowed_signers: {tmp_path}/allowed\n")
    env = {"PATCHCTL_CONFIG": str(tmp_path / "config.yaml")}
    assert doctor(made, 1, env=env | {"PATH": git})["signatures"]["blocks"]
    old = programs(
        tmp_path / "old", git=f'exec {shutil.which("git")} "$@"', ssh_keygen="echo 'unknown option -- Y' >&2; exit 1"
    )
    assert "older than OpenSSH 8.2" in doctor(made, 1, env=env | {"PATH": old})["signatures"]["what"]
    if shutil.which("ssh-keygen"):
        assert doctor(made, 0, env=env)["signatures"]["level"] == "ok"
        (tmp_path / "allowed").unlink()
        assert "cannot read" in doctor(made, 1, env=env)["signatures"]["what"]


def test_a_git_that_does_not_run(made: Made, tmp_path: Path) -> None:
    found = doctor(made, 1, env={"PATH": programs(tmp_path / "bin", git="exit 126")})
    assert found["git"]["level"] == "missing" and "cannot be run" in found["git"]["what"]


@pytest.mark.parametrize("module", ["unidiff", "yaml"])
def test_a_missing_dependency(made: Made, tmp_path: Path, module: str) -> None:
    """A finder that refuses one module, put in by sitecustomize, stands for an installation without it."""
    refuse = (
        "import sys\nclass Refuse:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {module!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    write_files(tmp_path, {"sitecustomize.py": refuse})
    found = doctor(made, 1, "--profile", "full", env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"})
    name = next(name for name, imported, _ in DEPENDENCIES if imported == module)
    assert found[name]["level"] == "missing" and "pip install" in found[name]["todo"]
    assert name not in found["dependencies"]["what"]


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 18), "error"), ((3, 10, 0), "ok"), ((3, 13, 1), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(version: tuple[int, int, int], level: str) -> None:
    assert check_python(version).level == level


def test_a_cache_that_cannot_be_written(made: Made, tmp_path: Path) -> None:
    write_files(tmp_path, {"file": "in the way\n"})
    done = made.patchctl(f"--cache={tmp_path / 'file' / 'cache'}", "doctor", "--json")
    assert done.returncode == 1
    cache = next(f for f in json.loads(done.stdout)["findings"] if f["name"] == "cache")
    assert cache["level"] == "missing" and "PATCHCTL_CACHE" in cache["todo"]


def test_a_cache_that_is_not_there_yet_stays_empty(made: Made, tmp_path: Path) -> None:
    """But for the manifests that were found right, which every verb keeps there."""
    made.good(f"--cache={tmp_path / 'new' / 'cache'}", "doctor")
    assert {p.name for p in (tmp_path / "new" / "cache").iterdir()} == {"manifests"}
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_another_locale_is_a_warning(made: Made) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    found = doctor(made, 0, env=env)
    assert found["locale"]["level"] == "warning" and "C.UTF-8" in found["locale"]["todo"]


def test_a_source_that_no_place_has_is_missing(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    shutil.rmtree(made.origins / "clock")
    found = doctor(made, 1)
    assert found["greeter v1"]["level"] == "ok"
    clock = found["clock v2"]
    assert clock["level"] == "missing" and "--mirror clock=URL" in clock["todo"]
    assert any(t["place"] == str(made.origins / "clock") and "no such folder" in t["reason"] for t in clock["tried"])
    done = made.patchctl("doctor")
    assert (
        done.returncode == 1 and "lacking: clock v2" in done.stdout and f"tried {made.origins / 'clock'}" in done.stdout
    )


def test_a_mirror_makes_up_for_it(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    (made.origins / "clock").rename(tmp_path / "elsewhere")
    found = doctor(made, 0, "--mirror", f"clock={tmp_path / 'elsewhere'}")
    assert found["clock v2"]["level"] == "ok" and str(tmp_path / "elsewhere") in found["clock v2"]["what"]


def test_offline_asks_only_the_cache_and_local_places(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,))
    made.good("fetch", "--profile", "full")
    shutil.rmtree(made.origins / "greeter")
    assert "in the cache" in doctor(made, 0, "--offline")["greeter v1"]["what"]
    shutil.rmtree(made.cache)
    found = doctor(made, 0, "--offline")
    assert found["greeter v1"]["level"] == "warning" and "patchctl fetch" in found["greeter v1"]["todo"]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A package index on loopback, and the folder that it serves."""
    folder = tmp_path / "index"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://user:secret@127.0.0.1:{server.server_port}/simple", folder
    server.shutdown()
    server.server_close()


def with_sdist(tmp_path: Path, told: str, index: tuple[str, Path]) -> Made:
    """A distribution whose upstream has an sdist on the index, which promises the digest `told`, and no git place."""
    made = make_distribution(tmp_path / "made", (GREETER,))
    made.edit("manifests/upstreams.yaml", "license: MIT", "license: MIT\n    sdist: greeter")
    sdist = f'  sdist:\n    version: "1.0"\n    sha256: "{"a" * 64}"\npatches:'
    made.edit("manifests/stacks/greeter/v1.yaml", "patches:", sdist)
    page = f'<a href="greeter-1.0.tar.gz#sha256={told}">greeter-1.0.tar.gz</a>\n'
    write_files(index[1], {"simple/greeter/index.html": page})
    shutil.rmtree(made.origins / "greeter")
    return made


def test_an_index_that_has_the_sdist_is_enough_and_git_a_warning(tmp_path: Path, index: tuple[str, Path]) -> None:
    made = with_sdist(tmp_path, "a" * 64, index)
    env = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index[0], "PIP_CONFIG_FILE": os.devnull}
    done = made.patchctl("doctor", "--json", env=env)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and found["greeter v1"]["level"] == "warning"
    assert "the sdist is at http://127.0.0.1" in found["greeter v1"]["what"]
    assert "secret" not in done.stdout + done.stderr


def test_an_index_with_another_archive_is_not_enough(tmp_path: Path, index: tuple[str, Path]) -> None:
    made = with_sdist(tmp_path, "b" * 64, index)
    env = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index[0], "PIP_CONFIG_FILE": os.devnull}
    found = doctor(made, 1, env=env)["greeter v1"]
    assert found["level"] == "missing" and any("b" * 64 in t["reason"] for t in found["tried"])


def installed(folder: Path, **versions: tuple[str, str]) -> dict[str, str]:
    """Metadata alone stands for distributions: doctor never imports what it looks for."""
    for name, (version, requires) in versions.items():
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        write_files(folder, {f"{name}-{version}.dist-info/METADATA": text})
    return {"PYTHONPATH": f"{folder}{os.pathsep}{REPO}"}


def test_the_torch_of_the_behaviour_tests(made: Made, tmp_path: Path) -> None:
    found = doctor(made, 0, env=installed(tmp_path, torch=("2.9.0+cpu", "")))
    assert found["torch"]["level"] == "ok" and "2.9.0+cpu" in found["torch"]["what"]


def test_a_torch_that_drags_nvidia_in_is_a_warning(made: Made, tmp_path: Path) -> None:
    needs = 'Requires-Dist: nvidia-cublas-cu12==1; platform_system == "Linux"\nRequires-Dist: filelock\n'
    found = doctor(made, 0, env=installed(tmp_path, torch=("2.9.0", needs)))
    assert found["torch"]["level"] == "warning" and "nvidia-cublas-cu12==1" in found["torch"]["what"]


def test_an_interpreter_that_is_not_there(made: Made) -> None:
    found = doctor(made, 0, env={"PATCHCTL_TORCH_PYTHON": "/nowhere/python"})
    assert found["torch"]["level"] == "warning" and "/nowhere/python cannot be asked" in found["torch"]["what"]


def runtime(made: Made, *args: str, env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    done = made.patchctl("doctor", "--profile", "full", "--json", *args, env=env)
    assert done.returncode == 0, done.stdout  # nothing of it is needed to patch
    return {f["name"]: f for f in json.loads(done.stdout)["findings"] if f["area"] == "runtime"}


def test_what_training_runs_on_is_for_information(made: Made, tmp_path: Path) -> None:
    """Files as CANN's installer writes them, and a script for npu-smi, stand for a machine with an NPU."""
    write_files(
        tmp_path,
        {"cann/aarch64-linux/ascend_toolkit_install.info": "package_name=toolkit\nversion=8.5.0\narch=aarch64\n"},
    )
    env = installed(tmp_path / "site", torch=("2.8.0", ""))
    path = f"{programs(tmp_path / 'bin', npu_smi='true')}{os.pathsep}{os.environ['PATH']}"
    found = runtime(made, env={**env, "PATH": path, "ASCEND_HOME_PATH": str(tmp_path / "cann")})
    assert (
        found["torch"]["level"] == "warning"
        and "2.8.0" in found["torch"]["what"]
        and "2.9.0 is wanted" in found["torch"]["what"]
    )
    assert found["cann"]["level"] == "ok" and "8.5.0" in found["cann"]["what"]
    assert found["npu-smi"]["level"] == "ok"
    assert found["crystal"]["level"] == "warning" and "cannot be checked" in found["crystal"]["what"]


def test_a_machine_without_an_npu_can_still_patch(made: Made, tmp_path: Path) -> None:
    found = runtime(made, env={"PATH": os.environ["PATH"]})
    assert found["cann"]["level"] == "missing" and "8.5.0 is wanted" in found["cann"]["what"]
    assert not any(f["needed"] for f in found.values())


def test_the_driver_is_found_by_its_version_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"usr/local/Ascend/driver/version.info": "Version=25.3.rc1\nascendhal_version=7.35.23\n"})
    requirement = {"driver": Requirement(summary="The driver.", kind="system")}
    (found, _) = check_runtime(requirement, {"driver": "25.3.*"}, None, tmp_path)
    assert (found.level, found.message.split()[0]) == ("ok", "25.3.rc1")


@pytest.mark.parametrize(
    ("found", "wanted", "fit"),
    [
        ("2.9.0", "2.9.0", True),
        ("2.9.0+cpu", "2.9.0", True),
        ("2.9.1", "2.9.0", False),
        ("3.11.9", "3.11.*", True),
        ("3.12.0", "3.11.*", False),
        ("2.48.0", ">=2.47.1,<=2.48.0", True),
        ("2.49.0", ">=2.47.1,<=2.48.0", False),
        ("25.3.rc1.2", "25.3.*", True),
        ("8.2.RC1.alpha003", "8.2.RC1.alpha003", True),
        ("8.2.RC1.alpha003", "8.5.0", False),
    ],
)
def test_versions(found: str, wanted: str, fit: bool) -> None:
    assert fits(found, wanted) is fit


def test_no_distribution_is_a_warning_unless_one_was_named(made: Made, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PATCHCTL_")}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PATCHCTL_CACHE": str(made.cache)}
    command = [sys.executable, "-m", "patchctl", "doctor", "--json"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["distribution"]["level"] == "warning" and "--root" in found["distribution"]["todo"]
    assert not any(f["area"] == "sources" for f in found.values())
    done = Made(tmp_path / "none", tmp_path, tmp_path / "cache").patchctl("doctor")
    assert done.returncode == 2 and "none, which is no folder" in done.stderr


def test_an_unknown_profile_is_wrong_use(made: Made) -> None:
    done = made.patchctl("doctor", "--profile", "ful")
    assert done.returncode == 2 and "did you mean 'full'" in done.stderr


def test_manifests_that_cannot_be_read_are_a_finding(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,))
    made.edit("manifests/profiles/full.yaml", "schema: 1", "schema: 2")
    found = doctor(made, 1)
    assert found["manifests"]["level"] == "missing" and "full.yaml" in found["manifests"]["what"]


def test_a_configuration_that_cannot_be_read_is_a_finding_of_its_own(made: Made, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mirrors: {greeter: /srv/mirrors/greeter}\n")
    for file in ("/nowhere/config.yaml", str(tmp_path / "config.yaml")):
        row = doctor(made, 1, env={"PATCHCTL_CONFIG": file})["configuration"]
        assert file in row["what"] and row["todo"]


def test_in_chinese_no_english_sentence_is_left(made: Made) -> None:
    assert english_in(made.good("doctor"))  # the pattern finds them
    for args in ((), ("--profile", "full"), ("--offline",)):
        shown = made.patchctl("doctor", *args, env=IN_CHINESE)
        assert "patchctl 所需的环境齐全" in shown.stdout, shown.stdout + shown.stderr
        assert english_in(shown.stdout) == [], shown.stdout


def test_what_is_missing_in_chinese(made: Made, tmp_path: Path) -> None:
    old = programs(tmp_path, git="echo git version 2.17.1")
    shown = made.patchctl("doctor", env={**IN_CHINESE, "PATH": old})
    assert shown.returncode == 1 and "版本过低：无法与用户设置隔离" in shown.stdout and "缺少：git" in shown.stdout
    assert english_in(shown.stdout) == [], shown.stdout


def test_json_and_the_formats_are_in_english_in_every_language(made: Made) -> None:
    for output in (["--json"], ["--format", "junit"], ["--format", "sarif"]):
        english, chinese = (made.good("doctor", *output, env=env) for env in ({}, IN_CHINESE))
        free = re.compile(r"[\d.]+ [KMGT]iB free")
        assert free.sub("", english) == free.sub("", chinese)


def test_the_option_wins_over_the_locale(made: Made) -> None:
    english = made.patchctl("--lang", "en", "doctor", env=IN_CHINESE)
    assert "nothing that patchctl needs is missing" in english.stdout
    for spelled in ("zh-CN", "zh_CN", "zh_cn.UTF-8"):
        assert "patchctl 所需的环境齐全" in made.patchctl("--lang", spelled, "doctor", env={"PYTHONUTF8": "1"}).stdout
    assert made.patchctl("--lang", "fr", "doctor").returncode == 2
