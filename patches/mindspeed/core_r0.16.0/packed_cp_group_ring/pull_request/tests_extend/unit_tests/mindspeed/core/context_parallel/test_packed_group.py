# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
from types import SimpleNamespace

import pytest
import torch
import torch_npu  # noqa: F401

from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType

from mindspeed.core.context_parallel import rotary_pos_embedding_utils
from mindspeed.core.context_parallel.dot_product_attention import CPDotProductAttentionImpl
from mindspeed.core.transformer.flash_attention.flash_attention import adaptor

WHOLE = [0, 1, 2, 3]
SETTINGS = {
    "context_parallel_size": 4,
    "context_parallel_algo": "megatron_cp_algo",
    "attention_mask_type": "causal",
    "cp_window_size": 1,
    "sparse_mode": 2,
    "use_cp_send_recv_overlap": False,
    "tp_y": 1,
}


class FakeGroup:
    def __init__(self, ranks, rank):
        self.ranks, self.place = ranks, ranks.index(rank)

    def size(self):
        return len(self.ranks)

    def rank(self):
        return self.place


@pytest.fixture(autouse=True)
def rank_3_of_4(monkeypatch):
    """Context parallelism over four ranks."""
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: group.ranks)
    parallel_state = rotary_pos_embedding_utils.parallel_state
    monkeypatch.setattr(parallel_state, "get_context_parallel_global_ranks", lambda: WHOLE)
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 4)
    monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda: 3)
    monkeypatch.setattr(rotary_pos_embedding_utils, "get_args", lambda: SimpleNamespace(**SETTINGS))


@pytest.mark.parametrize("ranks", [[2, 3], [1, 3], WHOLE, [3]])
def test_rotary_positions_are_those_of_the_group(ranks):
    pos_emb, group = torch.arange(16.0).view(16, 1, 1, 1), FakeGroup(ranks, 3)
    found = rotary_pos_embedding_utils.get_pos_emb_on_this_cp_rank(pos_emb, 0, group)
    chunks = pos_emb.chunk(2 * group.size())
    assert torch.equal(found, torch.cat([chunks[group.rank()], chunks[-1 - group.rank()]]))


def forward(packed_seq_params, attn_mask_type=AttnMaskType.causal, **settings):
    qkv = [torch.zeros(8, 1, 2, 4)] * 3 if packed_seq_params.qkv_format == "sbhd" else [torch.zeros(8, 2, 4)] * 3
    attention = SimpleNamespace(
        config=SimpleNamespace(**{**SETTINGS, "megatron_cp_in_bnsd": False, **settings}), pse=None, pse_type=1
    )
    mask = torch.zeros(1, dtype=torch.bool)
    CPDotProductAttentionImpl.forward(attention, *qkv, mask, attn_mask_type, packed_seq_params=packed_seq_params)


@pytest.mark.parametrize(
    "name, value",
    [
        ("context_parallel_algo", "hybrid_cp_algo"),
        ("attention_mask_type", "general"),
        ("cp_window_size", 2),
        ("reset_attention_mask", True),
        ("tp_2d", True),
        ("multi_latent_attention", True),
        ("use_cp_send_recv_overlap", True),
        ("attn_mask_type", AttnMaskType.no_mask),
    ],
)
def test_unsuitable_setting_is_named(name, value):
    group = PackedSeqParams(qkv_format="sbhd", local_cp_size=2, cp_group=FakeGroup([2, 3], 3))
    with pytest.raises(NotImplementedError, match=f"{name}=({value}|no_mask)"):
        forward(group, **{name: value})


def test_fused_rotary_embedding_of_packed_sequences_is_refused():
    group = PackedSeqParams(qkv_format="thd", cp_group=FakeGroup([2, 3], 3))
    with pytest.raises(NotImplementedError, match="apply_rope_fusion=True"):
        forward(group, apply_rope_fusion=True)


@pytest.mark.parametrize("size, group", [(2, None), (4, FakeGroup([2, 3], 3))])
def test_ranks_have_to_be_said(size, group):
    with pytest.raises(ValueError, match=f"local_cp_size={size}"):
        forward(PackedSeqParams(qkv_format="sbhd", local_cp_size=size, cp_group=group))


def test_group_wants_context_parallelism():
    group = PackedSeqParams(qkv_format="thd", cp_group=FakeGroup([2, 3], 3))
    with pytest.raises(NotImplementedError, match="context_parallel_size > 1"):
        adaptor.dot_product_attention_forward_impl(None, None, None, None, None, packed_seq_params=group)
