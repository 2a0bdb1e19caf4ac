"""scripts/ray_cluster.sh with the real ray: a head and two workers on one machine, beside a Ray of somebody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import free_port
from shells import SCRIPTS, Program, Shell, alive, marked, named, session, wait_until

HEAD, WORKERS, NOBODY = "127.0.0.2", ("127.0.0.3", "127.0.0.4"), "127.0.0.9"
# Sizes that three nodes divide.
RECIPE = ("--profile", "qwen3-8b", "--recipe", "grpo", "--size", "batch=96", "--size", "mini_batch=96")
NPUS = 16
SMALL = ("--num-cpus", "1", "--object-store-memory", "80000000", "--dashboard-agent-listen-port", "0")
START_S = 300
# What a task sees on each node. The driver has none of it.
LOOK = """
import json, os, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
look = ray.remote(num_cpus=0)(lambda: dict(os.environ))
nodes = [n for n in ray.nodes() if n["Alive"]]
found = ray.get([look.options(scheduling_strategy=On(n["NodeID"], soft=False)).remote() for n in nodes])
print(json.dumps({n["NodeManagerAddress"]: seen for n, seen in zip(nodes, found)}))
"""


def of_head(port: int) -> tuple[object, ...]:
    return (*SMALL, "--include-dashboard=false", "--ray-client-server-port", free_port())


def here(address: str) -> tuple[object, ...]:
    return ("--node-ip", address, "--interface", "lo", "--devices", NPUS, "--poll", 1)


@dataclass
class Cluster:
    shell: Shell
    port: int
    foreign: Program
    foreign_port: int
    said: list[str]

    def state(self, address: str) -> Path:
        return self.shell.folder / f"state-{address}"

    def raylet(self, address: str) -> int:
        (pid,) = named(marked(f"{self.state(address)}"), "raylet")
        return pid

    def status(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.shell.run(
            "ray_cluster.sh", "status", "--state", self.state(HEAD), "--devices", NPUS, "--poll", 1, *args, **env
        )


@pytest.fixture(scope="module")
def cluster(ray_shell: Shell, torch_python: Path) -> Iterator[Cluster]:
    shell, port, foreign_port = ray_shell, free_port(), free_port()
    foreign = shell.start(
        torch_python.parent / "ray",
        "start",
        "--head",
        "--block",
        "--port",
        foreign_port,
        "--node-ip-address",
        "127.0.0.7",
        "--temp-dir",
        shell.folder / "f",
        *of_head(foreign_port),
    )
    wait_until(lambda: bool(named(session(foreign.process.pid), "raylet")))
    made = Cluster(shell, port, foreign, foreign_port, [])
    head = shell.start(
        "ray_cluster.sh",
        "head",
        *RECIPE,
        "--nodes",
        3,
        "--expect",
        ",".join((HEAD, *WORKERS)),
        "--port",
        port,
        "--temp-dir",
        shell.folder / "r",
        "--state",
        made.state(HEAD),
        "--wait",
        START_S,
        *here(HEAD),
        "--",
        *of_head(port),
    )
    try:
        for address in WORKERS:  # one after the other: several at once on one machine get in each other's way, in Ray
            worker = shell.start(
                "ray_cluster.sh",
                "worker",
                *RECIPE,
                "--nodes",
                3,
                "--head",
                f"{HEAD}:{port}",
                "--state",
                made.state(address),
                "--wait",
                START_S,
                *here(address),
                "--",
                *SMALL,
            )
            assert worker.wait(START_S) == 0, worker.err
        assert head.wait(START_S) == 0, head.err
        made.said.append(head.err + head.out)
        yield made
    finally:
        for address in (*WORKERS, HEAD):
            shell.run("ray_cluster.sh", "stop", "--state", made.state(address))


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def test_head_waits_for_all_and_names_each(cluster: Cluster) -> None:
    assert "1 of 3 nodes" in cluster.said[0] or "2 of 3 nodes" in cluster.said[0]
    for address in (HEAD, *WORKERS):
        assert f"{address}    16  alive" in cluster.said[0]
    assert "3 of 3 nodes, 48 of 48 NPU" in cluster.said[0]


def test_tasks_on_every_node_have_the_environment(cluster: Cluster, torch_python: Path) -> None:
    done = subprocess.run(
        [torch_python, "-c", LOOK, f"{HEAD}:{cluster.port}"],
        env=cluster.shell.environment(),
        cwd=cluster.shell.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    wanted = {
        "TASK_QUEUE_ENABLE": "1",
        "HCCL_EXEC_TIMEOUT": "3600",
        "HCCL_CONNECT_TIMEOUT": "3600",
        "RAY_DEDUP_LOGS": "0",
    }
    wanted |= {"HCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "SOCKET_IFNAME": "lo", "MASTER_ADDR": HEAD}
    assert set(seen) == {HEAD, *WORKERS}
    for address, variables in seen.items():
        assert {name: variables.get(name) for name in wanted} == wanted, address


def test_status_is_quiet_when_all_is_there(cluster: Cluster) -> None:
    done = cluster.status("--nodes", 3, *RECIPE, PATCHCTL_NO_PROGRESS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("3 of 3 nodes, 48 of 48 NPU\n")


def test_the_engines_nodes_are_waited_for(cluster: Cluster) -> None:
    """Those of a recipe whose engines have nodes of their own, with a setting of the user's."""
    recipe = ["--profile", "qwen3-235b", "--recipe", "grpo-delta", "--nodes", 8, "--size", "rollout_nodes=4"]
    done = cluster.status(*recipe, "trainer.total_epochs=1")
    assert (done.returncode, "3 of 12 nodes" in done.stdout) == (1, True), done.stdout + done.stderr


def test_a_missing_node_is_named(cluster: Cluster) -> None:
    hosts = cluster.shell.folder / "hosts"
    hosts.write_text(f"# the nodes\n{HEAD}\n{WORKERS[0]} slots=16\n\n{NOBODY}\r\n")
    done = cluster.status("--hosts", hosts, "--nodes", 4, "--json", "--wait", 2)
    found = json.loads(done.stdout)
    assert (done.returncode, found["missing"], found["complete"]) == (1, [NOBODY], False)
    assert {node["address"] for node in found["nodes"]} == {HEAD, *WORKERS}
    assert f"missing: {NOBODY} (waiting 2 s more)" in done.stderr


def test_too_few_devices_are_told(cluster: Cluster) -> None:
    done = cluster.status("--nodes", 3, "--devices", 32)
    assert done.returncode == 1
    assert f"too few NPU: {HEAD} {WORKERS[0]} {WORKERS[1]}" in done.stdout


def test_another_environment_than_the_recipes_is_refused(cluster: Cluster) -> None:
    other = cluster.shell.folder / "other.env"
    other.write_text("export TASK_QUEUE_ENABLE=2\nexport HCCL_EXEC_TIMEOUT=3600\n")
    done = cluster.status("--nodes", 3, "--env-file", other)
    assert done.returncode == 1
    assert "another environment: TASK_QUEUE_ENABLE=1 (the recipe: 2)" in done.stderr


def test_a_second_head_is_refused(cluster: Cluster) -> None:
    again = ("ray_cluster.sh", "head", "--no-env", "--port", cluster.port, *here(HEAD))
    done = cluster.shell.run(*again, "--state", cluster.state(HEAD))
    assert (done.returncode, "runs here already" in done.stderr) == (6, True)
    done = cluster.shell.run(*again, "--state", cluster.shell.folder / "other")
    assert (done.returncode, f"port {cluster.port} of {HEAD} is taken" in done.stderr) == (6, True)


def test_what_others_run_is_said_and_left_alone(cluster: Cluster) -> None:
    """And what is stopped is one raylet of ours, with all that it started; the others stay."""
    (theirs,) = named(session(cluster.foreign.process.pid), "raylet")
    assert f"another raylet (pid {theirs}) runs on this machine; it is left alone" in cluster.said[0]
    ours = cluster.raylet(WORKERS[0])
    done = cluster.shell.run("ray_cluster.sh", "stop", "--state", cluster.state(WORKERS[0]))
    assert (done.returncode, done.stderr) == (0, "ray_cluster.sh: stopped\n")
    assert not marked(f"{cluster.state(WORKERS[0])}")
    assert not alive(ours)
    assert alive(theirs) and listens("127.0.0.7", cluster.foreign_port)
    assert alive(cluster.raylet(WORKERS[1])) and alive(cluster.raylet(HEAD))


@pytest.mark.slow
def test_a_node_that_dies_is_named(cluster: Cluster) -> None:
    os.kill(cluster.raylet(WORKERS[1]), signal.SIGKILL)
    found: dict[str, object] = {}

    def gone() -> bool:
        found.update(json.loads(cluster.status("--nodes", 3, "--json").stdout))
        return WORKERS[1] in str(found["left"])

    wait_until(gone)
    assert found["complete"] is False
    assert WORKERS[1] in str(found["left"])
    assert alive(cluster.raylet(HEAD))


@pytest.mark.slow
def test_an_interrupted_head_stops_what_it_started(cluster: Cluster) -> None:
    state, port = cluster.shell.folder / "interrupted", free_port()
    head = cluster.shell.start(
        "ray_cluster.sh",
        "head",
        "--no-env",
        "--nodes",
        2,
        "--port",
        port,
        "--state",
        state,
        "--temp-dir",
        cluster.shell.folder / "i",
        *here("127.0.0.5"),
        "--",
        *of_head(port),
    )
    head.until("1 of 2 nodes")
    assert marked(f"{state}")
    head.interrupt()
    assert head.wait() == 130, head.err
    assert "stopping what was started here" in head.err
    assert not marked(f"{state}")
    assert not listens("127.0.0.5", port)
    assert alive(cluster.raylet(HEAD)) and listens("127.0.0.7", cluster.foreign_port)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_worker_that_waits_ends_when_it_is_told(ray_shell: Shell, number: signal.Signals, status: int) -> None:
    worker = ray_shell.start("ray_cluster.sh", "worker", "--no-env", "--head", f"{HEAD}:1", *here(NOBODY))
    worker.until("nothing listens")
    worker.signal(number)
    assert worker.wait(5) == status
    assert not [pid for pid in session(worker.process.pid) if alive(pid)]


def test_a_wait_runs_out(ray_shell: Shell) -> None:
    worker = ("ray_cluster.sh", "worker", "--no-env", "--head", f"{HEAD}:1", *here(NOBODY), "--wait", 1)
    done = ray_shell.run(*worker, timeout=10)
    assert done.returncode == 1
    assert f"the head at {HEAD}:1 was not reached in 1 s" in done.stderr


def test_an_environment_that_lacks_a_path_is_refused(ray_shell: Shell) -> None:
    """`patchctl recipe env` leaves a path that nobody has given to a variable; here the file of one is on no node."""
    file = ray_shell.folder / "lacks.env"
    file.write_text(
        '# a recipe\nexport TASK_QUEUE_ENABLE=1\nexport LD_PRELOAD="${JEMALLOC:?the library of jemalloc}"\n'
    )
    line = ("ray_cluster.sh", "head", "--env-file", file, *here(HEAD))
    done = ray_shell.run(*line)
    assert done.returncode == 2
    assert "the environment is incomplete: JEMALLOC: the library of jemalloc" in done.stderr
    done = ray_shell.run(*line, JEMALLOC="/nowhere/libjemalloc.so.2")
    assert done.returncode == 2
    assert "LD_PRELOAD=/nowhere/libjemalloc.so.2: there is no such library" in done.stderr


def test_cann_is_sourced_before_ray_starts(ray_shell: Shell) -> None:
    """By a file that is not fit for `set -u` and `set -e`, as CANN's are; then the next thing that is missing is told."""
    file = ray_shell.folder / "cann" / "ascend-toolkit" / "set_env.sh"
    file.parent.mkdir(parents=True)
    file.write_text('[ -n "$NOT_SET" ]\nfalse\nexport ASCEND_HOME_PATH=/nowhere LD_PRELOAD_OF_TEST=$ALSO_NOT_SET\n')
    line = ("ray_cluster.sh", "worker", "--no-env", "--head", f"{HEAD}:1", *here(NOBODY), "--wait", 0)
    done = ray_shell.run(*line, "--cann", ray_shell.folder / "cann")
    assert (done.returncode, f"sourcing {file}" in done.stderr) == (1, True)
    assert "sourcing" not in ray_shell.run(*line, "--cann", ray_shell.folder / "cann", ASCEND_HOME_PATH="/x").stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "head, worker, status or stop?"),
        ("frobnicate", "unknown command frobnicate"),
        ("head --port", "--port wants a value"),
        ("head --port x", "--port x: a whole number is wanted"),
        ("head --nodes -1", "--nodes -1: a whole number is wanted"),
        ("head --hosts nowhere", "--hosts nowhere: no such file"),
        ("head --nope", "unknown option --nope"),
        ("head -r grpo", "give --profile and --recipe"),
        ("worker --no-env", "worker wants --head ADDRESS"),
        ("status --state nowhere", "which cluster?"),
    ],
)
def test_wrong_use(ray_shell: Shell, line: str, told: str) -> None:
    done = ray_shell.run("ray_cluster.sh", *line.split(), timeout=10)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_which_environment_has_to_be_said(ray_shell: Shell) -> None:
    done = ray_shell.run("ray_cluster.sh", "head", *here(HEAD))
    assert (done.returncode, "which environment?" in done.stderr) == (2, True)


def test_the_interface_is_that_of_the_way_there(shell: Shell) -> None:
    """As `ip` has it, which containers may lack."""
    if shutil.which("ip") is None:
        pytest.skip("no ip (iproute2) to compare with")
    route = subprocess.run(["ip", "-o", "-4", "route", "get", "192.0.2.1"], capture_output=True, text=True, check=False)
    found = re.search(r" dev (\S+) .*src (\S+)", route.stdout)
    if found is None:
        pytest.skip("no way out of this machine")
    done = shell.run("ray_nodes.py", "local", "192.0.2.1")
    assert done.stdout.split() == [found[2], found[1]]
    assert shell.run("ray_nodes.py", "local", "127.0.0.1").stdout == "127.0.0.1 lo\n"
    assert shell.run("ray_nodes.py", "local", "no-such-host.invalid").returncode == 1


def test_a_heads_name_is_its_address(shell: Shell) -> None:
    """Which workers export as MASTER_ADDR, as the head does."""
    assert shell.run("ray_nodes.py", "address", "localhost").stdout == "127.0.0.1\n"
    assert shell.run("ray_nodes.py", "address", "no-such-host.invalid").returncode == 1


def test_nothing_is_no_fault_for_stop(shell: Shell) -> None:
    address = shell.folder / "state/address"  # of a cluster that has died
    address.parent.mkdir()
    address.write_text("10.0.0.1:6766\n")
    done = shell.run("ray_cluster.sh", "stop", "--state", address.parent)
    assert (done.returncode, "nothing runs here" in done.stderr, address.exists()) == (0, True, False)


def test_nothing_here_kills_by_name() -> None:
    for script in SCRIPTS.rglob("*.sh"):
        lines = [line.partition("#")[0] for line in script.read_text().splitlines()]
        assert not [line for line in lines if "pkill" in line or "killall" in line or "ray stop" in line], script
