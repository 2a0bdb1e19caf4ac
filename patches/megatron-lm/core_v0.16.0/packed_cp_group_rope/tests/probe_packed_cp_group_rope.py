"""Probe: queries and keys of packed sequences behind rotary embedding, on four ranks of one context parallel group.

Each case is a model of one layer whose core attention notes what it is given; compared with the same model on one rank that has the
sequences whole. Prints for each case the largest difference on this rank, or the error.
"""

import json

import npu_attention
import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams

NOTED = []
WHOLE, ALONE = [16, 8], [14, 10]
OF_PAIRS = [[8, 16], [12, 4]]


class NotingAttention(torch.nn.Module):
    """Notes query, key and the group of the batch; its output is the query's."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **unused):
        NOTED.append((query.detach().clone(), key.detach().clone(), packed_seq_params.cp_group))
        return query.flatten(1)


def packed(lengths, group):
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        cp_group=group,
    )


def behind_rotary(tokens, lengths, group=None):
    """Query and key [tokens, heads, width] of these tokens [1, tokens], which belong to sequences of `lengths`."""
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = NotingAttention
    model = GPTModel(
        tiny_megatron.config(num_layers=1),
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=64,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    NOTED.clear()
    model(tokens, None, None, packed_seq_params=packed(lengths, group))
    ((query, key, noted),) = NOTED
    assert noted is group
    return query, key


def case(lengths, seed, place, ranks, group):
    """A function that compares this rank's part with the whole, which is made here, without context parallelism."""
    tokens = torch.randint(
        4, tiny_megatron.VOCABULARY, (1, sum(lengths)), generator=torch.Generator().manual_seed(seed)
    )
    mine = npu_attention.tokens_of_rank(lengths, place, ranks) if ranks > 1 else torch.arange(sum(lengths))
    expected = behind_rotary(tokens, lengths)

    def difference():
        try:
            found = behind_rotary(tokens[:, mine], lengths, group)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return max(float((one - whole[mine]).abs().max()) for one, whole in zip(found, expected, strict=True))

    return difference


def main():
    tiny_megatron.initialise()
    rank = dist.get_rank()
    alone = [dist.new_group([one]) for one in range(4)][rank]
    pair = [dist.new_group([first, first + 1]) for first in (0, 2)][rank // 2]
    cases = {
        "alone": case(ALONE, rank, 0, 1, alone),
        "pair": case(OF_PAIRS[rank // 2], rank // 2, rank % 2, 2, pair),
        "no group": case(WHOLE, 0, rank, 4, None),
    }
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(context_parallel_size=4)
    result = {name: difference() for name, difference in cases.items()}
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
