"""Stands for torch_npu (2.9.0) on a machine without an NPU, so that upstream's NPU code can be imported and run on CPU.

Tensors are real CPU tensors. What a Qwen3 step needs is implemented for real (`reference_*`, `runtime`, `graphs`);
every other name is a `MagicMock`, which lets modules import it. A test whose path goes through such a mock proves
nothing: give the operator a reference implementation first. Nothing here shows how an NPU kernel, HCCL or an ACL graph
behaves.
"""

import sys

import torch

from . import (
    graphs,
    reference_mla_ops,
    reference_moe_ops,
    reference_ops,
    reference_quant_ops,
    reference_train_ops,
    runtime,
    unknown,
)

__version__ = "2.9.0"

npu = runtime.make_npu_module()
sys.modules["torch_npu.npu"] = sys.modules["torch.npu"] = torch.npu = npu
runtime.extend_torch()

_npu_reshape_and_cache = graphs.as_one_operator(reference_ops.reshape_and_cache)
npu_fused_infer_attention_score = reference_ops.fused_infer_attention_score
_npu_fused_infer_attention_score_get_max_workspace = reference_ops.fused_infer_attention_score_workspace
npu_moe_token_permute = reference_moe_ops.token_permute
npu_moe_token_unpermute = reference_moe_ops.token_unpermute
npu_grouped_matmul = reference_moe_ops.grouped_matmul
npu_swiglu = reference_moe_ops.swiglu
npu_dynamic_quant = reference_quant_ops.dynamic_quant
npu_grouped_matmul_swiglu_quant = reference_quant_ops.grouped_matmul_swiglu_quant
npu_rms_norm = reference_train_ops.rms_norm
npu_rotary_mul = reference_train_ops.rotary_mul
npu_cross_entropy_loss = reference_train_ops.cross_entropy_loss
npu_format_cast = reference_mla_ops.format_cast
npu_interleave_rope = reference_mla_ops.interleave_rope
npu_kv_rmsnorm_rope_cache = reference_mla_ops.kv_rmsnorm_rope_cache
npu_transpose_batchmatmul = reference_mla_ops.transpose_batchmatmul
atb = unknown.StandInModule("torch_npu.atb")
atb.npu_ring_mla = reference_mla_ops.ring_mla
atb.npu_paged_cache_load = reference_mla_ops.paged_cache_load


def _autoload():
    """Entry point of group torch.backends: where this package is installed, `import torch` loads it, as the real one."""


# Last: from here on this module answers for every name, also for that of a file that is not imported yet.
unknown.install()
sys.modules[__name__].__class__ = unknown.StandInModule
