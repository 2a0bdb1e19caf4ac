"""Probe: what verl v0.9.0 takes for its device, with the stand-ins that an environment puts in place as modules are imported."""

import json

import patchctl_standins.at_start  # noqa: F401  (as patchctl_standins.pth has it)
import torch
import torch_npu  # noqa: F401
from verl.utils import device
from verl.workers.engine import EngineRegistry

found = {
    "device": device.get_device_name(),
    "backend": device.get_nccl_backend(),
    "resource": device.get_resource_name(),
    "npu": device.is_npu_available,
    "engine": EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__,
}
found["ipc"] = device.is_support_ipc() if found["device"] == "cpu" else None  # it asks npu-smi otherwise
with torch.device("meta"):
    found["context"] = str(torch.tensor([]).device)
print(json.dumps(found))
