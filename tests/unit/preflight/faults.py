"""Recordings with one fault each, and what preflight says of it: the table in docs/preflight.md is made of them.

`before` is what preflight of 2026-11-22 (7ad3e79) said of the same folder, from a run of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from machines import (
    ENVIRONMENT,
    MCORE,
    TRAIN,
    df,
    hccn,
    ip_addr,
    npu_smi,
    operators,
    paths,
    pip_list,
    tcp,
    texts,
    workspace,
)

NOTHING = "nothing"
RECIPE = "qwen3-235b/grpo"


@dataclass(frozen=True)
class Fault:
    """One recording. `finding` is the one that speaks of the fault, `stops` whether it blocks."""

    what: str
    finding: str
    stops: bool
    before: str
    changed: Mapping[str, str | None] = field(default_factory=dict)
    recipe: str = RECIPE
    source: str = ""


def _env(**more: str) -> str:
    return json.dumps({**ENVIRONMENT, **more})


def _limits(name: str, value: str) -> str:
    lines = texts()["limits.txt"].splitlines()
    return "".join(f"{name:<26}{value:<21}{value:<21}x\n" if line.startswith(name) else f"{line}\n" for line in lines)


def _meminfo(huge: int = 0, total: int = 2_097_152_000) -> str:
    return f"MemTotal: {total} kB\nMemAvailable: {total - 2048 * huge} kB\nHugePages_Total: {huge}\nHugepagesize: 2048 kB\n"


def _config(positions: int) -> str:
    from preflight_cases import REPOSITORY

    from patchctl.__main__ import compose
    from patchctl.manifest.distribution import Distribution
    from patchctl.training.models import read_models

    compose()  # for what training has in manifests/: a script has no other who does
    config: dict[str, Any] = dict(read_models(Distribution.load(REPOSITORY)).models["Qwen3-235B-A22B"].config)
    return json.dumps({**config, "max_position_embeddings": positions})


def _imports() -> str:
    rows = [{"package": "vllm", "place": "/usr/lib/python3/vllm", "ours": False, "error": None}]
    tree = {**workspace()["trees"][0], "upstream": "vllm", "folder": "/ws/vllm", "imports": rows}
    return json.dumps(workspace(trees=[tree], python="/opt/train/bin/python"))


FAULTS = (
    # devices
    Fault("fewer devices than the recipe has", "number of devices", True, "number of devices: stops",
          {"npu_smi": npu_smi(cards=4)}),
    Fault("a device is ill", "health", True, "health: stops", {"npu_smi": npu_smi(health={(3, 1): "Alarm"})}),
    Fault("an earlier run holds devices", "memory in use", True, "memory in use: stops; gpu_memory_utilization: stops; update: warning",
          {"npu_smi": npu_smi(used={(0, 0): 50000})},
          source="verl#332 (EJ0001)"),
    Fault("ASCEND_RT_VISIBLE_DEVICES=0,1 where 16 are wanted", "ASCEND_RT_VISIBLE_DEVICES", True, NOTHING,
          {"environment": _env(ASCEND_RT_VISIBLE_DEVICES="0,1")}, source="vllm-ascend#14628"),
    Fault("device files are not in the container", "device files", True, "device files: stops",
          {"davinci": "/dev/davinci0\n/dev/davinci_manager\n"}),
    Fault("the user may not open device files", "device files", True, NOTHING,
          {"davinci": texts()["davinci.txt"].replace("/dev/davinci0\n", "/dev/davinci0 (may not be opened)\n")},
          source="vllm-ascend#2698, #9490"),
    # software
    Fault("another driver", "driver", False, "driver: stops", {"driver": "Version=25.2.1\n"}, source="002"),
    Fault("another CANN", "cann", True, "cann: stops", {"cann": "version=8.3.RC1\narch=aarch64\n"}),
    Fault("CANN for another processor", "architecture", True, NOTHING,
          {"cann": "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=x86_64\n"}),
    Fault("another torch_npu", "torch-npu", True, "torch-npu: stops", {"pip_list": pip_list(torch_npu="2.9.1")}),
    Fault("no compiled operators, and sleep mode", "compiled operators", True, NOTHING,
          {"operators": operators("libother.so")},
          source="vllm-ascend#556, #1114, #3998"),
    Fault("no C++ compiler, and MindSpeed", "C++ compiler", False, NOTHING, {"operators": operators(compiler=None)},
          source="MindSpeed f6688c61, op_builder/builder.py"),
    Fault("CANN's and ATB's set_env.sh were not sourced", "set_env.sh", False, NOTHING,
          {"environment": json.dumps({k: v for k, v in ENVIRONMENT.items() if not k.startswith("A")})},
          source="vllm-ascend#152, #262, #2727"),
    Fault("ATB for the C++ interface of older wheels", "ATB", False, NOTHING,
          {"environment": _env(ATB_HOME_PATH="/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0")},
          source="vllm-ascend#750; Ascend/pytorch#99"),
    Fault("Python imports another copy than the trees", "imports", True, "vllm: stops", {"workspace": _imports()}),
    # host
    Fault("/dev/shm of a container's default", "/dev/shm", True, "/dev/shm: stops",
          {"df": df().replace(f"{720 << 20} {1 << 20} {719 << 20}", "65536 0 65536")}),
    Fault("few open files", "open files", True, "open files: stops", {"limits": _limits("Max open files", "1024")}),
    Fault("few processes and threads", "processes", True, NOTHING, {"limits": _limits("Max processes", "4096")},
          source="verl#719, vllm#6295, ray#36936"),
    Fault("the container allows few processes", "processes", True, NOTHING,
          {"pids_limit": "4096\n"}, source="as above"),
    Fault("little memory may be locked", "locked memory", False, NOTHING,
          {"limits": _limits("Max locked memory", "8388608"), "user": "uid=1000(HwHiAiUser)\n"}),
    Fault("a user without a name", "user", True, NOTHING, {"user": "uid=65534\n"}, source="vllm-ascend#9490"),
    Fault("most of the memory is kept for huge pages", "huge pages", False, NOTHING,
          {"meminfo": _meminfo(huge=600_000)}),
    Fault("the controller's memory is too small", "controller memory", True, NOTHING,
          {"meminfo": _meminfo(total=600 << 20)}),
    Fault("Ray's object store is smaller than what comes at once", "Ray's object store", False, "/dev/shm: warning",
          {"df": df(_dev_shm=(64, 63))}),
    Fault("Ray's disk is full", "disk of Ray", True, NOTHING,
          {"df": df(_=(2000, 60))}, source="InternLM/lmdeploy#3457"),
    # network
    Fault("HCCL's ports are in use", "ports of HCCL", True, "ports of HCCL: stops", {"tcp": tcp(60031)}),
    Fault("HCCL's ports may be given to any connection", "reserved ports", False, NOTHING, {"reserved_ports": "\n"},
          source="CANN 8.5.0, HCCL_IF_BASE_PORT"),
    Fault("TLS is on for some devices", "TLS of devices", True, NOTHING,
          {"hccn": hccn(tls_3="dev_id:3, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days\n")},
          source="CANN 8.5.0, EI0014"),
    Fault("a device has another address than /etc/hccn.conf", "addresses of devices", True, NOTHING,
          {"hccn": hccn(ip_3="ipaddr:10.20.9.9\nnetmask:255.255.255.0\n")}),
    Fault("two devices have one address", "addresses of devices", True, NOTHING,
          {"hccn": hccn(ip_3="ipaddr:10.20.0.1\nnetmask:255.255.255.0\n"), "hccn_conf": None}),
    Fault("devices have no address", "addresses of devices", False, NOTHING,
          {"hccn": hccn(ip_3="Cannot get ip\n"), "hccn_conf": None}, source="verl#3947"),
    Fault("a device's link is down", "links of devices", True, NOTHING, {"hccn": hccn(link_3="link status: DOWN\n")}),
    Fault("a whitelist is asked for, and there is none", "HCCL_WHITELIST_DISABLE", True, NOTHING,
          {"environment": _env(HCCL_WHITELIST_DISABLE="0")}, source="CANN 8.5.0"),
    Fault("RoCE and PCIe inside a server at once", "links in a server", True, NOTHING,
          {"environment": _env(HCCL_INTRA_ROCE_ENABLE="1", HCCL_INTRA_PCIE_ENABLE="1")}, source="CANN 9.0.0"),
    Fault("RoCE inside a server, on one that has links", "links in a server", False, NOTHING,
          {"environment": _env(HCCL_INTRA_ROCE_ENABLE="1")}, source="CANN 9.0.0"),
    Fault("HCCL_IF_IP of another node", "HCCL_IF_IP", True, NOTHING, {"environment": _env(HCCL_IF_IP="192.0.2.99")}),
    Fault("another node's interface", "HCCL_SOCKET_IFNAME", True, "HCCL_SOCKET_IFNAME: stops; interface: warning",
          {"environment": _env(HCCL_SOCKET_IFNAME="bond4")}),
    Fault("the interface is down", "GLOO_SOCKET_IFNAME", True, "HCCL_SOCKET_IFNAME: stops; GLOO_SOCKET_IFNAME: stops",
          {"ip_addr": json.dumps(ip_addr(state="DOWN"))}),
    Fault("MASTER_ADDR is this machine's loopback", "MASTER_ADDR", True, "MASTER_ADDR: stops",
          {"environment": _env(MASTER_ADDR="127.0.0.1")}),
    Fault("a proxy without no_proxy", "proxy", False, NOTHING,
          {"environment": _env(http_proxy="http://192.0.2.200:3128")},
          source="ray#14350, #37757"),
    Fault("a proxy that Ray's own traffic takes", "proxy", True, NOTHING,
          {"environment": _env(https_proxy="http://192.0.2.200:3128", RAY_grpc_enable_http_proxy="1")}, source="ray#23526"),
    # environment
    Fault("Ray is told to give out no devices", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", False, NOTHING,
          {"environment": _env(RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES="1")}, source="verl-omni#227"),
    Fault("expandable segments beside sleep mode", "PYTORCH_NPU_ALLOC_CONF", True, "PYTORCH_NPU_ALLOC_CONF: stops",
          {"environment": _env(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")}),
    Fault("an attention backend that does not exist", "VLLM_ATTENTION_BACKEND", True, "VLLM_ATTENTION_BACKEND: stops",
          {"environment": _env(VLLM_ATTENTION_BACKEND="XFORMERS")}),
    # files, memory
    Fault("training data is not there", "train", True, "train: stops", {"paths": json.dumps(paths(**{TRAIN: None}))}),
    Fault("the converted weights are an empty folder", "converted weights", True, "converted weights: stops",
          {"paths": json.dumps(paths(**{MCORE: {**paths()[MCORE], "bytes": 0}}))}),
    Fault("no room for checkpoints", "room for checkpoints", True, "room for checkpoints: stops",
          {"df": df(_ckpt=(1000, 900))}),
    Fault("sequences are longer than the model allows", "length", True, NOTHING, {"config": _config(40960)},
          recipe="qwen3-235b/dapo-longseq"),
    Fault("devices are too small", "rollout weights", True,
          "memory in use: stops; gpu_memory_utilization: stops; rollout weights: stops; update: stops",
          {"npu_smi": npu_smi(total=8192)}),
    # trees
    Fault("a tree was edited", "verl", True, "verl: stops",
          {"workspace": json.dumps(workspace(trees=[{**workspace()["trees"][0], "edits": ["verl/a.py"]}]))}),
)  # fmt: skip
