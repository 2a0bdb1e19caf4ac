"""Probe: Megatron-LM's own scheduler of hybrid context parallelism, with MindSpeed's attention, against whole sequences.

Usage: probe_packed_cp_group_schedule.py LENGTHS   (a JSON list: the sequences of each data parallel rank)

Two context parallel groups of two ranks each share their sequences (HybridCPDataLoaderWrapper), and a model of two layers with rotary
positions trains on them (forward_backward_no_pipelining with hybrid_context_parallel). Real: Megatron-LM's loader, scheduler, batches and
model, MindSpeed's attention and ring, gloo. Compared with the same model without context parallelism and PyTorch's attention.
Prints for each micro-batch of this rank (length, ranks that share it), and the largest differences of loss and gradients, the latter summed
over ranks and relative to the largest of each parameter.
"""

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

mindspeed_on_cpu.before_adaptor()

from mindspeed import megatron_adaptor  # noqa: E402

mindspeed_on_cpu.after_adaptor(megatron_adaptor)

import json  # noqa: E402
import sys  # noqa: E402

import sbh_attention  # noqa: E402
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining  # noqa: E402
from megatron.core.utils import get_batch_on_this_hybrid_cp_rank  # noqa: E402

LENGTHS = json.loads(sys.argv[1])
CONTEXT, A_RANK = 2, 16
SHARED = []


class PlainAttention(torch.nn.Module):
    """PyTorch's causal attention of one whole sequence, [s, 1, heads, width] to [s, 1, heads * width]."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, **unused):
        whole = torch.tensor([0, len(query)])
        return tiny_megatron.packed_attention(query[:, 0], key[:, 0], value[:, 0], whole)[:, None]


def model(core_attention=None, **settings):
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    if core_attention:
        spec.submodules.self_attention.submodules.core_attention = core_attention
    config = tiny_megatron.config(calculate_per_token_loss=True, **settings)
    return GPTModel(
        config,
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=256,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )


def sample(lengths, seed):
    """One packed sample, as a dataset gives it."""
    tokens = torch.randint(4, tiny_megatron.VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return {
        "tokens": tokens,
        "labels": tokens.roll(-1),
        "loss_mask": torch.ones(len(tokens)),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
    }


def step(iterator, made):
    """One micro-batch of the scheduler."""
    data = next(iterator)
    size = int(data.pop("local_cp_size"))
    SHARED.append((len(data["tokens"]), size))
    batch, packed = get_batch_on_this_hybrid_cp_rank(data, size)
    losses = made(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=packed)

    def loss(output):
        total = (output * batch["loss_mask"]).sum()
        return total, batch["loss_mask"].sum().int(), {"loss": total.detach().clone()}

    return losses, loss


def expected(made):
    """Loss and gradients of all sequences of all ranks, one at a time, on this rank alone."""
    loss = 0.0
    for seed, lengths in enumerate(LENGTHS):
        data = sample(lengths, seed)
        for first, end in zip(data["cu_seqlens"], data["cu_seqlens"][1:], strict=False):
            rows = {name: data[name][None, first:end] for name in ("tokens", "labels", "position_ids")}
            one = made(rows["tokens"], rows["position_ids"], None, labels=rows["labels"]).sum()
            one.backward()
            loss += one.item()
    return loss, {name: weight.grad for name, weight in made.named_parameters()}


def main():
    tiny_megatron.initialise()
    wanted, gradients = expected(model(PlainAttention))
    mpu.destroy_model_parallel()
    megatron_adaptor.repatch({"context_parallel_size": CONTEXT, "use_flash_attn": True, "transformer_impl": "local"})
    sbh_attention.install()
    mpu.initialize_model_parallel(context_parallel_size=CONTEXT, hybrid_context_parallel=True)
    made = model(hybrid_context_parallel=True, max_seqlen_per_dp_cp_rank=A_RANK)
    own = sample(LENGTHS[mpu.get_data_parallel_rank()], mpu.get_data_parallel_rank())
    losses = forward_backward_no_pipelining(
        forward_step_func=step,
        data_iterator=HybridCPDataLoaderWrapper(iter([[own]]), made.config),
        model=made,
        num_microbatches=1,
        seq_length=max(map(max, LENGTHS)),
        micro_batch_size=1,
    )
    loss = sum(one["loss"] for one in losses)
    dist.all_reduce(loss)
    far = {}
    for name, weight in made.named_parameters():
        dist.all_reduce(weight.grad)
        far[name] = float((weight.grad - gradients[name]).abs().max() / gradients[name].abs().max())
    result = {
        "attention": type(made.decoder.layers[0].self_attention.core_attention).__name__,
        "shared": SHARED,
        "loss": abs(float(loss) / wanted - 1),
        "gradients": max(far.values()),
        "parameters": len(far),
    }
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
