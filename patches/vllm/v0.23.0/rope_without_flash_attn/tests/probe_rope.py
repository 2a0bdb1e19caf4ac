"""Probe: makes vllm's rotary embedding operator on the platform that vllm finds, with some flash_attn on the path.

Usage: probe_rope.py FOLDER [mindspeed]

FOLDER goes first on sys.path: it may hold a flash_attn and a platform plugin. With the second argument MindSpeed's own
code puts its empty flash_attn into sys.modules before vllm is imported.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])
MINDSPEED = sys.argv[2:] == ["mindspeed"]


def mindspeed_dummy():
    """What MindSpeed does for flash_attn when it is not installed (features_manager/.../requirements_basic.py)."""
    from mindspeed.patch_utils import MindSpeedPatchesManager

    MindSpeedPatchesManager.register_patch(
        "flash_attn.flash_attn_interface.flash_attn_unpadded_func", create_dummy=True
    )
    MindSpeedPatchesManager.apply_patches()


if MINDSPEED:
    mindspeed_dummy()

import torch  # noqa: E402  (MindSpeed may have to come first)
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402


def register_npu_operators():
    """What NPUWorker does, which knows its model: from here on vllm's operators are made as vllm-ascend's."""
    from vllm_ascend.utils import register_ascend_customop

    register_ascend_customop()


def rotated(x, cos, sin):
    """Neox-style rotary embedding in complex numbers: another formula than vllm's own."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.complex(cos, sin).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), dim=-1)


def make():
    with set_current_vllm_config(VllmConfig()):
        return ApplyRotaryEmb(enforce_enable=True)


def largest_error(forward):
    torch.manual_seed(0)
    x = torch.randn(5, 3, 8)
    angles = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    inputs = (x, angles.cos(), angles.sin())
    return (forward(*inputs) - rotated(*inputs)).abs().max().item()


def main():
    if current_platform.device_type == "npu":
        register_npu_operators()
    seen = {"platform": type(current_platform).__name__, "device": current_platform.device_type}
    try:
        operator = make()
    except Exception as error:
        return seen | {"error": f"{type(error).__name__}: {error}"}
    kernel = operator.apply_rotary_emb_flash_attn
    seen |= {
        "operator": type(operator).__name__,
        "kernel": kernel and f"{kernel.__module__}.{kernel.__name__}",
        "ops_imported": "flash_attn.ops" in sys.modules,
        "native_error": largest_error(operator.forward_native),
    }
    if current_platform.device_type != "npu":  # vllm-ascend's forward is an operator of the NPU
        seen["forward_error"] = largest_error(operator)
    return seen


print(json.dumps(main()))
