# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

from dataclasses import dataclass

import pytest
import torch

from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from tests.unit_tests.test_utilities import Utils

SEQ_LENS = [8, 16]
HIDDEN_SIZE = 64


@dataclass(frozen=True)
class FakeGroup:
    """What rotary embeddings ask of a context parallel group."""

    cp_rank: int
    cp_size: int

    def rank(self):
        return self.cp_rank

    def size(self):
        return self.cp_size


class KeepQueryAndKey(torch.nn.Module):
    """Core attention that keeps what it is given, and gives the query."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, **kwargs):
        self.query, self.key = query, key
        return query.flatten(1)


def _tokens_of_rank(cp_rank, cp_size):
    """Indices of the packed tokens that a context parallel rank has of each sequence."""
    tokens = []
    for sequence in torch.arange(sum(SEQ_LENS)).split(SEQ_LENS):
        chunks = sequence.chunk(2 * cp_size)
        tokens += [chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]]
    return torch.cat(tokens)


class TestAttentionWithGroupOfPackedSequence:
    @pytest.fixture(autouse=True)
    def setup(self):
        Utils.initialize_model_parallel(1, 1)
        model_parallel_cuda_manual_seed(123)
        self.device = torch.cuda.current_device()
        self.attention = SelfAttention(
            TransformerConfig(
                num_layers=1,
                hidden_size=HIDDEN_SIZE,
                num_attention_heads=4,
                num_query_groups=2,
                use_cpu_initialization=True,
            ),
            SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear,
                core_attention=KeepQueryAndKey,
                linear_proj=RowParallelLinear,
            ),
            layer_number=1,
            attn_mask_type=AttnMaskType.causal,
        ).to(self.device)
        self.hidden_states = torch.randn((sum(SEQ_LENS), 1, HIDDEN_SIZE), device=self.device)
        # As if all sequences were on one rank.
        self.whole = self._query_and_key(self.hidden_states, None)
        yield
        Utils.destroy_model_parallel()

    def _query_and_key(self, hidden_states, cp_group):
        """Query and key behind rotary embedding, [tokens, heads, channels]."""
        cu_seqlens = torch.tensor([0, *SEQ_LENS], device=self.device).cumsum(0).int()
        packed_seq_params = PackedSeqParams(
            qkv_format='thd',
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_kv=cu_seqlens,
            max_seqlen_q=max(SEQ_LENS),
            max_seqlen_kv=max(SEQ_LENS),
            cp_group=cp_group,
        )
        rotary = RotaryEmbedding(HIDDEN_SIZE // 4, 1.0, use_cpu_initialization=True)
        rotary_pos_emb = rotary(max(SEQ_LENS), packed_seq=True)
        self.attention(
            hidden_states,
            None,
            rotary_pos_emb=(rotary_pos_emb, rotary_pos_emb),
            packed_seq_params=packed_seq_params,
        )
        return self.attention.core_attention.query, self.attention.core_attention.key

    def _check(self, cp_rank, cp_size, cp_group):
        """A rank's queries and keys are those that its tokens have in whole sequences."""
        tokens = _tokens_of_rank(cp_rank, cp_size).to(self.device)
        found = self._query_and_key(self.hidden_states[tokens], cp_group)
        for one, whole in zip(found, self.whole, strict=True):
            torch.testing.assert_close(one, whole[tokens])

    @pytest.mark.parametrize(('cp_rank', 'cp_size'), [(0, 2), (1, 2), (3, 4)])
    @pytest.mark.parametrize('own_size', [1, 4])
    def test_group_of_the_batch(self, cp_rank, cp_size, own_size):
        self.attention.pg_collection.cp = FakeGroup(0, own_size)
        self._check(cp_rank, cp_size, FakeGroup(cp_rank, cp_size))

    def test_batch_on_a_rank_of_its_own(self):
        self.attention.pg_collection.cp = FakeGroup(1, 2)
        self._check(0, 1, FakeGroup(0, 1))

    @pytest.mark.parametrize('cp_rank', [0, 1])
    def test_own_group_without_one_of_the_batch(self, cp_rank):
        self.attention.pg_collection.cp = FakeGroup(cp_rank, 2)
        self._check(cp_rank, 2, None)
