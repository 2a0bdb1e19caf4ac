"""Probe: the scale with which MindSpeed's flash attention computes attention that is not latent."""

import json

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()

import megatron.core.extensions.transformer_engine as te  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel()
ADAPTOR.repatch({"use_flash_attn": True})
scales = []


def operator(query, key, value, heads, layout, *, scale, **settings):
    scales.append(scale)
    return (value,)


torch_npu.npu_fusion_attention = operator


def scale_of(layer, **settings):
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        **settings,
    )
    config.sparse_mode, config.pre_tockens, config.next_tockens = 0, 65536, 0
    made = te.TEDotProductAttention(config, layer, AttnMaskType.padding, "self")
    made(*(torch.zeros(5, 1, 4, 8) for _ in range(3)), torch.zeros(5, 5, dtype=torch.bool))
    return scales[-1]


result = {"plain": scale_of(1), "layer scaling": scale_of(3, apply_query_key_layer_scaling=True)}
dist.destroy_process_group()
print(json.dumps(result))
