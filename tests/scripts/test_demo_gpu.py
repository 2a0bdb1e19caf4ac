"""`make demo-gpu` on a CPU: the trainer's half with upstream's own code and no stand-in, and what it says where there is no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from environment import NOBODYS
from pins import newest

if TYPE_CHECKING:
    from data_and_weights import Scripts

pytest_plugins = ["data_and_weights"]

REPO = Path(__file__).resolve().parents[2]
GPU = REPO / "scripts" / "demo" / "gpu.py"
TRAINER = "verl/trainer/ppo/v1/trainer_sync.py"
SMALL = ("--device", "cpu", "--steps", "3", "--prompts", "8", "--samples", "4", "--micro", "16")


@pytest.fixture
def tree(scripts: Scripts) -> Path:
    """verl of the newest release, which alone the program runs."""
    verl: Path = scripts.upstream.tree("verl")
    if not (verl / TRAINER).is_file():
        pytest.skip(f"{verl} has no {TRAINER}: it is of another release")
    return verl


def demo(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """No GPU is seen, also where there is one."""
    environment = NOBODYS | {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""} | variables
    command = [sys.executable, str(GPU), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)


def test_both_ways_train_alike(scripts: Scripts, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / "data" / "train.parquet").write_text("of an earlier run")
    ended = demo(*SMALL, "--tree", tree, "--out", out, PATCHCTL_TORCH_PYTHON=str(scripts.python))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    off, on = found["off"], found["on"]
    assert len(off["reward"]) == 3 and off["reward"] == on["reward"]
    assert all(0 < reward < 1 for reward in off["reward"]) and len(set(off["reward"])) > 1
    # The update of the first step moved the weights, and to the same place; the worker was not asked for what is left out.
    apart = found["apart"]
    assert apart["moved"] > 0 and [apart[name] for name in ("weights", "answers", "grad_norm")] == [0] * 3
    assert apart["entropy"] < 1e-5
    assert "old_log_prob" in off["seconds"] and "old_log_prob" not in on["seconds"]
    # Other roundings than transformers in float32, so not the very same.
    assert 0 < apart["log_probs_float32"] < 0.01 and apart["log_probs_bfloat16"] < 0.02
    assert min(off["peak_gib"].values()) > 0 and off["tokens_per_s"] > 0
    for said in ("skip_old_log_prob", "mean reward of step 3", "old log-probabilities", "at most"):
        assert said in ended.stdout


@pytest.mark.parametrize(
    ("file", "was", "now", "said"),
    [
        # The clipped ratio is not 1, and the gradient another.
        ("utils/losses.py", "log_prob.detach() if skip", "log_prob.detach() + 1 if skip", "grad_norm"),
        pytest.param(
            "engine/fsdp/transformer_impl.py",
            "(logits=logits_rmpad, labels=",
            "(logits=logits_rmpad * 1.1, labels=",
            "log_probs",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["another ratio", "other log-probabilities"],
)
def test_what_is_not_alike_is_named(
    scripts: Scripts, tree: Path, tmp_path: Path, file: str, was: str, now: str, said: str
) -> None:
    changed = tmp_path / "verl"
    shutil.copytree(tree, changed, ignore=shutil.ignore_patterns(".git", "tests", "docs"))
    module = changed / "verl" / "workers" / file
    source = module.read_text()
    assert source.count(was) == 1
    module.write_text(source.replace(was, now))
    words = (*SMALL, "--steps", "1", "--tree", changed, "--out", tmp_path / "out")
    ended = demo(*words, PATCHCTL_TORCH_PYTHON=str(scripts.python))
    assert ended.returncode == 1, ended.stderr[-3000:]
    assert f"beyond what is allowed: {said}" in ended.stderr


@pytest.mark.slow
def test_packages_on_pythonpath_are_there_for_the_program(scripts: Scripts, tree: Path, tmp_path: Path) -> None:
    """The probe found them there; an interpreter whose packages cannot be written to has them nowhere else."""
    bare = subprocess.run(
        [
            str(scripts.python),
            "-c",
            "import sysconfig, sys; print(sysconfig.get_path('purelib'), sys._base_executable)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    words = (
        "--python",
        bare[1],
        *SMALL,
        "--steps",
        "1",
        "--tree",
        tree,
        "--out",
        tmp_path / "out",
    )
    ended = demo(*words, PYTHONPATH=bare[0])
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def test_a_tree_of_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "verl" / "verl" / "workers" / "actor").mkdir(parents=True)
    ended = demo("--tree", tmp_path / "verl", "--out", tmp_path / "out")
    assert ended.returncode == 2 and not (tmp_path / "out").exists()
    assert TRAINER in ended.stderr and f"--release {newest()}" in ended.stderr


@pytest.mark.slow
def test_it_makes_its_tree_itself(scripts: Scripts, tmp_path: Path) -> None:
    """Of the release that its program is for, whatever release is taken without a word."""
    ended = demo(*SMALL, "--out", tmp_path / "out", PATCHCTL_TORCH_PYTHON=str(scripts.python), HOME=os.environ["HOME"])
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    state = subprocess.run(
        [Path(sys.executable).with_name("patchctl"), "status", "--workspace", tmp_path / "out" / "workspace"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert newest() in state.stdout


def test_without_a_gpu_it_says_so(scripts: Scripts, tmp_path: Path) -> None:
    named = ("--python", scripts.python, "--out", tmp_path / "out")
    skipped = demo(*named)
    assert skipped.returncode == 0 and skipped.stderr == "" and skipped.stdout.count("\n") == 1
    for said in ("demo-gpu skipped", f"{scripts.python} (torch", "no GPU", "PATCHCTL_TORCH_PYTHON", "--device cpu"):
        assert said in skipped.stdout
    wanted = demo(*named, "--device", "cuda")
    assert wanted.returncode == 3 and wanted.stdout == "" and wanted.stderr == skipped.stdout.replace(" skipped", "")
    assert not (tmp_path / "out").exists()


def test_every_interpreter_that_was_looked_at_is_named(tmp_path: Path) -> None:
    """The last line of what each says; one that cannot be started is passed by."""
    for name, text in {"python3": "echo no torch here >&2; exit 1", "python3.12": "kill -9 $$"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    ended = demo("--out", tmp_path / "out", PATH=str(tmp_path), PATCHCTL_TORCH_PYTHON="/nowhere/python")
    assert ended.returncode == 0
    assert f"{tmp_path}/python3 (no torch here); {tmp_path}/python3.12 (no word)" in ended.stdout
    assert demo("--python", "/nowhere/python", "--device", "cpu").returncode == 3


def test_a_gpu_whose_python_lacks_packages_is_no_machine_without_one(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\necho \'{"torch": "2.11.0", "gpu": "A GPU", "lacks": ["ray", "transformers 5 (this is 4.57)"]}\'\n'
    )
    python.chmod(0o755)
    ended = demo("--out", tmp_path / "out", "--python", python)
    assert ended.returncode == 3
    assert "(torch 2.11.0, A GPU, lacks ray, transformers 5 (this is 4.57))" in ended.stderr


@pytest.mark.parametrize("words", [("--micro", "100"), ("--vocabulary", "15"), ("--steps", "0")])
def test_wrong_numbers_are_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    ended = demo("--out", tmp_path / "out", *words)
    assert ended.returncode == 2 and not (tmp_path / "out").exists()
