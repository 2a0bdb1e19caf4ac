# Copyright 2025 Individual Contributor: patchctl
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The real torch.compile for the rollout engine, in a process where MindSpeed has made it a no-op for training."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def real_torch_compile() -> Iterator[None]:
    """Gives back torch.compile inside the block, and MindSpeed's replacement after it, also after an exception.

    It is for the code that imports and builds the engine: vllm's decorators read `torch.compile` when their modules are
    imported, its model wrapper when the model is constructed (vllm/compilation/wrapper.py). What they made then is a
    compiled function for good: tracing in the profile run, graph capture and every later step read the name no more.
    `torch.jit.script`, which MindSpeed replaces too, is left alone; neither vllm nor vllm-ascend uses it.

    Without MindSpeed, or when torch.compile is not MindSpeed's replacement, nothing happens. Nothing is imported.
    The change is seen by the whole process: do not train in another thread meanwhile. Blocks may be nested.
    """
    original = _original_torch_compile()
    if original is None:
        yield
        return
    replacement = torch.compile
    torch.compile = original
    try:
        yield
    finally:
        torch.compile = replacement


def _original_torch_compile() -> Callable | None:
    """What MindSpeed's patch manager keeps of torch.compile while its replacement is in place, else None."""
    patch_utils = sys.modules.get("mindspeed.patch_utils")
    if patch_utils is None:
        return None
    patch = patch_utils.MindSpeedPatchesManager.patches_info.get("torch.compile")
    # `is_applied` is a flag and no method (mindspeed/patch_utils.py). It is false between the two halves of `repatch`.
    if patch is None or not patch.is_applied or torch.compile is not patch.final_patch_func:
        return None
    return patch.orig_func
