"""A pytest plugin (-p): MindSpeed's own tests on CPUs, with gloo in the place of hccl.

The stand-ins torch_npu and megatron_cpu answer for the devices, npu_attention and npu_dense_attention for the operators.
Upstream's DistributedTest starts its ranks from a fork server; that imports this module first, so that every rank finds
the same stand-ins.
"""

import multiprocessing
from types import SimpleNamespace

import megatron_cpu
import npu_attention
import npu_dense_attention
import torch
import torch.distributed
import torch_npu

RANKS = 8  # what most of the tests ask for
FACTORIES = ("arange", "empty", "eye", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")
# By the name under which MindSpeed loads what it has compiled.
OPERATORS = {
    "fusion_attention_v2": npu_dense_attention.FusionAttentionV2,
    "npu_ring_attention_update": SimpleNamespace(npu_ring_attention_update=npu_dense_attention.ring_attention_update),
    "npu_rotary_position_embedding": SimpleNamespace(
        npu_rotary_position_embedding=npu_dense_attention.rotary_position_embedding
    ),
}


def _use_devices():
    """As many NPUs as ranks, of the type that the tests want; they are all the CPU."""
    for module in (torch.cuda, torch_npu.npu):
        module.is_available = lambda: True
        module.device_count = lambda: RANKS
        module.current_device = lambda: "cpu"
        module.set_device = lambda *args: None
        module.get_device_name = lambda *args: "Ascend910B1"
    npu_attention.use_the_cpu(*FACTORIES)


def _use_gloo():
    start, group = torch.distributed.init_process_group, torch.distributed.new_group

    def start_with_gloo(backend=None, **settings):
        return start("gloo", **settings)

    def group_with_gloo(*args, backend=None, pg_options=None, **settings):
        return group(*args, backend="gloo", **settings)

    torch.distributed.init_process_group, torch.distributed.new_group = start_with_gloo, group_with_gloo


def _use_operators():
    from mindspeed.op_builder.builder import MindSpeedOpBuilder

    torch_npu.npu_fusion_attention = npu_dense_attention.fusion_attention
    torch_npu.npu_fusion_attention_grad = npu_dense_attention.fusion_attention_grad
    MindSpeedOpBuilder._loaded_ops.update(OPERATORS)


assert megatron_cpu  # it is imported for what it does to torch
_use_devices()
_use_gloo()
_use_operators()
multiprocessing.set_forkserver_preload([__name__])
