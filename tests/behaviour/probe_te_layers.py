"""Probe: MindSpeed's fused layer and attention, alone: what state_dict has of norms beside the fused layer, and the shapes and the
scale that the operator of attention is given with the widths of latent attention."""

import json

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch_npu
from megatron.core.transformer.enums import AttnMaskType

KEYS, VALUES, HEADS, SCALE = 24, 12, 4, 0.3


def main():
    tiny_megatron.initialise()
    config = tiny_megatron.config(num_query_groups=HEADS)
    result = {"state": state(config), "attention": attention(config)}
    torch.distributed.destroy_process_group()
    print(json.dumps(result))


def state(config):
    """A layer with latent attention's names: its norms stand beside fused layers."""
    from mindspeed.te.pytorch.module.layernorm_column_parallel_linear import TELayerNormColumnParallelLinear

    on_npu, torch.ones = torch.ones, lambda *size, device=None, **rest: on_npu(*size, **rest)
    fused = TELayerNormColumnParallelLinear(
        16, 32, config=config, init_method=torch.nn.init.zeros_, gather_output=False, bias=False, skip_bias_add=False
    )
    torch.ones = on_npu
    layer = torch.nn.Module()
    layer.q_layernorm, layer.pre_mlp_layernorm = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)
    layer.fused = fused
    return {"parameters": sorted(dict(layer.named_parameters())), "state_dict": sorted(layer.state_dict())}


def attention(config):
    from mindspeed.te.pytorch.attention.dot_product_attention.dot_product_attention import TEDotProductAttention

    config.attention_mask_type, config.sparse_mode = "general", 0
    given = []

    def operator(query, key, value, heads, layout=None, *rest, **settings):
        given.append([list(one.shape) for one in (query, key, value)] + [settings.get("scale")])
        return (value,)

    torch_npu.npu_fusion_attention = operator
    made = TEDotProductAttention(
        config, 1, AttnMaskType.causal, "self", softmax_scale=SCALE, k_channels=KEYS, v_channels=VALUES
    )
    made(
        torch.zeros(5, 1, HEADS, KEYS),
        torch.zeros(5, 1, HEADS, KEYS),
        torch.zeros(5, 1, HEADS, VALUES),
        torch.zeros(5, 5, dtype=torch.bool),
        AttnMaskType.causal,
    )
    return given


main()
