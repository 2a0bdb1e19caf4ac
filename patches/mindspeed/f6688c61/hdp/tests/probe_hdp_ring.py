"""Probe: MindSpeed's attention and rotary embedding when a micro-batch brings its ranks, against full attention.

Usage: probe_hdp_ring.py CASES   (CASES is a JSON object: name -> case)

A case: `blocks` [[first rank, ranks], ...], `window` of the double ring, `overlap` for second groups, `backwards` to run
the backward passes of its two micro-batches in the order of the forward passes, not reversed. Every block has sequences
of its own. Real: MindSpeed's adaptor, its replacement of Megatron's rotary embedding, RingP2P, ring attention, gloo.
"""

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()

import json  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import npu_attention  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.models.common.embeddings import rope_utils  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer import attention as megatron_attention  # noqa: E402
from mindspeed.core.context_parallel import packed_group  # noqa: E402

CASES = json.loads(sys.argv[1])
HEADS, KEY_HEADS, WIDTH = 4, 2, 8
SCALE = WIDTH**-0.5


def use_parallel(window, overlap):
    ADAPTOR.repatch(
        {
            "context_parallel_size": dist.get_world_size(),
            "use_flash_attn": True,
            "use_fused_ring_attention_update": True,
            "use_cp_send_recv_overlap": overlap,
            "cp_window_size": window,
        }
    )
    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(context_parallel_size=dist.get_world_size())


def whole(lengths, query, key, value, frequencies):
    """Rotary embedding and attention of whole sequences on one rank."""
    ends = torch.tensor(lengths).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    query, key = (
        torch.cat([rotated(tensor[a:b], frequencies[: b - a]) for a, b in zip(starts, ends, strict=True)])
        for tensor in (query, key)
    )
    lengths = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    return npu_attention.fusion_attention(
        query, key, value, HEADS, "TND", atten_mask=True, sparse_mode=3, scale=SCALE, **lengths
    )[0]


def rotated(tensor, frequencies):
    first, second = tensor.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return tensor * frequencies.cos() + turned * frequencies.sin()


class MicroBatch:
    """One micro-batch on this rank's block."""

    def __init__(self, case, seed, groups):
        self.case = case
        rank = dist.get_rank()
        self.first, self.ranks = next(block for block in case["blocks"] if block[0] <= rank < block[0] + block[1])
        self.lengths = [8 * self.ranks * (1 + seed), 16 * self.ranks]
        generator = torch.Generator().manual_seed(100 * self.first + seed)
        shape = (sum(self.lengths), HEADS, WIDTH)
        self.inputs = [torch.randn(shape[0], n, WIDTH, generator=generator) for n in (HEADS, KEY_HEADS, KEY_HEADS)]
        self.gradient = torch.randn(shape, generator=generator)
        angles = torch.outer(torch.arange(256.0), 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        self.frequencies = torch.cat([angles, angles], -1)[:, None, None, :]
        bounds = torch.tensor([0, *self.lengths]).cumsum(0).int()
        group, overlap = groups[self.first, self.ranks]
        self.packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            cu_seqlens_q_padded=bounds,
            cu_seqlens_kv_padded=bounds,
            cp_group=group,
            cp_overlap_group=overlap,
        )
        self.tokens = npu_attention.tokens_of_rank(self.lengths, rank - self.first, self.ranks)
        if self.ranks == 1:
            self.tokens = torch.arange(shape[0])

    def forward(self, module):
        self.own = [tensor[self.tokens].clone().requires_grad_() for tensor in self.inputs]
        query, key, value = self.own
        bounds = self.packed.cu_seqlens_q_padded
        query, key = (
            megatron_attention.apply_rotary_pos_emb(
                tensor, self.frequencies, module.rope, cu_seqlens=bounds, cp_group=self.packed.cp_group
            )
            for tensor in (query, key)
        )
        mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
        self.output = packed_group.attention_of_packed_group(module, query, key, value, mask, 2, SCALE, self.packed)

    def backward(self):
        self.output.backward(self.gradient[self.tokens])

    def differences(self):
        full = [tensor.clone().requires_grad_() for tensor in self.inputs]
        expected = whole(self.lengths, *full, self.frequencies[:, 0])
        expected.backward(self.gradient)
        pairs = [
            (self.output, expected),
            *((mine.grad, theirs.grad) for mine, theirs in zip(self.own, full, strict=True)),
        ]
        names = ("output", "query", "key", "value")
        return {n: float((a - b[self.tokens]).abs().max()) for n, (a, b) in zip(names, pairs, strict=True)}


def module_of(case):
    """The settings that attention reads of its module."""
    config = SimpleNamespace(
        context_parallel_algo="megatron_cp_algo",
        attention_mask_type="causal",
        use_cp_send_recv_overlap=case.get("overlap", False),
        megatron_cp_in_bnsd=False,
        context_parallel_kv_cache_policy=case.get("cache"),
        context_parallel_cache_interval=0,
        use_fusion_attn_v2=False,
        pre_tockens=65536,
        next_tockens=0,
    )
    rope = SimpleNamespace(
        apply_rope_fusion=False, rotary_interleaved=False, multi_latent_attention=False, mrope_section=None
    )
    return SimpleNamespace(
        config=config, rope=rope, pse=None, pse_type=1, layer_number=1, attention_dropout=SimpleNamespace(p=0.0)
    )


def run(case):
    use_parallel(case.get("window", 1), case.get("overlap", False))
    groups = {}
    for first, ranks in case["blocks"]:
        members = list(range(first, first + ranks))
        second = dist.new_group(members) if case.get("overlap") and ranks > 1 else None
        groups[first, ranks] = (dist.new_group(members), second)
        if case.get("overlap") and ranks == 1:
            groups[first, ranks] = (groups[first, ranks][0], None)
    module = module_of(case)
    both = [MicroBatch(case, seed, groups) for seed in (0, 1)]
    for one in both:
        one.forward(module)
    for one in both if case.get("backwards") else reversed(both):
        one.backward()
    found = [one.differences() for one in both]
    inner = packed_group.ring_of_packed_group(module, both[0].packed)["cp_inner_ranks"] if both[0].ranks > 1 else []
    return {"differences": {name: max(one[name] for one in found) for name in found[0]}, "inner": len(inner)}


def main():
    dist.init_process_group("gloo")
    npu_attention.install()
    results = {name: run(case) for name, case in CASES.items()}
    from mindspeed.core.fusions import fused_rope

    results["rotary"] = rope_utils.apply_rotary_pos_emb is fused_rope.apply_rotary_pos_emb
    dist.barrier()
    dist.destroy_process_group()
    return results


print(json.dumps(main()))
