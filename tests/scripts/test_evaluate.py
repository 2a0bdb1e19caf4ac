"""scripts/evaluate: the server and its refusals, AISBench's configuration, and the evaluation.

`vllm` is a stand-in: a small HTTP server of several processes, which answers after a while. AISBench is the real one where
PATCHCTL_AISBENCH names its `ais_bench` (pip install ais_bench_benchmark==3.1.20260630); its tests are skipped otherwise.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import free_port
from shells import Program, Shell, alive, program, session, wait_until
from trees import Trees

VLLM = """#!{python}
# Stands for `vllm serve`: notes its arguments, starts an engine process, answers after START_S, and knows some answers.
import http.server, json, os, subprocess, sys, time
argv = sys.argv[1:]
with open(os.environ["ARGV_FILE"], "w") as file:
    json.dump({{"argv": argv, "cann": os.environ.get("ASCEND_HOME_PATH")}}, file)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("loading", flush=True)
time.sleep(float(os.environ.get("START_S", "0")))
if "FAIL" in os.environ:
    sys.exit("no memory")
name, port = argv[argv.index("--served-model-name") + 1], int(argv[argv.index("--port") + 1])
ANSWERS = {{"two and two": "So \\\\boxed{{4}}.", "nine": "It is \\\\boxed{{3}}."}}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{}} if self.path == "/health" else {{"data": [{{"id": name}}]}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(os.environ["ARGV_FILE"] + ".asked", "a") as file:
            file.write(json.dumps(asked) + "\\n")
        text = next((answer for problem, answer in ANSWERS.items() if problem in asked["prompt"]), "I do not know.")
        self.reply({{"choices": [{{"text": text}}], "usage": {{"prompt_tokens": 5, "completion_tokens": 5}}}})

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
# Of MATH's shape: problems with boxed solutions. The stand-in answers the first rightly, the second wrongly.
PROBLEMS = {
    "0": {"problem": "What is two and two?", "solution": r"It is $\boxed{4}$.", "level": "1"},
    "1": {"problem": "What is the square of nine?", "solution": r"$\boxed{81}$"},
}
# 003, 4.8.2, without what VLLMCustomAPI of AISBench 3.1 does not take.
VALUES = {
    "attr": "service",
    "abbr": "vllm-api-general",
    "model": "qwen3-32b",
    "request_rate": 0,
    "retry": 2,
    "host_ip": "localhost",
    "host_port": 6380,
    "enable_ssl": False,
    "max_out_len": 20480,
    "batch_size": 48,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


class Server:
    """serve.sh with the stand-in of vllm."""

    def __init__(self, shell: Shell, model: Path) -> None:
        self.shell, self.model, self.port = shell, model, free_port()
        self.cwd = shell.folder / "run"
        self.cwd.mkdir()
        program(shell.folder / "tools", "vllm", VLLM.format(python=sys.executable))
        shell.path = [shell.folder / "tools", *shell.path]
        self.asked = shell.folder / "argv"

    def start(self, *args: object, **env: str) -> Program:
        return self.shell.start(
            "evaluate/serve.sh", self.model, "--port", self.port, *args, cwd=self.cwd, ARGV_FILE=str(self.asked), **env
        )

    def noted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.asked.read_text())
        return found


@pytest.fixture
def server(shell: Shell, model: Path) -> Server:
    return Server(shell, model)


def test_the_server_has_the_settings_of_003(server: Server) -> None:
    program = server.start("--wait", 20, "--", "--max-num-seqs", 12)
    program.until("is served at")
    argv = server.noted()["argv"]
    assert argv[:2] == ["serve", str(server.model)]
    pairs = dict(pairwise(argv))
    wanted = {
        "--served-model-name": "qwen3-32b",
        "--gpu-memory-utilization": "0.9",
        "--max-model-len": "22528",
        "--max-num-batched-tokens": "22528",
        "--tensor-parallel-size": "4",
        "--data-parallel-size": "4",
        "--distributed-executor-backend": "mp",
        "--generation-config": "vllm",
        "--host": "127.0.0.1",
    }
    assert {name: pairs.get(name) for name in wanted} == wanted
    assert {"--enforce-eager", "--trust-remote-code"} <= set(argv)
    assert argv[-2:] == ["--max-num-seqs", "12"] and argv[argv.index("--max-num-seqs") + 1] == "24"


def test_every_option_is_one_of_vllm(server: Server, trees: Trees) -> None:
    """Held against the vllm under test."""
    file = trees.path("vllm") / "vllm" / "engine" / "arg_utils.py"
    known = file.read_text() + (file.parents[1] / "entrypoints" / "openai" / "cli_args.py").read_text()
    program = server.start("--wait", 20)
    program.until("is served at")
    for option in {word for word in server.noted()["argv"] if word.startswith("--")}:
        name = option[2:]
        assert f'"--{name}"' in known or re.search(rf"^\s+{name.replace('-', '_')}:", known, re.M), option


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("answering", [True, False])
def test_an_interrupted_server_takes_its_processes_along(
    server: Server, number: signal.Signals, status: int, answering: bool
) -> None:
    program = server.start(START_S="0" if answering else "600")
    program.until("is served at" if answering else "waiting up to 1800 s")
    wait_until(lambda: server.asked.exists() and len(session(program.process.pid)) >= 3)
    program.signal(number)
    assert program.wait(20) == status
    assert [pid for pid in session(program.process.pid) if alive(pid)] == []


def test_a_server_that_ends_is_told_with_its_last_words(server: Server) -> None:
    program = server.start(FAIL="1", START_S="0.5")
    assert program.wait(20) == 1
    assert "no memory" in program.err and "the server ended before it answered" in program.err
    assert [pid for pid in session(program.process.pid) if alive(pid)] == []


def test_a_server_that_does_not_answer_in_time(server: Server) -> None:
    program = server.start("--wait", 1, START_S="600")
    assert program.wait(20) == 1
    assert "the server did not answer in 1 s" in program.err
    assert [pid for pid in session(program.process.pid) if alive(pid)] == []


def test_a_port_that_answers_already(server: Server) -> None:
    server.start().until("is served at")
    second = server.start()
    assert second.wait(20) == 6
    assert f"127.0.0.1:{server.port} answers already" in second.err


def test_not_under_home(server: Server) -> None:
    server.cwd = Path("/home")
    program = server.start()
    assert program.wait(20) == 2
    assert "fails when it is started under /home" in program.err
    assert not server.asked.exists()


def test_not_where_a_folder_hides_the_package(server: Server) -> None:
    (server.cwd / "vllm").mkdir()
    program = server.start()
    assert program.wait(20) == 2
    assert "has a folder vllm, which Python may import in place of the package" in program.err


def test_no_model_no_server(server: Server) -> None:
    (server.model / "config.json").unlink()
    program = server.start()
    assert program.wait(20) == 2
    assert "no model is there (config.json)" in program.err and not server.asked.exists()


def test_cann_comes_first(server: Server) -> None:
    script = server.shell.folder / "cann" / "ascend-toolkit" / "set_env.sh"
    script.parent.mkdir(parents=True)
    script.write_text("export ASCEND_HOME_PATH=/cann/of/test\n")
    server.start("--cann", server.shell.folder / "cann").until("is served at")
    assert server.noted()["cann"] == "/cann/of/test"


def config(shell: Shell, source: Path, *args: object) -> subprocess.CompletedProcess[str]:
    done = shell.run("evaluate/aisbench_config.py", shell.folder / "out", "--math", source, "--path", "/m", *args)
    assert "Traceback" not in done.stderr
    return done


def written(shell: Shell) -> dict[str, Any]:
    """The one model of the file, read without AISBench."""
    text = (shell.folder / "out" / "config" / "models" / "vllm_api_general.py").read_text()
    imported, assigned = ast.parse(text).body
    assert ast.unparse(imported) == "from ais_bench.benchmark.models import VLLMCustomAPI"
    assert isinstance(assigned, ast.Assign)
    names: dict[str, Any] = {"VLLMCustomAPI": "VLLMCustomAPI", "dict": dict}
    (model,) = eval(ast.unparse(assigned.value), {"__builtins__": {}}, names)
    return dict(model)


def made_problems(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_prm800k_500.json").write_text(json.dumps(PROBLEMS))
    return folder


def test_the_configuration_has_the_values_of_003(shell: Shell) -> None:
    assert config(shell, made_problems(shell.folder / "math")).returncode == 0
    model = written(shell)
    assert model.pop("generation_kwargs") == {"temperature": 0, "seed": 1234}
    assert model == VALUES | {"type": "VLLMCustomAPI", "path": "/m"}


def test_other_values_and_awkward_names(shell: Shell) -> None:
    name = 'it\'s \\ a "name"'
    config(shell, made_problems(shell.folder / "math"), "--name", name, "--port", 7, "--host", "10.0.0.9")
    model = written(shell)
    assert (model["model"], model["host_port"], model["host_ip"]) == (name, 7, "10.0.0.9")


def test_the_data_from_each_form(shell: Shell) -> None:
    folder, lines = made_problems(shell.folder / "math"), shell.folder / "test.jsonl"
    lines.write_text("".join(json.dumps(row | {"answer": "x"}) + "\n" for row in PROBLEMS.values()) + "\n")
    wanted = {n: {"problem": row["problem"], "solution": row["solution"]} for n, row in PROBLEMS.items()}
    for source in (folder, folder / "test_prm800k_500.json", lines):
        assert config(shell, source).returncode == 0
        found = shell.folder / "out" / "data" / "ais_bench" / "datasets" / "math" / "test_prm800k_500.json"
        assert json.loads(found.read_text()) == wanted
        found.unlink()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("", "Expecting value"),
        ("{}", "nothing in it"),
        ('{"0": {"problem": "p"}}', "0 has no problem and solution"),
        ('{"0": {"problem": "p", "solution": "42"}}', "has no \\boxed answer"),
        ("7", "'int' object is not iterable"),
        (b"\xff\xfe\x00", "decode"),
    ],
)
def test_data_that_cannot_be_used(shell: Shell, text: str | bytes | None, told: str) -> None:
    file = shell.folder / "data.json"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    done = config(shell, file)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (shell.folder / "out").exists()


def test_a_host_that_aisbench_refuses(shell: Shell) -> None:
    done = config(shell, made_problems(shell.folder / "math"), "--host", "node7")
    assert (done.returncode, "AISBench takes localhost or an address" in done.stderr) == (2, True)


AIS_BENCH = """#!/bin/sh
# Stands for AISBench: says how it was started.
echo "at $AIS_BENCH_DATASETS_CACHE without $no_proxy: $*"
exit "${AIS_BENCH_ENDS:-0}"
"""


class Evaluation:
    """run.sh against the stand-in server."""

    def __init__(self, server: Server) -> None:
        self.server, self.shell = server, server.shell
        self.math = made_problems(server.shell.folder / "math")

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        known = ("--math", self.math, "--model", self.server.model, "--port", self.server.port, "--wait", 10)
        return self.shell.run("evaluate/run.sh", *known, *args, cwd=self.server.cwd, timeout=300, **env)


@pytest.fixture
def evaluation(server: Server) -> Evaluation:
    program(server.shell.folder / "tools", "ais_bench", AIS_BENCH)
    return Evaluation(server)


def test_the_evaluation_runs_aisbench_and_keeps_its_status(evaluation: Evaluation) -> None:
    evaluation.server.start().until("is served at")
    done = evaluation.run("--", "--num-prompts", "8", AIS_BENCH_ENDS="5")
    assert done.returncode == 5
    out = evaluation.server.cwd / "outputs" / "math-500"
    wanted = (
        f"at {out}/data without localhost: --models vllm_api_general --datasets math_prm800k_500_0shot_cot_gen "
        f"--config-dir {out}/config --work-dir {out}/results --num-prompts 8\n"
    )
    assert done.stdout == wanted
    assert [log.read_text() for log in out.glob("*.log")] == [wanted]


def test_another_model_than_asked_for(evaluation: Evaluation) -> None:
    evaluation.server.start("--name", "qwen3-8b").until("is served at")
    done = evaluation.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not serve qwen3-32b but: qwen3-8b" in done.stderr


def test_no_server(evaluation: Evaluation) -> None:
    done = evaluation.run("--wait", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no server answers at" in done.stderr


def test_data_is_not_fetched_but_told_where(shell: Shell) -> None:
    done = shell.run("evaluate/run.sh", "--model", "/nowhere")
    assert (done.returncode, "datasets/data/math.zip" in done.stderr) == (2, True)


def test_the_real_aisbench(server: Server) -> None:
    """All of it: two problems, of which the server answers one rightly: an accuracy of 50."""
    found = os.environ.get("PATCHCTL_AISBENCH")
    if not found:
        pytest.skip("PATCHCTL_AISBENCH is not set: it names the ais_bench of ais_bench_benchmark")
    evaluation = Evaluation(server)
    server.start().until("is served at")
    server.shell.path = [Path(found).parent, *server.shell.path]
    done = evaluation.run("--", "--debug")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (summary,) = (server.cwd / "outputs" / "math-500" / "results").rglob("summary_*.csv")
    assert re.search(r"math_prm800k_500,\w*,accuracy,gen,50\.00", summary.read_text()), summary.read_text()
    asked = [json.loads(line) for line in Path(f"{server.asked}.asked").read_text().splitlines()]
    assert {(a["model"], a["max_tokens"], a["temperature"], a["seed"]) for a in asked} == {
        ("qwen3-32b", 20480, 0, 1234)
    }
