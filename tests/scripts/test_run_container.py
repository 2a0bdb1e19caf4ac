"""scripts/run_container.sh on made hosts. `docker` and `podman` are stand-ins that print what they are given."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from pins import distribution
from shells import Shell, program

REPOSITORY = Path(__file__).parents[2]
RECORDER = """#!/usr/bin/env python3
# Stands for a container tool: prints its arguments. What a real one does with them needs a daemon and an NPU.
import json, sys
print(json.dumps(sys.argv))
"""
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
DRIVER = "usr/local/Ascend/driver"
FILES = (
    "usr/local/dcmi",
    "usr/local/bin/npu-smi",
    "usr/bin/msnpureport",
    "usr/local/sbin",
    "etc/localtime",
    "var/log/npu/slog/slogd",
)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a machine as 002 and 003 have it: 16 NPUs, the driver, and its files."""
    root = tmp_path / "host"
    for name in (*(f"davinci{n}" for n in range(16)), *MANAGERS):
        _touch(root / "dev" / name)
    for name in (DRIVER, *FILES):
        _touch(root / name)
    return root


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def start(shell: Shell, host: Path, *args: object, tool: str = "docker") -> subprocess.CompletedProcess[str]:
    program(shell.folder / "tools", tool, RECORDER)
    shell.path = [shell.folder / "tools", Path("/usr/bin"), Path("/bin")]
    return shell.run("run_container.sh", *args, PATCHCTL_HOST_ROOT=str(host))


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def after(argv: list[str], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


def test_devices_are_found_in_order(shell: Shell, host: Path) -> None:
    argv = words(start(shell, host, "image:1"))
    wanted = [f"/dev/davinci{n}" for n in range(16)] + [f"/dev/{name}" for name in MANAGERS]
    assert after(argv, "--device") == wanted
    assert argv[-2:] == ["image:1", "/bin/bash"]


def test_network_memory_and_rights(shell: Shell, host: Path) -> None:
    argv = words(start(shell, host, "image:1"))
    assert argv[1:3] == ["run", "-itd"]
    assert "--net=host" in argv and "--privileged" not in argv
    assert after(argv, "--shm-size") == ["720g"]
    assert "--privileged" in words(start(shell, host, "image:1", "--privileged", "--shm-size", "64g"))


def test_the_drivers_files_cannot_be_changed_from_within(shell: Shell, host: Path) -> None:
    mounts = after(words(start(shell, host, "image:1")), "-v")
    assert f"/{DRIVER}:/{DRIVER}:ro" in mounts
    assert sorted(mount.split(":")[0] for mount in mounts) == sorted(f"/{name}" for name in (DRIVER, *FILES))
    assert [m for m in mounts if not m.endswith(":ro")] == ["/var/log/npu/slog/slogd:/var/log/npu/slog/slogd"]


def test_what_is_not_there_is_not_mounted(shell: Shell, host: Path) -> None:
    (host / "usr/bin/msnpureport").unlink()
    done = start(shell, host, "image:1")
    assert "/usr/bin/msnpureport is not there, and is not mounted" in done.stderr
    assert not [m for m in after(words(done), "-v") if "msnpureport" in m]


def test_weights_variables_and_a_command(shell: Shell, host: Path) -> None:
    weights = shell.folder / "my weights"
    weights.mkdir()
    argv = words(
        start(
            shell,
            host,
            "-v",
            f"{weights}:/data/weights:ro",
            "-e",
            "MODEL_PATH=/data/weights",
            "image:1",
            "--interface",
            "eth7",
            "--option",
            "--cap-add=SYS_PTRACE",
            "--",
            "bash",
            "-c",
            "echo two words",
        )
    )
    assert f"{weights}:/data/weights:ro" in after(argv, "-v")
    assert after(argv, "-e") == ["MODEL_PATH=/data/weights", "HCCL_SOCKET_IFNAME=eth7", "GLOO_SOCKET_IFNAME=eth7"]
    assert argv[-5:] == ["--cap-add=SYS_PTRACE", "image:1", "bash", "-c", "echo two words"]


def test_some_of_the_npus(shell: Shell, host: Path) -> None:
    argv = words(start(shell, host, "image:1", "--npus", "0,8-9"))
    assert after(argv, "--device")[:3] == ["/dev/davinci0", "/dev/davinci8", "/dev/davinci9"]
    assert len(after(argv, "--device")) == 6


def test_a_dry_run_prints_the_same_command(shell: Shell, host: Path) -> None:
    started = words(start(shell, host, "image:1", "--", "echo", "it's"))
    printed = start(shell, host, "image:1", "--dry-run", "--", "echo", "it's").stdout
    assert shlex.split(printed)[1:] == started[1:]


def test_a_dry_run_elsewhere_prints_what_an_npu_machine_runs(shell: Shell, host: Path, tmp_path: Path) -> None:
    """Without NPUs, driver, tool and weights: the command of a whole machine, and what of it is only assumed."""
    there = words(start(shell, host, "image:1", "-v", f"{tmp_path}:/data/weights:ro"))
    shell.path = [Path("/usr/bin"), Path("/bin")]
    weights = "/nowhere/at/all:/data/weights:ro"
    elsewhere = str(tmp_path / "elsewhere")
    done = shell.run(
        "run_container.sh", "image:1", "-v", weights, "--tool", "docker", "--dry-run", PATCHCTL_HOST_ROOT=elsewhere
    )
    assert done.returncode == 0, done.stderr
    printed = shlex.split(done.stdout)
    assert printed[:3] == ["docker", "run", "-itd"]
    assert after(printed, "--device") == after(there, "--device")
    assert after(printed, "-v") == [*after(there, "-v")[:-1], weights]
    for absent in ("no NPU was found", f"{DRIVER} is not there", "/nowhere/at/all is not there"):
        assert [line for line in done.stderr.splitlines() if absent in line and "a dry run assumes" in line], absent


def test_a_dry_run_elsewhere_has_the_npus_that_are_asked_for(shell: Shell, tmp_path: Path) -> None:
    done = start(shell, tmp_path, "image:1", "--npus", "0,8-9", "--dry-run")
    assert done.returncode == 0, done.stderr
    devices = after(shlex.split(done.stdout), "--device")
    assert devices == ["/dev/davinci0", "/dev/davinci8", "/dev/davinci9", *(f"/dev/{name}" for name in MANAGERS)]
    assert "not there: /dev/davinci0 " in done.stderr and "a dry run assumes" in done.stderr


def test_a_dry_run_refuses_what_is_wrong_on_every_machine(shell: Shell, tmp_path: Path) -> None:
    for line, told in (("-v /tmp:/home", "hides what the image has"), ("--npus x", "numbers and ranges are wanted")):
        done = start(shell, tmp_path, "image:1", "--dry-run", *line.split())
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr


def test_podman_is_taken_where_there_is_no_docker(shell: Shell, host: Path) -> None:
    done = start(shell, host, "image:1", tool="podman")
    if (Path("/usr/bin") / "docker").exists():
        pytest.skip("this machine has a docker in /usr/bin")
    assert words(done)[0].endswith("/podman")
    assert "podman exec -it patchctl bash" in done.stderr


@pytest.mark.parametrize("gone", ["dev/hisi_hdc", "dev/davinci_manager", DRIVER])
def test_what_is_missing_is_named(shell: Shell, host: Path, gone: str) -> None:
    (host / gone).unlink()
    done = start(shell, host, "image:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"/{gone}" in done.stderr


def test_the_driver_that_is_advised_is_one_of_a_release(shell: Shell, host: Path) -> None:
    (host / DRIVER).unlink()
    told = start(shell, host, "image:1").stderr
    for release in distribution().releases.values():
        assert f"{release.runtime['driver']} for {release.name}" in told


def test_a_machine_without_npus(shell: Shell, tmp_path: Path) -> None:
    done = start(shell, tmp_path, "image:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no NPU was found" in done.stderr


@pytest.mark.parametrize("target", ["/home", "/home/", "/data/../home", "/"])
def test_home_is_not_hidden(shell: Shell, host: Path, target: str) -> None:
    done = start(shell, host, "image:1", "-v", f"/tmp:{target}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hides what the image has" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "IMAGE is wanted"),
        ("one two", "one IMAGE, not one and two"),
        ("image -v", "-v wants a value"),
        ("image -v /tmp", "SOURCE:TARGET, both from / on"),
        ("image -v here:/there", "SOURCE:TARGET, both from / on"),
        ("image -v /nowhere/at/all:/data", "/nowhere/at/all is not there"),
        ("image --npus 1,x", "--npus 1,x: numbers and ranges are wanted"),
        ("image --npus 0,3-1", "--npus 0,3-1: 3-1 ends before it begins"),
        ("image --npus 0,77", "not there: /dev/davinci77"),
        ("image --nope", "unknown option --nope"),
        ("image --tool nope", "there is no nope on PATH"),
        ("image --", "-- is followed by a command"),
    ],
)
def test_wrong_use(shell: Shell, host: Path, line: str, told: str) -> None:
    done = start(shell, host, *line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
