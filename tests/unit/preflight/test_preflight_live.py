"""Looking at this machine: real tools and files, programs that fail, and what must not be kept."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from patchctl.training.preflight import machine as m
from patchctl.training.preflight.live import ProbeRequest, _interface, look
from patchctl.training.preflight.machine import (
    DevicePort,
    device_ports,
    interfaces,
    listening,
    local_ports,
    mount_of,
    mounts,
    packages,
    port_ranges,
    python_version,
)


def program(folder: Path, name: str, script: str) -> str:
    """A PATH whose first folder has this program."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def questions(**changed: object) -> ProbeRequest:
    return ProbeRequest(**{"python": sys.executable, "environment": {**os.environ, "HOME": "/nobody"}, **changed})  # type: ignore[arg-type]


def test_what_this_machine_has() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        found = look(questions())
        assert server.getsockname()[1] in listening(found.texts[m.SOCKETS])
    assert python_version(found.texts[m.PYTHON]) == sys.version.split()[0]
    assert "pytest" in (packages(found.texts[m.PACKAGES]) or {})
    assert mount_of("/", mounts(found.texts[m.DISKS])) is not None
    assert any(i.name == "lo" for i in interfaces(found.data(m.ADDRESSES)))
    assert found.data(m.CACHES) == [] and found.live


def test_interfaces_without_ip() -> None:
    (lo,) = interfaces([_interface("lo")])
    assert (lo.name, lo.up, lo.addresses) == ("lo", True, ("127.0.0.1",))
    (none,) = interfaces([_interface("nobody0")])
    assert (none.up, none.addresses) == (False, ())


def test_no_secret_is_kept() -> None:
    named = {
        "HCCL_BUFFSIZE": "300",
        "VLLM_API_KEY": "s1",
        "RAY_AUTH_TOKEN": "s2",
        "HF_TOKEN": "s3",
        "HOME": "/me",
        "HF_ENDPOINT": "https://me:s4@mirror.example.com/x",
        "AWS_SECRET_ACCESS_KEY": "s5",
        "DB_PASSWORD": "s6",
    }
    found = look(questions(environment=named, variables=frozenset(named) - {"HOME"}))
    assert found.data(m.ENVIRONMENT) == {"HCCL_BUFFSIZE": "300", "HF_ENDPOINT": "https://mirror.example.com/x"}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo dcmi failed >&2; exit 255", "npu-smi info ended with 255: dcmi failed"),
        ("exit 1", "npu-smi info ended with 1"),
    ],
)
def test_an_npu_smi_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str) -> None:
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "npu-smi", script))
    found = look(questions())
    assert found.text(m.NPU_SMI) is None and found.known_to_lack(m.NPU_SMI) and why in found.why_not(m.NPU_SMI)


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    for python in ("/nowhere/python", str(tmp_path)):
        found = look(questions(python=python))
        assert f"{python} cannot be asked" in found.why_not(m.PACKAGES) and found.known_to_lack(m.PYTHON)


def test_paths_and_the_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/weights").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    paths = tuple(str(tmp_path / name) for name in ("model", "link", "none", "model/weights"))
    found = look(questions(paths={**dict(zip("abcd", paths, strict=True)), "model": paths[1]}))
    there = found.data(m.PATHS)
    assert [there[p] and (there[p]["kind"], there[p]["bytes"]) for p in paths] == [
        ("folder", 7),
        ("folder", 7),
        None,
        ("file", 5),
    ]
    assert there[paths[1]]["real"] == paths[0] and found.text(m.CONFIG) == "{}"


def test_a_config_that_is_no_file_stops_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "not a regular file" in look(questions(paths={"model": str(tmp_path)})).why_not(m.CONFIG)


def test_files_of_driver_and_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    files = {
        "usr/local/Ascend/driver/version.info": "Version=25.3.rc1\n",
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": "version=8.5.0\n",
        "dev/davinci0": "",
        "dev/davinci_manager": "",
        "dev/other": "",
        "dev/devmm_svm": "",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1024\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = look(questions(root=tmp_path))
    assert (found.text(m.DRIVER), found.text(m.CANN)) == ("Version=25.3.rc1\n", "version=8.5.0\n")
    assert [Path(p).name for p in found.texts[m.DEVICES].split()] == ["davinci0", "davinci_manager", "devmm_svm"]
    assert found.text(m.MEMORY_LIMIT) == "1024\n"
    assert any(path.endswith("ascend_toolkit_install.info") for path in found.data(m.PATHS))
    assert "no such file" in found.why_not(m.MEMORY)


def test_a_recording_is_read_back(tmp_path: Path) -> None:
    live = look(questions())
    m.record(live, tmp_path / "node")
    again = m.recorded(tmp_path / "node")
    assert (again.texts, again.absent, again.time) == (live.texts, live.absent, live.time)
    assert json.loads((tmp_path / "node/machine.json").read_text())["schema"] == "patchctl.machine/1"


def test_the_devices_own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device that is there is asked; one that gives no answer leaves the others theirs."""
    for name in ("davinci0", "davinci7", "davinci_manager"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").write_text("address_0=10.20.0.1\n")
    script = """case "$2 $3" in
"0 -ip") echo "ipaddr:10.20.0.1"; echo "netmask:255.255.255.0";;
"0 -tls") echo "dev_id:0, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days";;
"0 -link") echo "link status: UP";;
"7 -ip") echo "Cannot get ip"; exit 1;;
*) echo "no device" >&2; exit 1;;
esac"""
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "hccn_tool", script))
    found = look(questions(root=tmp_path))
    assert device_ports(found.texts[m.DEVICE_NETWORK]) == {0: DevicePort("10.20.0.1", True, "UP"), 7: DevicePort()}
    assert found.texts[m.DEVICE_ADDRESSES] == "address_0=10.20.0.1\n"


def test_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "my-c++"
    compiler.touch(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -std=c++17")
    nothing = {"python": sys.executable, "vllm_ascend": None, "compiled": [], "compiler": str(compiler)}
    assert look(questions()).data(m.OPERATORS) == nothing
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert look(questions()).data(m.OPERATORS) == nothing | {"compiler": None}
    folder = tmp_path / "vllm_ascend"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('nothing of the frameworks is imported')\n")
    (folder / "vllm_ascend_C.abi3.so").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = look(questions()).data(m.OPERATORS)
    assert (told["vllm_ascend"], told["compiled"]) == (str(folder), ["vllm_ascend_C.abi3.so"])


def test_limits_ports_user_and_processor(tmp_path: Path) -> None:
    files = {
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
        "sys/fs/cgroup/pids.max": "4096\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = look(questions(root=tmp_path))
    assert local_ports(found.texts[m.LOCAL_PORTS]) == (32768, 60999)
    assert port_ranges(found.texts[m.RESERVED_PORTS]) == []
    assert found.texts[m.PIDS] == "4096\n"
    assert found.texts[m.USER].startswith(f"uid={os.getuid()}")
    assert found.texts[m.KERNEL].split()[-1] == os.uname().machine


def test_a_proxy_is_kept_without_its_password() -> None:
    named = {"http_proxy": "http://me:s1@192.0.2.200:3128", "NO_PROXY": "localhost"}
    found = look(questions(environment=named))
    assert found.data(m.ENVIRONMENT) == {"http_proxy": "http://192.0.2.200:3128", "NO_PROXY": "localhost"}
