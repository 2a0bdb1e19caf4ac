# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Test on which platforms ApplyRotaryEmb imports flash_attn's rotary kernel."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import torch

from vllm.model_executor.layers.rotary_embedding import common
from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb


def _put_flash_attn(monkeypatch, *names: str) -> ModuleType:
    """Put empty modules into sys.modules, and return the last one."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "flash_attn":
            monkeypatch.delitem(sys.modules, name)
    for name in names:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, loader=None)
        monkeypatch.setitem(sys.modules, name, module)
    return module


def _put_kernel(monkeypatch) -> MagicMock:
    names = ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton")
    rotary = _put_flash_attn(monkeypatch, *names, "flash_attn.ops.triton.rotary")
    rotary.apply_rotary = MagicMock()
    return rotary.apply_rotary


def _set_platform(monkeypatch, device_type: str) -> None:
    platform = MagicMock(device_type=device_type)
    platform.is_cpu.return_value = device_type == "cpu"
    monkeypatch.setattr(common, "current_platform", platform)


@pytest.mark.usefixtures("default_vllm_config")
@pytest.mark.parametrize("device_type", ["npu", "cpu"])
def test_flash_attn_without_kernels_is_not_imported(monkeypatch, device_type):
    """E.g. a placeholder, or a package that was built for another device."""
    _set_platform(monkeypatch, device_type)
    _put_flash_attn(monkeypatch, "flash_attn")

    rotary_emb = ApplyRotaryEmb(enforce_enable=True)

    assert rotary_emb.apply_rotary_emb_flash_attn is None
    x, angles = torch.randn(5, 3, 8), torch.zeros(5, 4)
    assert torch.equal(rotary_emb.forward_native(x, angles.cos(), angles.sin()), x)


@pytest.mark.usefixtures("default_vllm_config")
@pytest.mark.parametrize(
    "device_type, is_used", [("npu", False), ("cpu", False), ("cuda", True)]
)
def test_kernel_is_used_on_gpus_only(monkeypatch, device_type, is_used):
    _set_platform(monkeypatch, device_type)
    kernel = _put_kernel(monkeypatch)

    rotary_emb = ApplyRotaryEmb(enforce_enable=True)

    assert rotary_emb.apply_rotary_emb_flash_attn is (kernel if is_used else None)


@pytest.mark.usefixtures("default_vllm_config")
def test_flash_attn_without_kernels_is_an_error_on_gpus(monkeypatch):
    _set_platform(monkeypatch, "cuda")
    _put_flash_attn(monkeypatch, "flash_attn")

    with pytest.raises(ImportError, match="flash_attn"):
        ApplyRotaryEmb(enforce_enable=True)
