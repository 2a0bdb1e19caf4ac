"""scripts/train.sh with the real patchctl and recipes. The entry module in the workspace is a stand-in for verl's, which needs
NPUs: it records how it was started. Where preflight has to be content, a stand-in of that one verb says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chinese import english_in
from pins import newest, oldest
from processes import free_port
from shells import SCRIPTS, Program, Shell, alive, program, wait_until

from patchctl.language import CHINESE, chosen
from patchctl.workspace.state import TreeState, WorkspaceState, save_json

ENTRY = """
# Stands for verl.trainer.main_ppo: says how it was started, and does what ENTRY_DOES says.
import json, os, sys, time
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "pid": os.getpid(), "env": dict(os.environ)}), flush=True)
print("step:1 - critic/rewards/mean:0.5", file=sys.stderr, flush=True)
exec(os.environ.get("ENTRY_DOES", ""))
"""
CONTENT = """#!/bin/sh
# Stands for a machine that has everything: preflight is content and says what it was asked. All else is the real patchctl.
[ "$1" = preflight ] && { echo "asked: $*" >&2; exit "${PREFLIGHT_ENDS:-0}"; }
exec patchctl "$@"
"""
IN_RAY = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
look = ray.remote(num_cpus=0, resources={"NPU": 1})(lambda: dict(os.environ))
print(json.dumps({"npu": ray.cluster_resources()["NPU"], "seen": ray.get(look.remote())}), flush=True)
"""

IN_CHINESE = {"LANG": "zh_CN.UTF-8"}
OLD = oldest()


@pytest.fixture
def run(shell: Shell) -> Training:
    return Training(shell)


class Training:
    """A workspace, the files of qwen3-8b/grpo, and train.sh."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        folder = shell.folder
        module = folder / "workspace" / "verl" / "verl" / "trainer"
        module.mkdir(parents=True, exist_ok=True)
        (module / "main_ppo.py").write_text(ENTRY)
        for name in ("model", "train.parquet", "reward.py"):
            (folder / name).touch()
        self.env = {
            "PATCHCTL": str(program(folder / "tools", "content", CONTENT)),
            "PATCHCTL_RAY_STATE_DIR": str(folder / "no-ray"),
            "MODEL_PATH": str(folder / "model"),
            "TRAIN_FILE": str(folder / "train.parquet"),
            "REWARD_PATH": str(folder / "reward.py"),
            "CKPTS_DIR": str(folder / "ckpts"),
        }

    def start(self, *args: object, **env: str) -> Program:
        return self.shell.start("train.sh", "qwen3-8b", "grpo", *args, **(self.env | env))

    def to_the_end(self, *args: object, **env: str) -> tuple[int, Program]:
        program = self.start(*args, **env)
        return program.wait(), program

    def logs(self) -> list[Path]:
        return sorted((self.shell.folder / "logs").glob("*.log"))


def started(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in program.out.splitlines() if line.startswith("{")))
    return found


def test_the_entry_module_gets_the_recipes_command(run: Training) -> None:
    code, program = run.to_the_end("trainer.total_epochs=7")
    assert code == 0, program.err
    found = started(program)
    assert found["cwd"] == str(run.shell.folder / "workspace" / "verl")
    assert "--config-name=ppo_trainer" in found["argv"]
    assert found["argv"].count("trainer.total_epochs=7") == 1
    assert not [word for word in found["argv"] if word.startswith("trainer.total_epochs=") and word[-1] != "7"]
    assert f"actor_rollout_ref.model.path='{run.shell.folder / 'model'}'" in found["argv"]
    assert found["env"]["TASK_QUEUE_ENABLE"] == "1"
    assert found["env"]["RAY_ADDRESS"] == "local"


def test_a_workspace_that_is_named_is_imported(run: Training) -> None:
    """As ray_cluster.sh does it: preflight and training see the same trees. One that is not named is as it is installed."""
    _, program = run.to_the_end("--workspace", run.shell.folder / "workspace", PYTHONPATH="/mine")
    trees = f"{run.shell.folder / 'workspace' / 'verl'}:/mine"
    assert started(program)["env"]["PYTHONPATH"] == trees
    _, program = run.to_the_end(PYTHONPATH="/mine")
    assert started(program)["env"]["PYTHONPATH"] == "/mine"
    _, plan = run.to_the_end("--workspace", run.shell.folder / "workspace", "--dry-run")
    assert f"export PYTHONPATH={run.shell.folder / 'workspace' / 'verl'}${{PYTHONPATH:+:$PYTHONPATH}}\n" in plan.out


def test_trees_that_were_patched_in_place_are_found(run: Training) -> None:
    """As in an image whose base brings verl. --workspace imports a checkout from where it lies, and an installed package as it is."""
    workspace, checkout = run.shell.folder / "workspace", run.shell.folder / "a checkout"
    (workspace / "verl").rename(checkout)
    (workspace / ".patchctl").mkdir()
    no_commit = "0" * 40
    tree = TreeState("into", str(checkout), "any", "sdist", "", no_commit, no_commit, no_commit, no_commit, locked=True)

    def start(tree: TreeState, path: str) -> dict[str, Any]:
        state = WorkspaceState("qwen3-8b", "/", trees={"verl": tree})
        save_json(workspace / ".patchctl" / "state.json", state.as_json())
        code, program = run.to_the_end("--workspace", workspace, PYTHONPATH=path)
        assert code == 0, program.err
        return started(program)

    found = start(tree, "/mine")
    assert found["cwd"] == str(checkout) and found["env"]["PYTHONPATH"] == f"{checkout}:/mine"
    found = start(replace(tree, record="verl-1.dist-info/RECORD"), str(checkout))
    assert found["cwd"] == str(workspace) and found["env"]["PYTHONPATH"] == str(checkout)


def test_scripts_that_were_copied_without_recipes_say_what_is_missing(run: Training, tmp_path: Path) -> None:
    """They named PATCHCTL_ROOT, which nobody had set."""
    shutil.copytree(SCRIPTS, tmp_path / "copy" / "scripts")
    copy = run.shell.start(tmp_path / "copy" / "scripts" / "train.sh", "qwen3-8b", "grpo", "--dry-run", cwd=tmp_path)
    assert copy.wait() == 2
    assert "no distribution: found no" in copy.err and "PATCHCTL_ROOT names" not in copy.err


def test_preflight_is_asked_about_this_very_run(run: Training) -> None:
    _, program = run.to_the_end("trainer.total_epochs=7", "--accept", "/dev/shm")
    (line,) = [line for line in program.err.splitlines() if line.startswith("asked: ")]
    assert "--profile qwen3-8b --recipe grpo trainer.total_epochs=7" in line
    assert f"--workspace {run.shell.folder}/workspace" in line
    assert "--accept /dev/shm" in line


@pytest.mark.parametrize("said", [f"--release {OLD}", "PATCHCTL_RELEASE", f"grpo@{OLD}"])
def test_a_release_is_that_of_every_step(run: Training, said: str) -> None:
    """The newest, on which the profile is taken without a name, has no such recipe; the printed script may be run in another shell."""
    recipe = f"grpo-sam-npugraph@{OLD}" if said.startswith("grpo") else "grpo-sam-npugraph"
    args = ["qwen3-32b", recipe, *(said.split() if said.startswith("--") else ()), "--dry-run"]
    env = {"PATCHCTL_RELEASE": OLD} if said == "PATCHCTL_RELEASE" else {}
    done = run.shell.run("train.sh", *args, **(run.env | env))
    assert done.returncode == 0, done.stderr
    assert f"# qwen3-32b/grpo-sam-npugraph, release {OLD}: " in done.stdout
    steps = [line for line in done.stdout.splitlines() if " --recipe grpo-sam-npugraph" in line]
    assert len(steps) == 2  # preflight, and ray_cluster.sh status
    if env:
        assert done.stdout.index(f"export PATCHCTL_RELEASE={OLD}\n") < done.stdout.index(steps[0])
    else:
        assert [
            line for line in steps if f"--release {OLD}" not in line and f"grpo-sam-npugraph@{OLD}" not in line
        ] == []


def test_a_recipe_of_another_release_is_told_with_its_release(run: Training) -> None:
    done = run.shell.run("train.sh", "qwen3-32b", "grpo-sam-npugraph", "--dry-run", **run.env)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"on {newest()}: it is one of {OLD}" in done.stderr and f"export PATCHCTL_RELEASE={OLD}" in done.stderr


def test_nothing_starts_when_preflight_finds_something(run: Training) -> None:
    """The real preflight, on this machine, which is no A3."""
    code, program = run.to_the_end(PATCHCTL="")
    assert code == 1
    assert "npu-smi" in program.err
    assert "preflight says no: nothing was started" in program.err
    assert (program.out, run.logs()) == ("", [])


def test_preflight_is_passed_over_aloud_only(run: Training) -> None:
    code, program = run.to_the_end("--no-preflight", PREFLIGHT_ENDS="1")
    assert code == 0
    assert "warning: --no-preflight: nobody has looked at this machine" in program.err
    assert "asked: " not in program.err


def test_the_log_has_all_of_it_and_the_status_is_the_trainings(run: Training) -> None:
    code, program = run.to_the_end(ENTRY_DOES="sys.exit(7)")
    assert code == 7
    (log,) = run.logs()
    assert log.name.startswith("qwen3-8b-grpo-")
    text = log.read_text()
    assert "# export TASK_QUEUE_ENABLE=1\n" in text
    assert "#   trainer.device=npu \\\n" in text
    assert text.endswith(program.out)
    assert "step:1 - critic/rewards/mean:0.5\n" in program.out
    assert f"the training ended with 7; the log: {log}" in program.err


@pytest.mark.parametrize(
    ("how", "status"), [("interrupt", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_reaches_the_training(run: Training, how: signal.Signals | str, status: int) -> None:
    """Ctrl-C of a terminal, or a signal to the script alone. The training's last words are in the log."""
    last = "try:\n time.sleep(60)\nfinally:\n print('last words', flush=True)"
    program = run.start(ENTRY_DOES=f"import signal\nsignal.signal(15, lambda *_: sys.exit(1))\n{last}")
    wait_until(lambda: "step:1" in program.out)
    program.interrupt() if how == "interrupt" else program.signal(signal.Signals(how))
    assert program.wait(20) == status, program.err
    assert not alive(started(program)["pid"])
    assert "last words" in run.logs()[0].read_text()


def test_a_training_that_was_told_to_ignore_signals_goes_on(run: Training) -> None:
    """`nohup` ignores HUP, a script's background INT; what is ignored at the start stays so. TERM ends it all the same."""
    ignoring = 'trap \'\' INT HUP; exec "$0" "$@"'
    does = "import signal\nsignal.signal(15, lambda *_: sys.exit(1))\nprint('begun', flush=True)\ntime.sleep(60)"
    program = run.shell.start(
        "/bin/sh", "-c", ignoring, SCRIPTS / "train.sh", "qwen3-8b", "grpo", **run.env, ENTRY_DOES=does
    )
    program.until("begun")
    program.interrupt()
    program.signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        program.process.wait(2)
    assert alive(started(program)["pid"])
    program.signal(signal.SIGTERM)
    assert program.wait(20) == 143, program.err
    assert not alive(started(program)["pid"])


def test_every_path_that_is_not_set_is_named_at_once(run: Training) -> None:
    code, program = run.to_the_end(MODEL_PATH="", REWARD_PATH="")
    assert code == 2
    assert "  MODEL_PATH: the model as Hugging Face has it" in program.err
    assert "  REWARD_PATH: " in program.err
    assert f"(patchctl recipe show -v qwen3-8b/grpo@{newest()})" in program.err
    assert "TRAIN_FILE" not in program.err and "asked: " not in program.err
    assert run.logs() == []


def test_relative_paths_are_of_the_folder_of_the_call(run: Training) -> None:
    code, program = run.to_the_end("--path", "train=train.parquet", MODEL_PATH="model", CKPTS_DIR="new/ckpts")
    assert code == 0, program.err
    argv, folder = started(program)["argv"], run.shell.folder
    assert f"actor_rollout_ref.model.path='{folder}/model'" in argv
    assert f"data.train_files={folder}/train.parquet" in argv
    assert f"trainer.default_local_dir='{folder}/new/ckpts'" in argv


def test_an_override_that_breaks_a_rule_is_refused(run: Training) -> None:
    code, program = run.to_the_end("trainer.nnodes=5")
    assert code == 2
    assert "breaks devices-of-a-run" in program.err
    assert (program.out, run.logs()) == ("", [])


def test_a_dry_run_prints_a_script_that_does_the_same(run: Training) -> None:
    code, printed = run.to_the_end("--dry-run", "trainer.total_epochs=7")
    assert (code, run.logs()) == (0, [])
    script = program(run.shell.folder / "tools", "printed.sh", printed.out)
    again = run.shell.start("/bin/bash", script, **run.env)
    assert again.wait() == 0, again.err
    _, direct = run.to_the_end("trainer.total_epochs=7")
    assert started(again)["argv"] == started(direct)["argv"]
    assert started(again)["cwd"] == started(direct)["cwd"]
    assert f"{run.env['PATCHCTL']} preflight --profile qwen3-8b --recipe grpo" in printed.out
    assert f"export MODEL_PATH={run.env['MODEL_PATH']}\n" in printed.out and "export PATCHCTL_ROOT=" in printed.out


def test_the_folder_of_logs_is_made_before_anything_is_asked(run: Training) -> None:
    code, program = run.to_the_end("--log-dir", "/proc/logs")
    assert code == 2 and "--log-dir /proc/logs: nothing can be written there" in program.err
    assert "asked: " not in program.err


def test_a_dry_run_says_what_it_would_stop_at(run: Training) -> None:
    code, program = run.to_the_end("--dry-run", MODEL_PATH="")
    assert code == 0
    assert "MODEL_PATH" in program.err and "this is what the printed script would stop at" in program.err
    assert "model.path=\"'${MODEL_PATH:?" in program.out


def examples_of_the_help(run: Training) -> list[str]:
    text = run.shell.run("train.sh", "--help").stdout
    return [line.strip() for line in text.splitlines() if re.match(r" +([A-Z_]+=\S+ )*train\.sh ", line)]


def test_the_examples_of_the_help_print_their_script_on_any_machine(run: Training) -> None:
    """As shown, on a machine that has no cluster. An example that sets variables sets all that its recipe needs."""
    shown = examples_of_the_help(run)
    assert len(shown) == 2
    for line in shown:
        variables, _, script = line.partition("train.sh ")
        env = dict(word.split("=", 1) for word in variables.split())
        given = script.removesuffix(" --dry-run").split()
        state = str(run.shell.folder / "no-ray")
        done = run.shell.run("train.sh", *given, "--dry-run", PATCHCTL_RAY_STATE_DIR=state, **env)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert not env or "needs paths that are not set" not in done.stderr, done.stderr
        assert "no cluster is known for" in done.stderr and "a dry run assumes" in done.stderr


def test_a_dry_run_without_a_cluster_asks_for_it_by_name(run: Training) -> None:
    """The printed script stops without HEAD, and hands it to Ray and to the question which nodes are there."""
    done = run.shell.run("train.sh", "qwen3-32b", "grpo", "--dry-run", **run.env)
    assert done.returncode == 0, done.stderr
    quiet = f"patchctl() {{ :; }}\n{done.stdout}".replace(str(SCRIPTS / "ray_cluster.sh"), "echo asked")
    script = program(run.shell.folder / "tools", "printed.sh", quiet)
    paths = {name: str(run.shell.folder) for name in ("MCORE_MODEL_PATH", "VAL_FILE")}
    stopped = run.shell.start("/bin/bash", script, **run.env, **paths)
    assert stopped.wait() != 0 and "HEAD: HOST:PORT" in stopped.err and stopped.out == ""
    goes = run.shell.start("/bin/bash", script, **run.env, **paths, HEAD="10.0.0.1:6766")
    assert goes.wait() == 0, goes.err
    assert "asked status --head 10.0.0.1:6766 --nodes 2 --devices 16" in goes.out
    assert started(goes)["env"]["RAY_ADDRESS"] == "10.0.0.1:6766"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "PROFILE and RECIPE are wanted, then KEY=VALUE; given: nothing"),
        ("qwen3-8b", "given: qwen3-8b"),
        ("qwen3-8b grpo more", "given: qwen3-8b grpo more"),
        ("qwen3-8b grpo --nope", "unknown option --nope"),
        ("qwen3-8b grpo --nodes", "--nodes wants a value"),
        ("qwen3-8b grpo --nodes two", "--nodes two: a whole number is wanted"),
        ("qwen3-8b grpo --path model", "--path model: NAME=PATH is wanted"),
        ("qwen3-8b grppo", "did you mean 'grpo'?"),
        ("qwen3-32b dapo", "no cluster is known for 2 nodes"),
        ("qwen3-8b grpo --workspace nowhere", "nowhere/verl: there is no such folder"),
    ],
)
def test_wrong_use(run: Training, line: str, told: str) -> None:
    done = run.shell.run("train.sh", *line.split(), **run.env)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


# A message, with its values in places that have numbers: text "the log: {1}" "$LOG"
MESSAGE = re.compile(r'\btext "([^"]*)"')
SAID = ("train.sh", "common.sh")


def chinese() -> dict[str, str]:
    """The Chinese of each message, as bash reads it."""
    told = 'declare -A CHINESE; . "$0"; for each in "${!CHINESE[@]}"; do printf "%s\\0%s\\0" "$each" "${CHINESE[$each]}"; done'
    done = subprocess.run(
        ["bash", "-c", told, SCRIPTS / "messages.zh_CN.sh"], capture_output=True, text=True, check=True
    )
    words = done.stdout.split("\0")[:-1]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_every_message_has_its_chinese_and_none_is_left_over() -> None:
    found = {each for name in SAID for each in MESSAGE.findall((SCRIPTS / name).read_text())}
    assert found == chinese().keys()
    for english, translation in chinese().items():
        assert sorted(re.findall(r"{\d}", english)) == sorted(re.findall(r"{\d}", translation))
        assert not re.search(r"[$`\\]", english) and translation != english
        assert not english_in(translation.replace("patchctl recipe show", "patchctl"))


@pytest.mark.parametrize("name", SAID)
def test_all_that_is_said_is_a_message(name: str) -> None:
    text = re.sub(r"(?ms)^ *#.*?$|<<'TEXT'.*^TEXT$", "", (SCRIPTS / name).read_text()).replace("\\\n", "")
    lines = [line for line in text.splitlines() if re.search(r"\b(say|die|wrong_use) ", line)]
    assert len(lines) >= 8
    assert [line for line in lines if english_in(MESSAGE.sub("", line))] == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "日志：x"),
        ({"LANG": "zh"}, "日志：x"),
        ({"LANG": "zh_Hans_CN.UTF-8"}, "the log: x"),
        ({"LANG": "zh_TW.UTF-8"}, "the log: x"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "the log: x"),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_SG.UTF-8"}, "日志：x"),
        ({"LC_ALL": "zh_CN.UTF-8", "PATCHCTL_LANG": "en"}, "the log: x"),
        ({"LC_ALL": "C", "PATCHCTL_LANG": "zh-CN"}, "日志：x"),
        ({"PATCHCTL_LANG": "zh-Hans"}, "日志：x"),
    ],
)
def test_the_language_is_that_of_patchctl(env: dict[str, str], said: str) -> None:
    told = 'set -u; SCRIPT=train.sh; . "$0"; text "the log: {1}" x'
    command = ["bash", "-c", told, str(SCRIPTS / "common.sh")]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=True)
    assert done.stdout == said
    assert (chosen(None, env) == CHINESE) == (said == "日志：x")


def test_the_other_scripts_speak_english(run: Training) -> None:
    done = run.shell.run("ray_cluster.sh", "--nope", **IN_CHINESE)
    assert done.returncode == 2 and done.stderr.isascii()


def test_values_are_never_read_as_a_message(run: Training) -> None:
    """What a person typed may look like a place of a value, or like code."""
    done = run.shell.run("train.sh", "{1}", "$(id)&\\1", "{2}", **IN_CHINESE)
    assert "实际给出：{1} $(id)&\\1 {2}\n  建议：train.sh --help" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "实际给出：无"),
        ("qwen3-8b grpo --nope", "未知选项 --nope"),
        ("qwen3-8b grpo --nodes", "--nodes 需要一个值"),
        ("qwen3-8b grpo --nodes two", "--nodes two：应为整数"),
        ("qwen3-32b dapo", "没有已知的集群可用于 2 个节点"),
        ("qwen3-8b grpo --workspace nowhere", "nowhere/verl：目录不存在"),
    ],
)
def test_wrong_use_in_chinese(run: Training, line: str, told: str) -> None:
    done = run.shell.run("train.sh", *line.split(), **(run.env | IN_CHINESE))
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr and "  建议：" in done.stderr and english_in(done.stderr) == [], done.stderr


def test_the_help_in_chinese_has_the_options_and_examples_of_the_english(run: Training) -> None:
    english, chinese = (run.shell.run("train.sh", "--help", **env).stdout for env in ({}, IN_CHINESE))
    assert chinese != english and english_in(chinese.replace("patchctl recipe command", "patchctl")) == []
    for words in (r"(?<![\w-])--?[a-z][a-z-]*", r"(?m)^  (?:\S+=\S+ )*train\.sh .*$", r"\b\d+\b"):
        assert sorted(re.findall(words, chinese)) == sorted(re.findall(words, english))


def test_a_training_in_chinese(run: Training) -> None:
    code, program = run.to_the_end(**IN_CHINESE, ENTRY_DOES="sys.exit(7)")
    assert code == 7 and f"train.sh: 训练以退出码 7 结束；日志：{run.logs()[0]}\n" in program.err
    code, program = run.to_the_end(**IN_CHINESE, PREFLIGHT_ENDS="1")
    assert code == 1 and "预检未通过：没有启动任何程序\n  建议：请按以上说明处理" in program.err
    code, program = run.to_the_end(**IN_CHINESE, MODEL_PATH="")
    assert code == 2 and "qwen3-8b/grpo 需要以下路径，但没有设置：\n  MODEL_PATH: " in program.err
    _, program = run.to_the_end("--dry-run", **IN_CHINESE)
    _, english = run.to_the_end("--dry-run")
    assert program.out == english.out


def test_it_waits_for_the_cluster_and_gives_up(ray_shell: Shell) -> None:
    run = Training(ray_shell)
    code, program = run.to_the_end("--head", "127.0.0.2:1", "--wait", 1)
    assert code == 1
    assert "nothing listens at 127.0.0.2:1" in program.err
    assert (program.out, run.logs()) == ("", [])


@pytest.mark.slow
def test_training_runs_in_the_cluster_that_was_started(ray_shell: Shell) -> None:
    """All of it: the head with the recipe's environment, then the training, whose tasks have it."""
    run = Training(ray_shell)
    state, port = ray_shell.folder / "state", free_port()
    head = ray_shell.start(
        "ray_cluster.sh",
        "head",
        "-p",
        "qwen3-8b",
        "-r",
        "grpo",
        "--node-ip",
        "127.0.0.2",
        "--interface",
        "lo",
        "--devices",
        16,
        "--port",
        port,
        "--state",
        state,
        "--temp-dir",
        ray_shell.folder / "r",
        "--",
        "--num-cpus",
        2,
        "--object-store-memory",
        80000000,
        "--dashboard-agent-listen-port",
        0,
        "--include-dashboard=false",
        "--ray-client-server-port",
        free_port(),
    )
    try:
        assert head.wait(120) == 0, head.err
        code, program = run.to_the_end(PATCHCTL_RAY_STATE_DIR=str(state), ENTRY_DOES=IN_RAY)
        assert code == 0, program.err + program.out
        found = json.loads(program.out.splitlines()[-1])
        assert found["npu"] == 16
        assert found["seen"]["HCCL_SOCKET_IFNAME"] == "lo"
        assert found["seen"]["HYDRA_FULL_ERROR"] == "1"
        assert "1 of 1 nodes, 16 of 16 NPU" in program.err
        few = ("--size", "devices_per_node=32", "--wait", 1)
        code, program = run.to_the_end(*few, PATCHCTL_RAY_STATE_DIR=str(state))
        assert (code, program.out) == (1, "")
        assert "too few NPU: 127.0.0.2" in program.err
    finally:
        ray_shell.run("ray_cluster.sh", "stop", "--state", state)
