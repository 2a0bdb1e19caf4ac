# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

import pytest
import torch

from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.training.initialize import _set_random_seed
from tests.unit_tests.test_utilities import Utils


class TestExpertBiasPadding:
    """Which tokens the router counts for the bias of its experts."""

    @pytest.fixture(autouse=True)
    def setup(self, monkeypatch):
        # Without Transformer Engine the name is not there, and its kernel needs a GPU.
        monkeypatch.setattr(moe_utils, 'te_general_gemm', None, raising=False)
        Utils.initialize_model_parallel(1, 1)
        _set_random_seed(seed_=123, data_parallel_random_init=False)
        config = TransformerConfig(
            num_layers=1,
            hidden_size=12,
            num_attention_heads=4,
            num_moe_experts=4,
            use_cpu_initialization=True,
            moe_router_load_balancing_type="none",
            moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True,
            moe_router_topk=2,
            add_bias_linear=False,
        )
        self.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
        self.device = self.router.local_tokens_per_expert.device
        self.router.to(self.device)
        yield
        Utils.destroy_model_parallel()

    def _forward(self, seq_len, batch_size, padding_mask=None):
        """Returns the routing map as [seq_len, batch_size, experts]."""
        hidden_states = torch.randn((seq_len, batch_size, 12), device=self.device)
        _, routing_map = self.router(hidden_states, padding_mask=padding_mask)
        return routing_map.view(seq_len, batch_size, -1)

    # With 4 tokens a mask of tokens could be taken for one of the 4 experts.
    @pytest.mark.parametrize(('seq_len', 'batch_size'), [(6, 1), (8, 2), (4, 1), (2, 2)])
    def test_padding_is_not_counted(self, seq_len, batch_size):
        valid_len = seq_len // 2
        padding_mask = torch.zeros((seq_len, batch_size), dtype=torch.bool, device=self.device)
        padding_mask[valid_len:] = True

        routing_map = self._forward(seq_len, batch_size, padding_mask)

        counts = self.router.local_tokens_per_expert
        assert torch.equal(counts, routing_map[:valid_len].sum(dim=(0, 1)).to(counts.dtype))
        assert counts.sum() == 2 * valid_len * batch_size

    def test_counts_of_micro_batches_add_up(self):
        padding_mask = torch.tensor([[False], [True]], device=self.device)
        for _ in range(3):
            self._forward(2, 1, padding_mask)
        assert self.router.local_tokens_per_expert.sum() == 2 * 3

    def test_all_tokens_are_counted_without_a_mask(self):
        routing_map = self._forward(6, 2)
        counts = self.router.local_tokens_per_expert
        assert torch.equal(counts, routing_map.sum(dim=(0, 1)).to(counts.dtype))

    def test_nothing_is_counted_without_grad(self):
        padding_mask = torch.zeros((6, 2), dtype=torch.bool, device=self.device)
        with torch.no_grad():
            self._forward(6, 2, padding_mask)
        assert self.router.local_tokens_per_expert.sum() == 0
