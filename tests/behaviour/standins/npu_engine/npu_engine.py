"""A real vllm engine with vllm-ascend's worker and model runner, on a CPU.

Stands for the device under NPUWorker: what it asks an NPU for (memory, HCCL, fused operators, the memory pool of sleep
mode) is answered here by a CPU, gloo and torch's own operators. Scheduler, engine core, worker, model runner, attention
metadata and sampler are upstream's. Needs the stand-in `torch_npu`. Call `prepare()` before anything of vllm is imported.

An engine core of its own process must be forked (VLLM_WORKER_MULTIPROC_METHOD=fork), or it would not see these changes.
"""

from contextlib import nullcontext
from typing import ClassVar

import torch
import torch_npu

A3_SOC_VERSION = 250
KV_CACHE_BYTES = 8 << 20
DEVICE_BYTES = 16 << 30


def prepare():
    """Makes NPUWorker run on the CPU, in this process and in those forked from it."""
    _device_answers()
    _platform_answers()
    _worker_answers()


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


def _device_answers():
    torch._C._get_accelerator = lambda: torch.device("cpu")
    torch.cpu.empty_cache = lambda: None
    torch.npu.mem_get_info = lambda *args: (DEVICE_BYTES // 2, DEVICE_BYTES)
    torch.npu.memory_stats = lambda *args: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
    torch.npu.memory_reserved = torch.npu.max_memory_allocated = lambda *args: 0
    torch.npu.reset_peak_memory_stats = lambda *args: None
    torch_npu.npu.get_soc_version = lambda: A3_SOC_VERSION


def _platform_answers():
    from vllm.platforms import current_platform

    platform = type(current_platform)
    platform.dispatch_key = "CPU"
    platform.is_pin_memory_available = classmethod(lambda cls: False)


def _worker_answers():
    import vllm_ascend.utils
    import vllm_ascend.worker.worker as worker

    # Without the fused operators vllm's own layers run, in plain torch.
    worker.register_ascend_customop = vllm_ascend.utils.register_ascend_customop = lambda *args, **kwargs: None
    worker.CaMemAllocator = MemoryPool
    init_distributed = worker.init_distributed_environment
    worker.init_distributed_environment = lambda *args: init_distributed(*args[:4], "gloo")
    init_worker = worker.NPUWorker.__init__

    def init_on_cpu(self, vllm_config, *args, **kwargs):
        vllm_config.device_config.device = torch.device("cpu")
        init_worker(self, vllm_config, *args, **kwargs)

    def init_device(self):
        self.init_npu_memory = DEVICE_BYTES // 2
        self._init_worker_distributed_environment()
        return torch.device("cpu")

    worker.NPUWorker.__init__ = init_on_cpu
    worker.NPUWorker._init_device = init_device
    worker.NPUWorker.save_memory_stats = lambda self: None
    worker.NPUWorker.determine_available_memory = lambda self: KV_CACHE_BYTES
