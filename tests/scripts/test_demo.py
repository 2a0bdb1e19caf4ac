"""`make demo`, shortened: twelve steps, stopped after the second and resumed, with everything that it starts on the way."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from pins import newest, oldest

from patchctl.__main__ import compose
from patchctl.cli.app import App

if TYPE_CHECKING:
    from data_and_weights import Scripts

pytest_plugins = ["data_and_weights"]

REPO = Path(__file__).resolve().parents[2]
RUN = REPO / "scripts" / "demo" / "run.py"
LIMIT_S = 1500


def demo(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    mirrors = Path(os.environ["PATCHCTL_MIRRORS"]) if os.environ.get("PATCHCTL_MIRRORS") else None
    given = [f"--mirror={one.name.removesuffix('.git')}={one}" for one in sorted(mirrors.iterdir())] if mirrors else []
    command = [sys.executable, str(RUN), "--out", str(out), *given, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_run", RUN)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_takes_the_release_that_apply_takes(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compose()
    dist = App(root=REPO, cache=tmp_path).distribution
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run._arguments(dist).release == [dist.profile("demo").release]
    monkeypatch.setattr(sys, "argv", ["run.py", "--share"])
    shared = run._arguments(dist)
    assert shared.release == [one.release for one in dist.variants["demo"]] and len(shared.release) > 1
    assert (shared.steps, shared.stop) == (2, 0)
    older = App(root=REPO, cache=tmp_path, release=shared.release[-1]).distribution
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run._arguments(older).release == [shared.release[-1]]


def test_a_source_that_is_lacking_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "PATCHCTL_MIRRORS", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    ended = demo(tmp_path / "demo")
    assert ended.returncode == 3
    assert "verl: no place has " in ended.stderr and "cannot run: see above" in ended.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("lacking", ["mindspeed", "vllm"])
def test_the_source_of_a_tree_that_nothing_runs_is_spared(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """What `patchctl fetch` says, by a script in its place: which of its places answer is not the same everywhere."""
    answer = {"skipped": [{"upstream": lacking, "tried": [["package index", "no such archive"]]}]}
    fetch = tmp_path / "patchctl"
    fetch.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n", encoding="utf-8")
    fetch.chmod(0o755)
    monkeypatch.setattr(run, "PATCHCTL", fetch)
    compose()
    one = run.Demo(
        tmp_path / "out",
        next(iter(App(root=REPO, cache=tmp_path).distribution.releases.values())),
        argparse.Namespace(seed=0),
    )
    if lacking == run.SPARED:
        one._sources([])
    else:
        with pytest.raises(
            run.Failed, match=r"cannot run without vllm(?s:.*)vllm: package index: no such archive"
        ) as failed:
            one._sources([])
        assert failed.value.status == 3


@pytest.mark.parametrize(("recipe", "devices", "program"), [("grpo", "2", "train.sh"), ("grpo-delta", "4", "bash")])
def test_engines_apart_have_devices_of_their_own_and_no_second_machine(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, devices: str, program: str
) -> None:
    compose()
    release = next(iter(App(root=REPO, cache=tmp_path).distribution.releases.values()))
    monkeypatch.setenv("PATCHCTL_RELEASE", release.name)
    one = run.Demo(tmp_path / "out", release, argparse.Namespace(seed=0, recipe=recipe, steps=3, save=1))
    one.recipe = json.loads(one._patchctl("recipe", "show", f"demo/{recipe}", "--json"))
    assert one._variables()["PATCHCTL_NPUS"] == devices
    command = one._command()
    assert Path(command[0]).name == program
    assert "trainer.total_training_steps=3" in " ".join(command)


def test_only_what_train_sh_starts_can_be_stopped(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compose()
    dist = App(root=REPO, cache=tmp_path).distribution
    monkeypatch.setattr(sys, "argv", ["run.py", "--recipe", "grpo-delta"])
    assert run._arguments(dist).stop == 0
    monkeypatch.setattr(sys, "argv", ["run.py", "--recipe", "grpo-delta", "--stop", "5"])
    with pytest.raises(SystemExit):
        run._arguments(dist)


@pytest.mark.parametrize(("old", "ends"), [(None, True), ("0.0002", True), ("0.31", False)])
def test_a_switch_that_is_not_in_force_is_seen_in_the_log(run: ModuleType, old: str | None, ends: bool) -> None:
    row = {"step": "1", "timing_s/update_actor": "1.0"} | ({"timing_s/old_log_prob": old} if old else {})
    if ends:
        run.check_skipped([row])
    else:
        with pytest.raises(run.Failed, match=r"skip_old_log_prob was not in force: 0\.31 s in step 1"):
            run.check_skipped([row])


def test_bytecode_of_lent_packages_is_not_compiled_again(run: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "lent" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("READY = True\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True)
    run.lend_bytecode(package.parent, tmp_path / "cache")
    run.lend_bytecode(package.parent, tmp_path / "cache")  # a second time, where it lies
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = clean | {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache"), "PYTHONPATH": str(package.parent)}
    said = subprocess.run(
        [sys.executable, "-v", "-c", "import package"], env=env, capture_output=True, text=True, check=True
    )
    assert (
        f"code object from '{tmp_path}/cache{package}" in said.stderr
        and f"{package}/__init__.py'\n# wrote" not in said.stderr
    )


FEATURES = {oldest(): ("skip_old_log_prob", "data_rebalance", "sam_proposer"), newest(): ("skip_old_log_prob",)}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_few_steps_a_stop_and_a_resume(
    scripts: Scripts, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == oldest():
        assert scripts.python  # skipped, with the reason, where there is no CPU torch
    elif python := os.environ.get(f"PATCHCTL_TORCH_PYTHON_{name.replace('.', '_')}"):
        monkeypatch.setenv("PATCHCTL_TORCH_PYTHON", python)
    else:
        pytest.skip(
            f"PATCHCTL_TORCH_PYTHON_{name.replace('.', '_')} names no Python with the packages of release {name}"
        )
    ended = demo(tmp_path / "demo", "--release", name, "--steps", "12", "--stop", "2", "--save", "2")
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout[-3000:]
    (run,) = (tmp_path / "demo").glob("run-*")
    log = (run / "whole.log").read_text(encoding="utf-8", errors="replace")
    assert (run / "reward.png").stat().st_size > 10_000
    # The first run was ended by a signal, and the second one began behind its checkpoint.
    assert "the training ended with 143" in log and "the training ended with 0" in log
    resumed = log.partition("the training ended with 143")[2]
    # Validation comes first: at the step of the checkpoint, and at 0 where nothing was resumed.
    validated, trained = map(int, re.findall(r"step:(\d+) - ", resumed)[:2])
    assert validated >= 2 and validated % 2 == 0 and trained == validated + 1
    assert "equal to the lock before and after" in ended.stdout
    # TransferQueue warned twice an answer: a thousand lines a step.
    steps = log.split(" step:")
    assert sum(len(part.splitlines()) for part in steps[3:-1]) < 40 * len(steps)
    for feature in FEATURES[name]:
        assert feature in ended.stdout


@pytest.mark.parametrize("words", [("--stop", "60"), ("--save", "0"), ("--save", "33")])
def test_there_has_to_be_something_to_resume_from(tmp_path: Path, words: tuple[str, str]) -> None:
    ended = demo(tmp_path / "demo", *words)
    assert ended.returncode == 2 and "something to resume from" in ended.stderr
    assert not (tmp_path / "demo").exists()
