"""Probe: verl's set_expandable_segments on a machine that looks like it has an NPU, a CUDA device or none.

Usage: probe_expandable_segments.py npu|cuda|cpu. Stands for the devices: `is_available`, and an allocator whose setter
writes down what it is told. The torch_npu is the stand-in; one without the setter is an older torch_npu.
"""

import json
import logging
import os
import sys
from types import SimpleNamespace

import torch

DEVICE = sys.argv[1]
told, warnings = [], []
WITH_SETTER = SimpleNamespace(_set_allocator_settings=told.append)
WITHOUT_SETTER = SimpleNamespace(empty_cache=lambda: None)


class Collector(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())


def two_steps(memory=WITH_SETTER, allocator=""):
    """What rollout_mode and trainer_mode of two training steps make the allocator hear, and the log."""
    if DEVICE == "npu":
        torch.npu.memory = memory
    os.environ["PYTORCH_NPU_ALLOC_CONF"] = allocator
    told.clear()
    warnings.clear()
    for enable in (False, True, False, True):
        device.set_expandable_segments(enable)
    return {"told": list(told), "warnings": list(warnings)}


if DEVICE == "npu":
    import torch_npu  # noqa: F401

    torch.npu.is_available = lambda: True
elif DEVICE == "cuda":
    torch.cuda.is_available = lambda: True
    torch.cuda.memory._set_allocator_settings = told.append

from verl.utils import device  # noqa: E402  (asks for the devices when it is imported)

device.logger.addHandler(Collector())
result = {
    "device": device.get_device_name(),
    "plain": two_steps(),
    "page size": two_steps(allocator="page_size:1g"),
    "split size": two_steps(allocator="max_split_size_mb:2048"),
    "threshold": two_steps(allocator="page_size:1g,garbage_collection_threshold:0.8"),
    "older torch_npu": two_steps(memory=WITHOUT_SETTER),
}
print(json.dumps(result))
