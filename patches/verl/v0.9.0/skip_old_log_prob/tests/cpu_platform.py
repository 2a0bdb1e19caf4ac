"""A CPU as a platform of verl's. Import it before what asks verl for its platform, with VERL_PLATFORM=cpu."""

import types

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

GIBIBYTE = 1 << 30


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformCUDA):
    """verl takes platforms from outside, and has none for a CPU."""

    device_name = "cpu"
    device_module = torch.cpu

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def empty_cache(self):
        pass

    def communication_backend_name(self):
        return "gloo"


for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
    setattr(torch.cpu, name, lambda *args: 0)
torch.cpu.empty_cache = torch.cpu.ipc_collect = lambda: None
torch.cpu.mem_get_info = lambda *args: (GIBIBYTE, GIBIBYTE)
torch.cpu.get_device_properties = lambda *args: types.SimpleNamespace(total_memory=GIBIBYTE)
