# Copyright (c) 2025, Huawei Technologies Co., Ltd. All rights reserved.
from megatron.core.transformer.dot_product_attention import DotProductAttention


class MindSpeedTEDotProductAttention(DotProductAttention):
    """DotProductAttention with the arguments of TEDotProductAttention: latent attention says how wide its keys and values are."""

    def __init__(self, *args, k_channels=None, v_channels=None, **kwargs):
        super().__init__(*args, **kwargs)
        if k_channels is not None and v_channels is not None:
            self.hidden_size_per_attention_head = k_channels
            # As wide as what comes out.
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition
