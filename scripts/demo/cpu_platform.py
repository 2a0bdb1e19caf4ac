"""A CPU as a platform of verl's, which takes platforms from outside and has none for it. VERL_PLATFORM=cpu chooses it; import it first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

GIB = 1 << 30


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformCUDA):
    device_name = "cpu"
    device_module = torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def empty_cache(self) -> None: ...

    def communication_backend_name(self) -> str:
        return "gloo"


def _nothing(*_: Any) -> int:
    return 0


# verl asks its device for these whatever it is, and torch.cpu lacks them.
for name in (
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "empty_cache",
    "ipc_collect",
):
    setattr(torch.cpu, name, _nothing)
torch.cpu.mem_get_info = lambda *_: (GIB, GIB)
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=GIB)
