"""Probe: queries and keys behind rotary embedding, of batches that Megatron-LM's hybrid context parallelism makes, on two ranks.

Each case is a model of one layer whose core attention notes what it is given; compared with the same model without context parallelism.
Prints for each case the largest difference on this rank, or the error.
"""

import json

import npu_attention
import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.utils import get_batch_on_this_hybrid_cp_rank

NOTED = []
LENGTH = 16


class NotingAttention(torch.nn.Module):
    """Notes query and key, [s, 1, heads, width]; its output is the query's."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, **unused):
        NOTED.append((query.detach().clone(), key.detach().clone()))
        return query.flatten(2)


def behind_rotary(kind, tokens, packed=None):
    """Query and key of these tokens [1, s]."""
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = NotingAttention
    config = tiny_megatron.config(num_layers=1)
    if kind == "yarn":
        for name, value in {"rotary_scaling_factor": 4.0, "original_max_position_embeddings": 8}.items():
            setattr(config, f"yarn_{name}", value)
        for name, value in {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}.items():
            setattr(config, f"yarn_{name}", value)
        config.yarn_correction_range_round_to_int = True
    model = GPTModel(
        config,
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=64,
        position_embedding_type=kind,
        share_embeddings_and_output_weights=False,
    )
    NOTED.clear()
    model(tokens, None, None, packed_seq_params=packed)
    (noted,) = NOTED
    return noted


def case(kind, ranks, seed, place=0):
    """A function that compares this rank's part with the whole, which is made here, without context parallelism."""
    tokens = torch.randint(4, tiny_megatron.VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(seed))
    mine = npu_attention.tokens_of_rank([LENGTH], place, ranks) if ranks > 1 else torch.arange(LENGTH)
    expected = behind_rotary(kind, tokens[None])

    def difference():
        group = parallel_state.get_context_parallel_group() if ranks > 1 else None
        batch, packed = get_batch_on_this_hybrid_cp_rank({"tokens": tokens}, ranks, group)
        try:
            found = behind_rotary(kind, batch["tokens"], packed)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return max(float((one - whole[mine]).abs().max()) for one, whole in zip(found, expected, strict=True))

    return difference


def main():
    tiny_megatron.initialise()
    rank = dist.get_rank()
    cases = {f"alone, {kind}": case(kind, 1, rank) for kind in ("rope", "yarn")}
    cases |= {f"both, {kind}": case(kind, 2, 7, rank) for kind in ("rope", "yarn")}
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    result = {name: difference() for name, difference in cases.items()}
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
