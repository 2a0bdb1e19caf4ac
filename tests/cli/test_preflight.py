"""`patchctl preflight` as a user runs it: on this machine, from a recording, and asked wrongly."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chinese import IN_CHINESE, english_in
from distribution import GREETER, REPO, Made, make_distribution, run_patchctl, write_files
from machines import DAY, NOW, npu_smi, write_machine
from pins import newest, oldest
from recipes import with_recipes
from test_json import check_output

from patchctl.terminal.text import columns

MODELS = """\
schema: 1
models:
  Parrot-1B:
    profiles: [full]
    address: https://example.com/parrot
    config: {model_type: qwen3, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
             head_dim: 16, intermediate_size: 128, vocab_size: 512}
    bytes: 279296
    source: made up for this test
"""
BIG = ("preflight", "-p", "qwen3-235b", "-r", "grpo", "--release", oldest())  # whose software write_machine has


def real(tmp_path: Path, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The tool on this repository's own recipes."""
    own = {"PATCHCTL_ROOT": str(REPO), **(env or {})}
    return run_patchctl(f"--cache={tmp_path / 'cache'}", *args, home=tmp_path / "home", env=own)


def found_by_name(done: subprocess.CompletedProcess[str], code: int) -> dict[str, list[dict[str, Any]]]:
    assert done.returncode == code, done.stdout + done.stderr
    data = json.loads(done.stdout)
    check_output(data, "patchctl.preflight/1")
    assert data["ready"] == (code == 0) == (not any(f["blocks"] for f in data["findings"]))
    names: dict[str, list[dict[str, Any]]] = {}
    for finding in data["findings"]:
        names.setdefault(finding["name"], []).append(finding)
    return names


def test_a_good_node_is_ready(tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node")
    text = real(tmp_path, *BIG, "--machine", str(folder))
    assert text.returncode == 0, text.stdout
    assert "nothing is in the way; 1 more to look at" in text.stdout
    (following,) = re.findall(r"(?m)^next: patchctl train qwen3-235b grpo --nodes \d+ --release \S+$", text.stdout)
    more = real(tmp_path, *BIG, "--size", "batch=512", "--machine", str(folder), "trainer.save_freq=7").stdout
    assert f"{following} --size batch=512 trainer.save_freq=7\n" in more
    of_trees = real(tmp_path, *BIG, "--workspace", str(tmp_path / "my trees"), "--machine", str(folder)).stdout
    assert f"{following} --workspace '{tmp_path / 'my trees'}'\n" in of_trees
    assert "29 of 34,816 tokens" in text.stdout and "OK on 16 devices" not in text.stdout
    assert "OK on 16 devices" in real(tmp_path, *BIG, "--machine", str(folder), "-v").stdout
    found_by_name(real(tmp_path, *BIG, "--machine", str(folder), "--json"), 0)


def test_a_node_with_a_fault_is_not(tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node", npu_smi=npu_smi(health={(3, 1): "Critical"}), limits=None)
    text = real(tmp_path, *BIG, "--machine", str(folder))
    assert text.returncode == 1
    _, verdict, passed, _, _, first = text.stdout.splitlines()[:6]
    assert verdict == "not ready: health, open files; 3 more to look at"
    assert passed.startswith("checks that passed: ") and first.startswith("  wrong      health  ")
    assert "wrong      health" in text.stdout and "not known  open files" in text.stdout
    assert "try: `npu-smi info -t health -i 3 -c 1`" in text.stdout


def test_a_release_that_fits_the_machine_is_named_first(tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node")
    other = tuple(newest() if word == oldest() else word for word in BIG)
    text = real(tmp_path, *other, "--machine", str(folder))
    first = text.stdout.splitlines()[5:7]
    assert text.returncode == 1 and "release" in first[0] and "nothing is in the way there" in first[0], text.stdout
    assert real(tmp_path, *first[1].partition("try: patchctl ")[2].split(), "--machine", str(folder)).returncode == 0
    assert "release notes of CANN 9.1.0" in text.stdout and "850" not in text.stdout
    assert "release" not in found_by_name(real(tmp_path, *BIG, "--machine", str(folder), "--json"), 0)
    nothing = write_machine(tmp_path / "another", cann="version=7.0.0\n")
    assert "release" not in found_by_name(real(tmp_path, *other, "--machine", str(nothing), "--json"), 1)


def test_going_on_in_spite_of_a_finding(tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node", cann="version=8.3.RC1\n")
    assert real(tmp_path, *BIG, "--machine", str(folder)).returncode == 1
    found = found_by_name(real(tmp_path, *BIG, "--machine", str(folder), "--accept", "cann", "--json"), 0)
    assert (found["cann"][0]["level"], found["cann"][0]["accepted"]) == ("wrong", True)
    done = real(tmp_path, *BIG, "--machine", str(folder), "--accept", "can")
    assert done.returncode == 1 and "--accept can: no finding is called so here" in done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = with_recipes(make_distribution(tmp_path_factory.mktemp("preflight"), lock=True))
    write_files(made.root, {"manifests/models.yaml": MODELS})
    runtime = 'runtime:\n  torch: "2.9.0"\n  cann: "8.5.0"\n  driver: "25.3.*"\nstacks:'
    made.edit("manifests/profiles/full.yaml", "stacks:", runtime)
    upstreams = made.root / "manifests" / "upstreams.yaml"
    needs = {"torch": "python\n    distribution: torch", "cann": "system", "driver": "system"}
    lines = [f"  {name}:\n    summary: One.\n    kind: {kind}" for name, kind in needs.items()]
    upstreams.write_text(upstreams.read_text() + "\n".join(["requirements:", *lines]) + "\n")
    return made


def here(tmp_path: Path) -> dict[str, str]:
    """A script for npu-smi and CANN's file stand for an NPU's software; all else is this machine."""
    write_files(tmp_path, {"bin/npu.sh": f"#!/bin/sh\ncat <<'END'\n{npu_smi()}END\n"})
    (tmp_path / "bin/npu.sh").rename(tmp_path / "bin/npu-smi")
    write_files(tmp_path, {"cann/aarch64-linux/ascend_toolkit_install.info": "version=8.5.0\n"})
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "ASCEND_HOME_PATH": str(tmp_path / "cann"), "HF_TOKEN": "hf_not_for_you"}


def test_this_machine_and_its_recording_say_the_same(made: Made, tmp_path: Path) -> None:
    workspace = ("--workspace", str(tmp_path / "ws"))
    made.good("apply", "--profile", "full", *workspace)
    env = {**here(tmp_path), "BOOK_PATH": str(made.root), "VLLM_USE_V1": "1"}
    args = ("preflight", "-r", "full/loud", *workspace, "--json")
    live = found_by_name(made.patchctl(*args, "--record", str(tmp_path / "node"), env=env), 1)
    assert live["npu-smi"][0]["level"] == live["cann"][0]["level"] == live["workspace"][0]["level"] == "ok"
    assert live["greeter"][0]["what"] == "v1, 3 patches, equal to the lock"
    assert live["driver"][0]["what"].startswith("25.3.rc1")
    assert live["model"][0]["level"] == "ok" and live["voice"][0]["what"] == "/voices/low: nothing is there"
    again = found_by_name(made.patchctl(*args, "--machine", str(tmp_path / "node"), env={}), 1)
    assert again == live
    assert not any("hf_not_for_you" in p.read_text() for p in (tmp_path / "node").iterdir())


def imports_of(made: Made, tmp_path: Path, *args: str, env: Mapping[str, str]) -> dict[str, Any]:
    done = made.patchctl("preflight", "-r", "full/loud", "--workspace", str(tmp_path / "ws"), "--json", *args, env=env)
    (found,) = found_by_name(done, 1)["imports"]
    return found


def test_the_python_is_asked_whichever_way_it_is_named(made: Made, tmp_path: Path) -> None:
    """Versions and imports of one interpreter: --python, or PATCHCTL_TORCH_PYTHON, or patchctl's own."""
    made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    named = imports_of(made, tmp_path, "--python", sys.executable, env={})
    assert named["blocks"] and named["what"] == f"{sys.executable} imports clock from nowhere"
    assert imports_of(made, tmp_path, env={"PATCHCTL_TORCH_PYTHON": sys.executable}) == named
    assert imports_of(made, tmp_path, env={}) == named
    nobody = imports_of(made, tmp_path, env={"PATCHCTL_TORCH_PYTHON": "/nowhere/python"})
    assert nobody["level"] == "unknown" and nobody["blocks"] and "/nowhere/python cannot be asked" in nobody["what"]


def test_what_is_said_of_imports_cures_them(made: Made, tmp_path: Path) -> None:
    """`patchctl apply`, which it said, does not: the trees are applied."""
    made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    todo = imports_of(made, tmp_path, env={})["todo"]
    assert f"patchctl install --workspace {tmp_path / 'ws'} --python {sys.executable}" in todo
    (path,) = re.findall(r"export PYTHONPATH=(\S+)", todo)
    found = imports_of(made, tmp_path, env={"PYTHONPATH": f"{path}{os.pathsep}{REPO}"})
    assert found["level"] == "ok" and found["what"] == f"{sys.executable} imports the patched trees"


def test_without_an_npu_it_says_so(made: Made, tmp_path: Path) -> None:
    found = found_by_name(made.patchctl("preflight", "-r", "full/loud", "--json", env={"PATH": "/usr/bin:/bin"}), 1)
    assert found["npu-smi"][0]["level"] == "wrong" and "npu-smi is not on PATH" in found["npu-smi"][0]["what"]
    assert found["workspace"][0]["what"].startswith("nothing was applied to")
    assert found["torch"][0]["level"] == "wrong"


def test_a_port_in_use_is_seen(made: Made, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        env = {"HCCL_HOST_SOCKET_PORT_RANGE": f"{port}", "HCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "nobody0"}
        found = found_by_name(made.patchctl("preflight", "-r", "full/loud", "--json", env=env), 1)
    assert found["ports of HCCL"][0]["what"].endswith(f"{port} in use")
    assert "lo has no address of this node" in found["HCCL_SOCKET_IFNAME"][0]["what"]
    assert "no such interface" in found["GLOO_SOCKET_IFNAME"][0]["what"]


def test_ulimit_is_that_of_the_shell(made: Made, tmp_path: Path) -> None:
    line = f"ulimit -n 512; exec {sys.executable} -m patchctl --root={made.root} preflight -r full/loud --json"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["sh", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found_by_name(done, 1)["open files"][0]["what"] == "512 at most; 32768 are wanted"


def test_caches_are_cleared_when_somebody_says_so(made: Made, tmp_path: Path) -> None:
    env = {**here(tmp_path), "HOME": str(tmp_path / "me")}
    for name in ("atc_data/a.o", ".cache/huggingface/model.safetensors", "kernel_meta/new.o"):
        write_files(tmp_path / "me", {name: "x"})
    old = (tmp_path / "cann/aarch64-linux/ascend_toolkit_install.info").stat().st_mtime - 5 * DAY
    os.utime(tmp_path / "me/atc_data/a.o", (old, old))
    args = ("preflight", "-r", "full/loud", "--clear-caches")
    refused = made.patchctl(*args, env=env)
    assert refused.returncode == 2 and "add --yes" in refused.stderr
    assert made.patchctl(*args, "--json", env=env).returncode == 2
    assert (tmp_path / "me/atc_data").exists()
    done = made.patchctl(*args, "--yes", "--json", env=env)
    assert json.loads(done.stdout)["cleared"] == [str(tmp_path / "me/atc_data")]
    assert not (tmp_path / "me/atc_data").exists()
    assert (tmp_path / "me/.cache/huggingface/model.safetensors").exists() and (
        tmp_path / "me/kernel_meta/new.o"
    ).exists()


def test_no_cache_is_cleared_where_the_age_of_cann_is_not_known(made: Made, tmp_path: Path) -> None:
    write_files(tmp_path / "me", {"atc_data/a.o": "x"})
    os.utime(tmp_path / "me/atc_data/a.o", (1e9, 1e9))
    env = {**here(tmp_path), "HOME": str(tmp_path / "me"), "ASCEND_HOME_PATH": str(tmp_path / "nowhere")}
    done = made.patchctl("preflight", "-r", "full/loud", "--clear-caches", "--yes", "--json", env=env)
    data = json.loads(done.stdout)
    assert data["cleared"] == [] and (tmp_path / "me/atc_data/a.o").exists()
    (told,) = [f for f in data["findings"] if f["name"] == "compile caches"]
    assert told["level"] == "warning" and "when CANN was installed is not known" in told["what"]


def test_a_recording_is_never_mixed_with_something_else(made: Made, tmp_path: Path) -> None:
    write_files(tmp_path / "mine", {"thesis.tex": "x"})
    done = made.patchctl("preflight", "-r", "full/loud", "--record", str(tmp_path / "mine"))
    assert done.returncode == 2 and "is not empty" in done.stderr
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-r", "full/laud"], "full has no recipe 'laud'; did you mean 'loud'?"),
        (["-r", "full/loud", "--nodes", "3"], "breaks tokens-fit"),
        (["-r", "full/loud", "--machine", "/nowhere"], "which is no folder"),
        (["-r", "full/loud", "--machine", "."], "holds no recording"),
        (["-r", "full/loud", "--machine", ".", "--record", "x"], "neither --record nor --clear-caches"),
        (["-r", "full/loud", "--mean-tokens", "0"], "--mean-tokens"),
        ([], "--recipe"),
    ],
)
def test_wrong_use_is_2(made: Made, args: list[str], message: str) -> None:
    done = made.patchctl("preflight", *args)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


@pytest.mark.parametrize("text", ["[1]", "{", '{"absent": 3}'])
def test_a_recording_of_another_kind_is_2(made: Made, tmp_path: Path, text: str) -> None:
    folder = write_machine(tmp_path / "node", machine=text)
    done = made.patchctl("preflight", "-r", "full/loud", "--machine", str(folder))
    assert done.returncode == 2 and "is not what --record writes" in done.stderr


def test_what_a_recording_says_steers_no_terminal(made: Made, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m8.5.0\n::error::x"
    about = json.dumps({"time": NOW, "absent": {"npu-smi.txt": evil}})
    folder = write_machine(tmp_path / "node", npu_smi=None, machine=about, cann=f"version={evil}\n")
    for extra in ([], ["--json"]):
        done = made.patchctl("preflight", "-r", "full/loud", "--machine", str(folder), *extra)
        assert done.returncode == 1 and "\x1b" not in done.stdout and "\n::error" not in done.stdout


def test_faults_of_the_table_are_told_with_their_line(made: Made, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made.root, tmp_path / "distribution"))
    copy = Made(root, made.origins, made.cache)
    copy.edit("manifests/models.yaml", "profiles: [full]", "profiles: [ful]")
    copy.edit("manifests/models.yaml", "hidden_size: 64", "hidden_size: wide")
    done = copy.patchctl("preflight", "-r", "full/loud")
    assert done.returncode == 2 and "no profile 'ful'; did you mean 'full'?" in done.stderr
    assert "hidden_size is 'wide'" in done.stderr and "models.yaml:4" in done.stderr


def test_without_a_table_memory_is_not_known(tmp_path: Path) -> None:
    made = with_recipes(make_distribution(tmp_path / "made", (GREETER,)))
    made.edit("manifests/recipes/full/loud.yaml", "needs: [loud, step]", "needs: [loud]")
    made.edit("manifests/recipes/full/loud.yaml", "  +clock.step: 2\n", "  greeter.more: 2\n")
    found = found_by_name(made.patchctl("preflight", "-r", "full/loud", "--json"), 1)
    assert [f["level"] for f in found["model"] if f["area"] == "device memory"] == ["unknown"]


# Recipes say in English what paths are for, and their limits.
OF_THE_RECIPE = re.compile(r"(?<=PATH：).*$", re.MULTILINE)


def english_left(shown: str, as_json: str) -> list[str]:
    """Without the names of findings, which --accept takes, and without what the recipe says."""
    findings = json.loads(as_json)["findings"]
    for text in [*(f["what"] for f in findings if f["name"] == "limits"), *(f["name"] for f in findings)]:
        shown = shown.replace(text, "")
    return english_in(OF_THE_RECIPE.sub("", shown))


@pytest.mark.heavy("every recording, in every language")
def test_in_chinese_no_english_sentence_is_left(tmp_path: Path) -> None:
    good = write_machine(tmp_path / "good")
    as_json = real(tmp_path, *BIG, "--machine", str(good), "--json").stdout
    assert english_left(real(tmp_path, *BIG, "--machine", str(good)).stdout, as_json)  # the pattern finds them
    shown = real(tmp_path, *BIG, "--machine", str(good), env=IN_CHINESE)
    assert shown.stdout.splitlines()[1] == "没有妨碍训练的问题；另有 1 项请查看", shown.stdout + shown.stderr
    assert english_left(shown.stdout, as_json) == [], shown.stdout
    lacking = write_machine(tmp_path / "lacking", npu_smi=None, limits=None, df=None, workspace=None, hccn=None)
    other = tuple(newest() if word == oldest() else word for word in BIG)
    for args in ((*BIG, "--machine", str(lacking)), (*other, "--machine", str(good))):
        shown = real(tmp_path, *args, env=IN_CHINESE)
        assert shown.returncode == 1 and "未就绪：" in shown.stdout.splitlines()[1], shown.stdout + shown.stderr
        assert english_left(shown.stdout, real(tmp_path, *args, "--json").stdout) == [], shown.stdout


def test_this_machine_in_chinese(made: Made, tmp_path: Path) -> None:
    """Its own tools and files, what is missing of them, and a workspace that nothing was applied to."""
    env = {**IN_CHINESE, "PATH": "/usr/bin:/bin"}
    args = ("preflight", "-r", "full/loud", "--workspace", str(tmp_path / "none"))
    shown = made.patchctl(*args, env=env)
    assert shown.returncode == 1 and "PATH 中没有 npu-smi" in shown.stdout, shown.stdout + shown.stderr
    assert f"{tmp_path / 'none'} 还没有打过补丁" in shown.stdout
    assert english_left(shown.stdout, made.patchctl(*args, "--json", env=env).stdout) == [], shown.stdout


def test_columns_stand_below_each_other_in_chinese(tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node", npu_smi=npu_smi(health={(3, 1): "Critical"}), limits=None)
    lines = real(tmp_path, *BIG, "--machine", str(folder), env=IN_CHINESE).stdout.splitlines()
    assert "主机" in lines
    starts = {
        columns(line.partition(mark)[0])
        for line in lines
        for mark in ("NPU 3 chip 1", "最多 ", "建议：")
        if mark in line
    }
    assert len(starts) == 1, starts


def test_questions_and_errors_in_chinese(made: Made, tmp_path: Path) -> None:
    env = {**here(tmp_path), **IN_CHINESE, "HOME": str(tmp_path / "me")}
    write_files(tmp_path / "me", {"atc_data/a.o": "x"})
    os.utime(tmp_path / "me/atc_data/a.o", (1e9, 1e9))
    refused = made.patchctl("preflight", "-r", "full/loud", "--clear-caches", env=env)
    assert refused.returncode == 2 and "没有人可以回答" in refused.stderr and "建议：请加上 --yes" in refused.stderr
    as_json = made.patchctl("preflight", "-r", "full/loud", "--clear-caches", "--json", env=env)
    assert json.loads(as_json.stdout)["error"]["hint"] == "add --yes"
    none = made.patchctl("preflight", "-r", "full/loud", "--machine", "/nowhere", env=env)
    assert none.returncode == 2 and "--machine 指定的 /nowhere 不是目录" in none.stderr
    accepted = made.patchctl("preflight", "-r", "full/loud", "--accept", "can", env=env)
    assert "--accept can：这里没有叫这个名称的结论" in accepted.stderr


@pytest.mark.heavy("every recording, in every language")
def test_json_and_recordings_are_in_english_in_every_language(made: Made, tmp_path: Path) -> None:
    folder = write_machine(tmp_path / "node", npu_smi=npu_smi(health={(3, 1): "Critical"}), limits=None)
    for output in (["--json"], ["--format", "sarif"], ["--format", "junit"]):
        args = (*BIG, "--machine", str(folder), *output)
        assert real(tmp_path, *args).stdout == real(tmp_path, *args, env=IN_CHINESE).stdout
    record = str(tmp_path / "recorded")
    made.patchctl("preflight", "-r", "full/loud", "--record", record, env={**IN_CHINESE, "PATH": "/usr/bin:/bin"})
    assert "npu-smi is not on PATH" in json.loads(Path(record, "machine.json").read_text())["absent"]["npu-smi.txt"]


def test_the_option_wins_over_the_locale(tmp_path: Path) -> None:
    args = (*BIG, "--machine", str(write_machine(tmp_path / "node")))
    assert "nothing is in the way" in real(tmp_path, "--lang", "en", *args, env=IN_CHINESE).stdout
    assert "没有妨碍训练的问题" in real(tmp_path, "--lang", "zh-CN", *args, env={"PYTHONUTF8": "1"}).stdout
