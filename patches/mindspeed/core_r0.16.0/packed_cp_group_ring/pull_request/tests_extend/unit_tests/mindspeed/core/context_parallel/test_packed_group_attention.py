# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

try:
    from mindspeed import megatron_adaptor  # noqa: F401
except ImportError:
    pass

from megatron.core.packed_seq_params import PackedSeqParams

from mindspeed import args_utils
from mindspeed.core.context_parallel.dot_product_attention import CPDotProductAttentionImpl
from tests_extend.unit_tests.common import DistributedTest

HEADS, DIM = 4, 16


def get_attention():
    """What CPDotProductAttentionImpl.forward reads of a layer."""
    config = SimpleNamespace(
        context_parallel_algo="megatron_cp_algo",
        attention_mask_type="causal",
        cp_window_size=1,
        megatron_cp_in_bnsd=False,
        use_cp_send_recv_overlap=False,
        context_parallel_kv_cache_policy=None,
        context_parallel_cache_interval=0,
        use_fusion_attn_v2=False,
        sparse_mode=2,
        pre_tockens=2048,
        next_tockens=0,
    )
    dropout = SimpleNamespace(p=0.0)
    return SimpleNamespace(
        config=config, attention_dropout=dropout, softmax_scale=DIM**-0.5, pse=None, pse_type=1, layer_number=1
    )


def full_attention(query, key, value, lengths):
    """Causal attention of each sequence by itself, [tokens, heads, dim]."""
    outputs = []
    for q, k, v in zip(*(tensor.float().split(lengths) for tensor in (query, key, value)), strict=True):
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        outputs.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))
    return torch.cat(outputs)


def tokens_of_rank(lengths, rank, size):
    """Indices of the tokens of a rank: of each sequence one chunk from the front, and one from the back."""
    tokens = []
    for sequence in torch.arange(sum(lengths)).split(lengths):
        chunks = sequence.chunk(2 * size)
        tokens += [chunks[rank], chunks[2 * size - 1 - rank]]
    return torch.cat(tokens)


class TestPackedGroupAttention(DistributedTest):
    """Four ranks, which share sequences in blocks of one, two or four."""

    world_size = 4

    @pytest.mark.parametrize("size", [1, 2, 4])
    @pytest.mark.parametrize("qkv_format", ["sbhd", "thd"])
    def test_equals_full_attention(self, qkv_format, size):
        args = args_utils._MINDSPEED_ARGS = args_utils.get_mindspeed_args(get_defaults=True)
        args.use_fused_ring_attention_update = True
        first = dist.get_rank() // size * size
        blocks = [list(range(start, start + size)) for start in range(0, 4, size)]
        groups = {ranks[0]: dist.new_group(ranks) for ranks in blocks}
        # Blocks have other sequences.
        torch.manual_seed(first)
        lengths = [16 * size] if qkv_format == "sbhd" else [8 * size * (1 + first), 16 * size]
        whole = [torch.randn(sum(lengths), HEADS, DIM).bfloat16().requires_grad_() for _ in range(3)]
        dout = torch.randn(sum(lengths), HEADS, DIM).bfloat16()
        expected = full_attention(*whole, lengths)
        expected.backward(dout)

        mine, device = tokens_of_rank(lengths, dist.get_rank() - first, size), torch.cuda.current_device()
        part = [tensor.detach()[mine].to(device).requires_grad_() for tensor in whole]
        cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
        packed_seq_params = PackedSeqParams(
            qkv_format=qkv_format,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_kv=cu_seqlens,
            local_cp_size=size,
            # The scheduler gives no group to a rank by itself.
            cp_group=groups[first] if size > 1 else None,
        )
        mask = torch.ones((2048, 2048), dtype=torch.bool, device=device).triu(1)
        qkv = [tensor.unsqueeze(1) for tensor in part] if qkv_format == "sbhd" else part
        out = CPDotProductAttentionImpl.forward(get_attention(), *qkv, mask, packed_seq_params=packed_seq_params)
        assert out.dtype == torch.bfloat16
        out.view(-1, HEADS, DIM).backward(dout[mine].to(device))

        tols = {"atol": 0.03, "rtol": 0.02}
        torch.testing.assert_close(out.view(-1, HEADS, DIM).float().cpu(), expected[mine], **tols)
        for tensor, reference in zip(part, whole, strict=True):
            torch.testing.assert_close(tensor.grad.cpu(), reference.grad[mine], **tols)
