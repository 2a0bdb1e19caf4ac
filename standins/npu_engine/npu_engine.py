"""A real vllm engine with vllm-ascend's worker and model runner, on a CPU.

Stands for the device under NPUWorker: what it asks an NPU for (memory, HCCL, fused operators, the memory pool of sleep
mode) is answered here by a CPU, gloo and torch's own operators. Scheduler, engine core, worker, model runner, attention
metadata and sampler are upstream's. Needs the stand-in `torch_npu`. Call `prepare()` before anything of vllm is imported.

An engine core of its own process must be forked (VLLM_WORKER_MULTIPROC_METHOD=fork), or it would not see these changes.
"""

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import torch
import torch_npu

SOC_VERSIONS = {"A2": 220, "A3": 250}
KV_CACHE_BYTES = 8 << 20
DEVICE_BYTES = 16 << 30
# The library keeps what is registered with it only as long as it lives.
_VLLM = torch.library.Library("vllm", "FRAGMENT")


def prepare(device="A3"):
    """Makes NPUWorker run on the CPU, in this process and in those forked from it.

    With expert parallelism `device` must be "A2": there vllm-ascend exchanges tokens by all-gather (below 16 devices),
    on an A3 by MC2 operators, which have no reference implementation.
    """
    _device_answers(SOC_VERSIONS[device])
    _platform_answers()
    _worker_answers()
    _moe_answers(device)


def prepare_on_import(vllm):
    """For an environment: vllm was imported, and nothing of it is used yet. The engine stays in its process.

    PATCHCTL_NPU names the device (A2 or A3)."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    prepare(os.environ.get("PATCHCTL_NPU", "A3"))
    leave_compilation_out()


def small_llm(model, **settings):
    """vllm's LLM for a tiny model, as a process of a group starts it; `settings` go to LLM beside or instead of these."""
    from vllm import LLM

    small = {
        "dtype": "float32",
        "distributed_executor_backend": "external_launcher",
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "enforce_eager": True,
        # With it a data-parallel rank that ends takes one more step, without a forward pass, and the others wait for
        # that for ever.
        "async_scheduling": False,
    }
    return LLM(model=model, **{**small, **settings})


def leave_compilation_out():
    """Graphs are captured of the model as it is. What torch.compile makes of attention is one operator, inside of which the
    stand-in's graphs would see neither what is captured nor what is updated."""
    import vllm.compilation.decorators
    from vllm.platforms import current_platform

    type(current_platform).opaque_attention_op = classmethod(lambda cls: False)
    vllm.compilation.decorators._should_ignore_torch_compile = lambda cls: True


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


def _device_answers(soc_version):
    torch._C._get_accelerator = lambda: torch.device("cpu")
    torch.cpu.empty_cache = lambda: None
    torch.npu.mem_get_info = lambda *args: (DEVICE_BYTES // 2, DEVICE_BYTES)
    torch.npu.memory_stats = lambda *args: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
    torch.npu.memory_reserved = torch.npu.max_memory_allocated = lambda *args: 0
    torch.npu.reset_peak_memory_stats = lambda *args: None
    torch_npu.npu.get_soc_version = lambda: soc_version


def _platform_answers():
    from vllm.platforms import current_platform

    platform = type(current_platform)
    platform.dispatch_key = "CPU"
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    # Its passes put fused NPU operators in place of others, of which vllm's own layers (see _register_customop) have none.
    from vllm_ascend.compilation.graph_fusion_pass_manager import GraphFusionPassManager

    GraphFusionPassManager.configure = lambda self, config: None


def _worker_answers():
    import vllm_ascend.utils
    import vllm_ascend.worker.worker as worker

    worker.register_ascend_customop = vllm_ascend.utils.register_ascend_customop = _register_customop
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


def _register_customop(vllm_config=None):
    """Of vllm-ascend's layers only the experts, and latent attention with what it is made of: without the fused operators vllm's
    own layers run, in plain torch."""
    from vllm.model_executor.custom_op import CustomOp
    from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE, AscendSharedFusedMoE

    layers = {"FusedMoE": AscendFusedMoE, "SharedFusedMoE": AscendSharedFusedMoE}
    if vllm_config is not None and vllm_config.model_config.use_mla:
        layers |= _latent_layers()
    for name, layer in layers.items():
        if name not in CustomOp.op_registry_oot:  # a second engine in this process
            CustomOp.register_oot(_decorated_op_cls=layer, name=name)


def _latent_layers():
    from vllm.model_executor.layers.rotary_embedding import deepseek_scaling_rope
    from vllm_ascend.ops import mla, register_custom_ops, rotary_embedding
    from vllm_ascend.ops.linear import AscendRowParallelLinear

    class Rotary(rotary_embedding.AscendRotaryEmbedding):
        """Records its angles for latent attention, as vllm-ascend's does, and turns as vllm's own."""

        forward_oot = rotary_embedding.RotaryEmbedding.forward_native

    rotary_embedding.NPUPlatform = deepseek_scaling_rope.current_platform = SimpleNamespace(
        device_type="cpu", is_cuda=lambda: False
    )
    # Called as it is: graphs see inside of it, as a device's do, and not of an operator of the dispatcher.
    torch.ops.vllm.mla_forward = mla.mla_forward
    _implement("maybe_all_gather_and_maybe_unpad", register_custom_ops._maybe_all_gather_and_maybe_unpad_impl)
    return {
        "MultiHeadLatentAttentionWrapper": mla.AscendMultiHeadLatentAttention,
        "RotaryEmbedding": Rotary,
        "DeepseekScalingRotaryEmbedding": rotary_embedding.AscendDeepseekScalingRotaryEmbedding,
        "RowParallelLinear": AscendRowParallelLinear,
    }


def _implement(name, function):
    """An operator of vllm-ascend's own in Python, which it registers for its device only."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"vllm::{name}", "CPU"):
        _VLLM.impl(name, function, "CPU")


def _moe_answers(device):
    import vllm_ascend.utils
    from vllm_ascend.ops import register_custom_ops

    vllm_ascend.utils._ascend_device_type = vllm_ascend.utils.AscendDeviceType[device]
    all_reduce = register_custom_ops._maybe_all_reduce_tensor_model_parallel_impl
    _implement("maybe_all_reduce_tensor_model_parallel", all_reduce)
    torch.npu.current_device = lambda: torch.device("cpu")  # where the layers make tensors of their own
    rand = torch.rand
    # A layer with shared experts tries them on random numbers.
    torch.rand = lambda *size, device=None, **kind: rand(*size, device="cpu" if device == "npu" else device, **kind)
    get_backend = torch.distributed.ProcessGroup._get_backend

    def backend_of(group, device):
        return _HcclNames(group) if device.type == "npu" else get_backend(group, device)

    torch.distributed.ProcessGroup._get_backend = backend_of


class _HcclNames:
    """Stands for a group's HCCL backend, which is asked only for its communicator's name, when a layer is made."""

    def __init__(self, group):
        self._name = f"gloo:{group.group_name}"

    def get_hccl_comm_name(self, rank):
        return self._name
