"""rope_without_flash_attn: vllm's rotary operator, made on the platform that vllm itself resolves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_rope.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu"],
    "timeout": 600,
}
CPU: dict[str, Any] = {"need": ["vllm"], "standins": ["vllm-cpu-dist-info"], "timeout": 600}
EXACT = 1e-6

# flash_attn as it is installed for another device: found, but what is compiled for that device cannot be loaded.
FOREIGN_OPS = 'raise ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")\n'
# A flash_attn that works: its rotary kernel in plain torch, with the original's signature as far as vllm uses it.
WORKING_ROTARY = """\
import torch


def apply_rotary(x, cos, sin, interleaved=False):
    half = x.shape[-1] // 2
    a, b, cos, sin = x[..., :half], x[..., half:], cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
"""
# Stands for a ROCm machine: a platform plugin that names vllm's own RocmPlatform, and an amdsmi that answers which GPU there is.
ROCM_PLUGIN = """\
def name():
    return "vllm.platforms.rocm.RocmPlatform"
"""
AMDSMI = """\
class AmdSmiException(Exception):
    pass


def amdsmi_init():
    pass


def amdsmi_shut_down():
    pass


def amdsmi_get_processor_handles():
    return ["the only one"]


def amdsmi_get_gpu_asic_info(handle):
    return {"target_graphics_version": "gfx942"}


def amdsmi_get_gpu_device_uuid(handle):
    raise NotImplementedError


amdsmi_topo_get_link_type = amdsmi_topo_get_numa_node_number = amdsmi_get_gpu_device_uuid
"""
ROCM = {
    "amdsmi.py": AMDSMI,
    "rocm_here.py": ROCM_PLUGIN,
    "rocm_here-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: rocm_here\nVersion: 1\n",
    "rocm_here-1.dist-info/entry_points.txt": "[vllm.platform_plugins]\nrocm = rocm_here:name\n",
}


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return package(tmp_path, {"flash_attn/__init__.py": "", "flash_attn/ops/__init__.py": FOREIGN_OPS})


@pytest.fixture
def working(tmp_path: Path) -> Path:
    names = ["flash_attn", "flash_attn/ops", "flash_attn/ops/triton"]
    inits = {f"{name}/__init__.py": "" for name in names}
    return package(tmp_path, inits | {"flash_attn/ops/triton/rotary.py": WORKING_ROTARY})


def assert_made_without_flash_attn(seen: dict[str, Any]) -> None:
    assert seen["device"] == "npu"
    assert "error" not in seen, seen["error"]
    assert seen["operator"] == "AscendApplyRotaryEmb"
    assert seen["kernel"] is None
    assert seen["ops_imported"] is False
    assert seen["native_error"] < EXACT


@pytest.mark.on
def test_npu_with_a_flash_attn_of_another_device(upstream: Upstream, foreign: Path) -> None:
    assert_made_without_flash_attn(upstream.run(PROBE, foreign, **NPU))


@pytest.mark.on
def test_npu_with_a_flash_attn_that_would_load(upstream: Upstream, working: Path) -> None:
    assert_made_without_flash_attn(upstream.run(PROBE, working, **NPU))


@pytest.mark.on
def test_npu_with_the_dummy_of_mindspeed(upstream: Upstream, tmp_path: Path) -> None:
    """MindSpeed before vllm: the other way round it asks each model of transformers, which want the whole of torchvision."""
    npu = NPU | {"need": ["vllm", "vllm-ascend", "mindspeed"]}
    assert_made_without_flash_attn(upstream.run(PROBE, tmp_path, "mindspeed", **npu))


@pytest.mark.off
def test_npu_without_flash_attn(upstream: Upstream, tmp_path: Path) -> None:
    assert_made_without_flash_attn(upstream.run(PROBE, tmp_path, **NPU))


@pytest.mark.off
@pytest.mark.slow
def test_cpu_with_a_flash_attn_of_another_device(upstream: Upstream, foreign: Path) -> None:
    """vllm 0.23 itself looks for none on a CPU."""
    seen = upstream.run(PROBE, foreign, **CPU)
    assert seen["platform"] == "CpuPlatform"
    assert seen["kernel"] is None
    assert seen["ops_imported"] is False
    assert seen["forward_error"] < EXACT


@pytest.mark.off
@pytest.mark.slow
def test_rocm_uses_the_kernel(upstream: Upstream, working: Path) -> None:
    seen = upstream.run(PROBE, package(working, ROCM), **CPU)
    assert seen["platform"] == "RocmPlatform"
    assert seen["kernel"] == "flash_attn.ops.triton.rotary.apply_rotary"
    assert seen["forward_error"] < EXACT
