"""Probe: MindSpeed's attention layer and rotary positions of micro-batches that bring their ranks, against whole sequences.

Usage: probe_packed_cp_group_ring.py CASES   (CASES is a JSON object: name -> case)

A case: `blocks` [[first rank, ranks], ...] ([] brings no ranks: the whole group's), `format` sbhd (Megatron-LM's own batches, made by
get_batch_on_this_hybrid_cp_rank) or thd, `backwards` to run the backward passes of its two micro-batches in the order of the forward
passes, `no_padded` without padded bounds, `second` for a second group, `settings` of MindSpeed, `config` of the model, `alone` for
local_cp_size=1 without a group, `packed` to change in PackedSeqParams, `mask` the layer's, `local` for the layer without Transformer
Engine. Real: the layer that a model gets, its ring, RotaryEmbedding, gloo. Compared with PyTorch's attention.
Prints for each case the largest differences of output and gradients on this rank, or the error.
"""

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

ADAPTOR = mindspeed_on_cpu.install()

import json  # noqa: E402
import sys  # noqa: E402
from copy import copy  # noqa: E402

import npu_attention  # noqa: E402
import sbh_attention  # noqa: E402
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.extensions import transformer_engine  # noqa: E402
from megatron.core.models.common.embeddings import rotary_pos_embedding as rotary  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer import dot_product_attention  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.utils import get_batch_on_this_hybrid_cp_rank  # noqa: E402

CASES = json.loads(sys.argv[1])
HEADS, KEY_HEADS, WIDTH = 4, 2, 16
DEFAULTS = {
    "use_flash_attn": True,
    "context_parallel_algo": "megatron_cp_algo",
    "use_cp_send_recv_overlap": False,
    "context_parallel_kv_cache_policy": None,
}


def layer_of(case):
    """The core attention that MindSpeed gives a layer of Transformer Engine's kind, with groups of the whole world."""
    settings = DEFAULTS | {"context_parallel_size": dist.get_world_size()} | case.get("settings", {})
    ADAPTOR.repatch(settings)
    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(context_parallel_size=settings["context_parallel_size"])
    config = tiny_megatron.config()
    for name, value in (settings | case.get("config", {})).items():
        setattr(config, name, value)
    kind = dot_product_attention.DotProductAttention if case.get("local") else transformer_engine.TEDotProductAttention
    made = kind(config, 1, AttnMaskType.causal, "self")
    assert case.get("local") or type(made).__module__.startswith("mindspeed.")
    return made


def whole(lengths, query, key, value):
    """PyTorch's attention of whole sequences with rotary positions, [tokens, heads * width]."""
    angles = torch.outer(torch.arange(float(max(lengths))), 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    angles = torch.cat([angles, angles], -1)[:, None]
    query, key = (torch.cat([turned(row, angles[: len(row)]) for row in one.split(lengths)]) for one in (query, key))
    return tiny_megatron.packed_attention(query, key, value, torch.tensor([0, *lengths]).cumsum(0))


def turned(tensor, angles):
    first, second = tensor.chunk(2, -1)
    return tensor * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class MicroBatch:
    """One micro-batch on this rank's block."""

    def __init__(self, case, seed, groups):
        rank, everyone = dist.get_rank(), [0, dist.get_world_size()]
        self.sbhd, self.case = case["format"] == "sbhd", case
        blocks = case["blocks"] or [everyone]
        first, ranks = next(block for block in blocks if block[0] <= rank < block[0] + block[1])
        self.lengths = [8 * ranks * (2 + seed)] if self.sbhd else [8 * ranks * (1 + seed), 16 * ranks]
        generator = torch.Generator().manual_seed(100 * first + seed)
        self.inputs = [
            torch.randn(sum(self.lengths), heads, WIDTH, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        ]
        self.gradient = torch.randn(sum(self.lengths), HEADS * WIDTH, generator=generator)
        group, second = groups.get(first, (None, None))
        self.group = group
        self.tokens = torch.arange(sum(self.lengths))
        if ranks > 1:
            self.tokens = npu_attention.tokens_of_rank(self.lengths, rank - first, ranks)
        self.packed = self.of_megatron(group, ranks) if self.sbhd else self.packed_sequences(group)
        if not case["blocks"]:
            self.packed = None if self.sbhd else self.packed
        if case.get("alone"):
            self.packed.cp_group, self.packed.local_cp_size = None, 1
        if second is not None:
            self.packed.cp_overlap_group = second
        for name, value in case.get("packed", {}).items():
            setattr(self.packed, name, value)

    def of_megatron(self, group, ranks):
        """As Megatron-LM's own function has it, which divides the sequence too: the tokens have to be ours."""
        batch, packed = get_batch_on_this_hybrid_cp_rank(
            {"tokens": torch.arange(sum(self.lengths))}, ranks, group if ranks > 1 else None
        )
        assert torch.equal(batch["tokens"][0], self.tokens)
        return packed

    def packed_sequences(self, group):
        bounds = torch.tensor([0, *self.lengths]).cumsum(0).int()
        padded = {} if self.case.get("no_padded") else {"cu_seqlens_q_padded": bounds, "cu_seqlens_kv_padded": bounds}
        longest = max(self.lengths)
        return PackedSeqParams(
            "thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest, cp_group=group, **padded
        )

    def forward(self, layer):
        self.own = [tensor[self.tokens].clone().requires_grad_() for tensor in self.inputs]
        query, key, value = self.own
        # Of a copy: without apex MindSpeed takes apply_rope_fusion back.
        query, key = self.rotated(copy(layer.config), query, key)
        if self.sbhd:
            query, key, value = (tensor[:, None] for tensor in (query, key, value))
        mask = AttnMaskType[self.case.get("mask", "causal")]
        self.output = layer(query, key, value, None, attn_mask_type=mask, packed_seq_params=self.packed).reshape(
            len(self.tokens), -1
        )

    def rotated(self, config, *tensors):
        """By the functions that a model calls, with the group that it hands them."""
        group = getattr(self.packed, "cp_group", None)
        alone = (
            getattr(self.packed, "local_cp_size", None) == 1
        )  # Megatron-LM's own embedding is the whole group's then
        embedding = rotary.RotaryEmbedding(WIDTH, 1.0, cp_group=mpu.get_context_parallel_group())
        angles = embedding(max(self.lengths), packed_seq=not self.sbhd or alone, cp_group=group)
        if self.sbhd:
            return [rotary.apply_rotary_pos_emb(one[:, None], angles, config=config)[:, 0] for one in tensors]
        settings = {"config": config, "cu_seqlens": self.packed.cu_seqlens_q}
        settings["cp_group"] = self.group or mpu.get_context_parallel_group()
        return [rotary.apply_rotary_pos_emb(one, angles, **settings) for one in tensors]

    def backward(self):
        self.output.backward(self.gradient[self.tokens])

    def differences(self):
        full = [tensor.clone().requires_grad_() for tensor in self.inputs]
        expected = whole(self.lengths, *full)
        expected.backward(self.gradient)
        pairs = {"output": (self.output, expected)}
        for name, mine, theirs in zip(("query", "key", "value"), self.own, full, strict=True):
            pairs[name] = (mine.grad, theirs.grad)
        return {name: float((mine - theirs[self.tokens]).abs().max()) for name, (mine, theirs) in pairs.items()}


def run(case):
    groups = {}
    for first, ranks in case["blocks"]:
        members = list(range(first, first + ranks))
        second = dist.new_group(members) if case.get("second") and ranks > 1 else None
        groups[first] = (dist.new_group(members), second)
    layer = layer_of(case)
    both = [MicroBatch(case, seed, groups) for seed in (0, 1)]
    for one in both:
        one.forward(layer)
    for one in both if case.get("backwards") else reversed(both):
        one.backward()
    found = [one.differences() for one in both]
    return {name: max(one[name] for one in found) for name in found[0]}


def tried(case):
    try:
        return run(case)
    except (NotImplementedError, ValueError, RuntimeError) as error:
        if not case.get("refused"):
            raise
        return f"{type(error).__name__}: {error}"


def main():
    dist.init_process_group("gloo")
    sbh_attention.install()
    results = {name: tried(case) for name, case in CASES.items()}
    dist.barrier()
    dist.destroy_process_group()
    return results


print(json.dumps(main()))
