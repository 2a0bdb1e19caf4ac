# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

from dataclasses import dataclass

import pytest
import torch

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from tests.unit_tests.test_utilities import Utils

SEQ_LEN = 16
YARN = {
    'yarn_rotary_scaling_factor': 4.0,
    'yarn_original_max_position_embeddings': 8,
    'yarn_beta_fast': 32.0,
    'yarn_beta_slow': 1.0,
    'yarn_mscale': 1.0,
    'yarn_mscale_all_dim': 0.0,
    'yarn_correction_range_round_to_int': True,
}


@dataclass(frozen=True)
class FakeGroup:
    """What rotary embeddings ask of a context parallel group."""

    cp_rank: int
    cp_size: int = 2

    def rank(self):
        return self.cp_rank

    def size(self):
        return self.cp_size


@pytest.mark.parametrize('position_embedding_type', ['rope', 'yarn'])
@pytest.mark.parametrize('cp_rank', [0, 1])
class TestRotaryPositionsOfHybridContextParallelism:
    """A model on one of two context parallel ranks, without a decoder's forward pass."""

    @pytest.fixture(autouse=True)
    def setup(self, position_embedding_type, cp_rank):
        Utils.initialize_model_parallel(1, 1)
        model_parallel_cuda_manual_seed(123)
        config = TransformerConfig(
            num_layers=1, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True
        )
        for name, value in YARN.items():
            setattr(config, name, value)
        self.model = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(),
            vocab_size=100,
            max_sequence_length=SEQ_LEN,
            position_embedding_type=position_embedding_type,
        )
        self.whole = self._positions(SEQ_LEN, None)
        assert self.whole.shape[0] == SEQ_LEN
        self.model.rotary_pos_emb.cp_group = FakeGroup(cp_rank)
        self.model.rotary_pos_emb.forward.cache_clear()
        self.model.config.context_parallel_size = 2
        # Of the four chunks of a sequence a rank has one from the front and one from the back.
        chunks = self.whole.chunk(4)
        self.part = torch.cat([chunks[cp_rank], chunks[3 - cp_rank]])
        yield
        Utils.destroy_model_parallel()

    def _positions(self, local_len, packed_seq_params):
        """Rotary positions for a hidden state [local_len, 1, hidden_size]."""
        decoder_input = torch.zeros((local_len, 1, self.model.config.hidden_size))
        return self.model._preprocess(
            None, None, decoder_input=decoder_input, packed_seq_params=packed_seq_params
        )[1]

    @staticmethod
    def _packed_seq_params(**kwargs):
        return PackedSeqParams(max_seqlen_q=SEQ_LEN, max_seqlen_kv=SEQ_LEN, **kwargs)

    def test_sequence_of_one_rank_is_not_divided(self):
        params = self._packed_seq_params(qkv_format='sbhd', local_cp_size=1)
        assert torch.equal(self._positions(SEQ_LEN, params), self.whole)

    def test_sequence_of_a_group_is_divided_by_it(self, cp_rank):
        params = self._packed_seq_params(
            qkv_format='sbhd', local_cp_size=2, cp_group=FakeGroup(cp_rank)
        )
        assert torch.equal(self._positions(SEQ_LEN // 2, params), self.part)

    def test_packed_sequences_are_not_divided(self):
        params = self._packed_seq_params(qkv_format='thd')
        assert torch.equal(self._positions(SEQ_LEN // 2, params), self.whole)

    def test_other_sequences_are_divided_by_the_whole_group(self):
        assert torch.equal(self._positions(SEQ_LEN // 2, None), self.part)
        # So they are where a batch does not say how many ranks share it.
        params = self._packed_seq_params(qkv_format='sbhd')
        assert torch.equal(self._positions(SEQ_LEN // 2, params), self.part)
