"""Lets vllm with vllm-ascend's NPUWorker and NPUModelRunner run on a CPU; import it before anything of vllm.

Stands for the device below the worker: memory figures, device initialisation, HCCL (gloo instead), custom operators
(their native forms instead) and the memory pool of sleep mode. Scheduler, worker, model runner, attention backend and
sampler are the real ones.
"""

import os
from contextlib import nullcontext
from typing import ClassVar

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, where these changes are

import torch
import torch_npu
import vllm_ascend.utils
from vllm.platforms import current_platform

GIB = 1 << 30
KV_CACHE_BYTES = 8 << 20

platform = type(current_platform)
platform.dispatch_key = "CPU"
platform.is_pin_memory_available = classmethod(lambda cls: False)

torch._C._get_accelerator = lambda: torch.device("cpu")
torch.cpu.empty_cache = lambda: None
torch.npu.mem_get_info = lambda *args: (8 * GIB, 16 * GIB)
torch.npu.memory_stats = lambda *args: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
torch.npu.memory_reserved = torch.npu.max_memory_allocated = lambda *args: 0
torch.npu.reset_peak_memory_stats = lambda *args: None
torch_npu.npu.get_soc_version = lambda: 250  # an A3

import vllm_ascend.worker.worker as worker  # noqa: E402  (reads what is set above)

_init_worker = worker.NPUWorker.__init__
_init_distributed_environment = worker.init_distributed_environment


def init_worker(self, vllm_config, *args, **kwargs):
    vllm_config.device_config.device = torch.device("cpu")
    _init_worker(self, vllm_config, *args, **kwargs)


def init_device(self):
    self.init_npu_memory = 8 * GIB
    self._init_worker_distributed_environment()
    return torch.device("cpu")


worker.register_ascend_customop = vllm_ascend.utils.register_ascend_customop = lambda *args, **kwargs: None
worker.init_distributed_environment = lambda *args: _init_distributed_environment(*args[:4], "gloo")
worker.NPUWorker.__init__ = init_worker
worker.NPUWorker._init_device = init_device
worker.NPUWorker.save_memory_stats = lambda self: None
worker.NPUWorker.determine_available_memory = lambda self: KV_CACHE_BYTES


class MemoryPool:
    """Stands for CaMemAllocator, whose pool is C++ on the NPU's memory: it gives nothing back, and contents stay."""

    asked: ClassVar[list[str]] = []

    @classmethod
    def get_instance(cls):
        return cls()

    def use_memory_pool(self, tag):
        return nullcontext()

    def get_current_usage(self):
        return 0

    def sleep(self, offload_tags):
        self.asked.append("sleep")

    def wake_up(self, tags):
        self.asked.append(f"wake {','.join(tags)}")


worker.CaMemAllocator = MemoryPool
