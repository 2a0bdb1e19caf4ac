"""Probe: an environment's stand-ins for an engine where vllm is imported, where its worker is, and where its sampler pins memory.

Usage: probe_engine_at_start.py; PATCHCTL_STANDINS_WATCH as scripts/demo/run.py sets it, or nothing."""

import json
import sys

import patchctl_standins.start  # noqa: F401  (as patchctl_standins.pth has it)
import torch
import torch_npu  # noqa: F401

WORKER = "vllm_ascend.worker.worker"
found = {}
try:
    torch.tensor([0], pin_memory=True)
except RuntimeError as refused:
    found["bare"] = str(refused).partition(" by")[0]
import vllm  # noqa: E402, F401

found["worker with vllm"] = WORKER in sys.modules
import vllm_ascend.sample.rejection_sampler  # noqa: E402, F401

pinned = [torch.tensor([7], pin_memory=True), torch.arange(2, pin_memory=True), torch.full([1], 3, pin_memory=True)]
found["pinned"] = [one.tolist() for one in pinned]
with torch.device("meta"):
    found["context"] = str(torch.tensor([]).device)
import vllm_ascend.worker.worker as worker  # noqa: E402
from vllm.utils.platform_utils import is_pin_memory_available  # noqa: E402

found["device"] = worker.NPUWorker._init_device.__module__
found["pins"] = is_pin_memory_available()
print(json.dumps(found))
