"""A real vllm engine with vllm-ascend's worker and model runner, on a CPU.

Stands for the device under NPUWorker: what it asks an NPU for (memory, HCCL, fused operators) is answered here by a
CPU, gloo and torch's own operators. Scheduler, engine core, worker, model runner, attention metadata and sampler are
upstream's. Needs the stand-in `torch_npu`. Call `prepare()` before the engine is made; under multiprocessing the engine
core must be forked (VLLM_WORKER_MULTIPROC_METHOD=fork), or it would not see these changes.
"""

import torch
import torch_npu

A3_SOC_VERSION = 250
KV_CACHE_BYTES = 8 << 20
DEVICE_BYTES = 16 << 30
# What the engines of the tests have in common.
ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
}


def prepare():
    """Makes NPUWorker run on the CPU, in this process and in those forked from it."""
    _device_answers()
    _platform_answers()
    _worker_answers()


def _device_answers():
    torch.npu.mem_get_info = lambda *args: (DEVICE_BYTES // 2, DEVICE_BYTES)
    torch.npu.memory_stats = lambda *args: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
    torch.npu.memory_reserved = torch.npu.max_memory_allocated = lambda *args: 0
    torch.npu.reset_peak_memory_stats = lambda *args: None
    torch_npu.npu.get_soc_version = lambda: A3_SOC_VERSION


def _platform_answers():
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    platform = type(current_platform)
    platform.dispatch_key = "CPU"
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    create = EngineArgs.create_engine_config

    def create_on_cpu(self, *args, **kwargs):
        config = create(self, *args, **kwargs)
        config.device_config.device = torch.device("cpu")
        return config

    EngineArgs.create_engine_config = create_on_cpu


def _worker_answers():
    import vllm_ascend.utils
    import vllm_ascend.worker.worker as worker

    # Without the fused operators vllm's own layers run, in plain torch.
    worker.register_ascend_customop = vllm_ascend.utils.register_ascend_customop = lambda *args, **kwargs: None
    init_distributed = worker.init_distributed_environment
    worker.init_distributed_environment = lambda *args: init_distributed(*args[:4], "gloo")

    def init_device(self):
        self.init_npu_memory = DEVICE_BYTES // 2
        self._init_worker_distributed_environment()
        return torch.device("cpu")

    worker.NPUWorker._init_device = init_device
    worker.NPUWorker.save_memory_stats = lambda self: None
    worker.NPUWorker.determine_available_memory = lambda self: KV_CACHE_BYTES
