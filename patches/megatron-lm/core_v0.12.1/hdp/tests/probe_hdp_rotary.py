"""Probe: rotary positions of packed sequences whose ranks are a part of the context parallel group. Four processes.

Functions: sequences on pairs of ranks, against the positions of whole sequences. Model: a GPT model, each rank with a
packed sequence of its own and a group of itself, against the same model without context parallelism. Refusals: the
messages of latent attention and Transformer Engine's. Recomputed: the groups that attention sees with two micro-batches
and full recomputation, whose backward passes come in the order of the forward passes.
"""

import dataclasses
import json

import npu_attention
import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import random as megatron_random

WIDTH = 16
SEEN = []


def functions(config):
    """Largest difference of apply_rotary_pos_emb on a pair of ranks, which has sequences of its own."""
    rank = dist.get_rank()
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
    group, lengths = pairs[rank // 2], [8, 16] if rank < 2 else [12, 4]
    generator = torch.Generator().manual_seed(rank // 2)
    whole = torch.randn(sum(lengths), 2, WIDTH, generator=generator)
    angles = torch.outer(torch.arange(16.0), 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    frequencies = torch.cat([angles, angles], -1)[:, None, None, :]
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    tokens = npu_attention.tokens_of_rank(lengths, rank % 2, 2)
    mine = rope_utils.apply_rotary_pos_emb(whole[tokens], frequencies, config, cu_seqlens=bounds, cp_group=group)
    parts = whole.split(lengths)
    expected = torch.cat(
        [rope_utils._apply_rotary_pos_emb_bshd(part[:, None], frequencies[: len(part)])[:, 0] for part in parts]
    )
    return float((mine - expected[tokens]).abs().max())


class PackedAttention(torch.nn.Module):
    """PyTorch's attention, a sequence at a time; notes the group that each call was given."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **unused):
        SEEN.append(getattr(packed_seq_params, "cp_group", None))
        return tiny_megatron.packed_attention(query, key, value, packed_seq_params.cu_seqlens_q)


def gpt(config):
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return GPTModel(
        config,
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=64,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )


def packed(lengths, **groups):
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        **groups,
    )


def logits_and_gradient(config, **groups):
    """Of this rank's two sequences."""
    model = gpt(config)
    tokens = torch.randint(4, 500, (1, 24), generator=torch.Generator().manual_seed(dist.get_rank()))
    logits = model(tokens, None, None, packed_seq_params=packed([14, 10], **groups))
    logits.float().square().mean().backward()
    return logits.detach(), model.decoder.layers[0].self_attention.linear_qkv.weight.grad


def recomputed(groups):
    """Indices of the groups seen: two forward passes, then each backward pass with its recomputation."""
    config = tiny_megatron.config(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, num_layers=1
    )
    megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda *args, **kwargs: None
    model = gpt(config).train()
    tokens = torch.randint(4, 500, (1, 24), generator=torch.Generator().manual_seed(1))
    SEEN.clear()
    outputs = [model(tokens, None, None, packed_seq_params=packed([14, 10], cp_group=group)) for group in groups]
    for output in outputs:
        output.float().mean().backward()
    return [groups.index(group) for group in SEEN]


def main():
    tiny_megatron.initialise()
    plain = logits_and_gradient(tiny_megatron.config())
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(context_parallel_size=4)
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]
    fields = [field.name for field in dataclasses.fields(PackedSeqParams)]
    config = tiny_megatron.config()
    grouped = logits_and_gradient(config, cp_group=alone)
    again = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]
    result = {
        "functions": functions(config),
        "model": [float((a - b).abs().max()) for a, b in zip(grouped, plain, strict=True)],
        "seen": recomputed([alone, again]),
        "fields": fields,
    }
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
