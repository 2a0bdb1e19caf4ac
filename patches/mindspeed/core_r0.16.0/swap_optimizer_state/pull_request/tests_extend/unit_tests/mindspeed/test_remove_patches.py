# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
import sys
import types

import pytest

from mindspeed.patch_utils import MindSpeedPatchesManager

MODULE = "module_to_be_patched"


class Optimizer:
    def state_dict(self):
        return "original"


class SwapOptimizer(Optimizer):
    pass


def patched_state_dict(self):
    return "patched"


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """A module with the class, and a manager without any patches."""
    module = types.ModuleType(MODULE)
    module.Optimizer = Optimizer
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(MindSpeedPatchesManager, "patches_info", {})
    monkeypatch.setattr(Optimizer, "state_dict", Optimizer.state_dict)
    return module


@pytest.mark.parametrize("is_class_replaced", [False, True])
def test_method_is_restored(module, is_class_replaced):
    MindSpeedPatchesManager.register_patch(f"{MODULE}.Optimizer.state_dict", patched_state_dict)
    if is_class_replaced:
        MindSpeedPatchesManager.register_patch(f"{MODULE}.Optimizer", SwapOptimizer)
    MindSpeedPatchesManager.apply_patches()
    assert module.Optimizer is (SwapOptimizer if is_class_replaced else Optimizer)
    assert module.Optimizer().state_dict() == "patched"

    MindSpeedPatchesManager.remove_patches()
    assert module.Optimizer is Optimizer
    assert Optimizer().state_dict() == "original"
    assert SwapOptimizer().state_dict() == "original"


def test_patches_can_be_applied_anew(module):
    for _ in range(2):
        MindSpeedPatchesManager.register_patch(f"{MODULE}.Optimizer.state_dict", patched_state_dict)
        MindSpeedPatchesManager.register_patch(f"{MODULE}.Optimizer", SwapOptimizer)
        MindSpeedPatchesManager.apply_patches()
        assert module.Optimizer is SwapOptimizer
        assert SwapOptimizer().state_dict() == "patched"
        MindSpeedPatchesManager.remove_patches()
    assert Optimizer().state_dict() == "original"
