"""Probe: checkpoints of the distributed optimizer over grouped gated experts (GroupedMLP), one case a run.

pieces: every contiguous shard of a small weight1 is cut into what the checkpoint holds and put together again. Prints how many shards there
are, and of how many a piece is not where its range says, or not the same afterwards.
round_trip FOLDER: both sides are trained for a step on other gradients; prints what still differs after the load, and after one more step.
save FOLDER, load FOLDER: the same with each side in a run of its own, on other numbers of ranks; `save` leaves the whole parameter state beside
the checkpoint, with which `load` compares its own.
"""

import itertools
import json
import sys
from pathlib import Path

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from fused_adam import use_fused_adam
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject
from megatron.core.transformer.moe import grouped_gemm_util
from megatron.core.transformer.moe.experts import GroupedMLP

EXPERTS = 3


class Experts(torch.nn.Module):
    """The grouped experts of five layers. Sharding is what is shown: nothing runs them forward."""

    def __init__(self, config, seed):
        super().__init__()
        torch.manual_seed(seed)
        grouped_gemm_util.grouped_gemm = (
            object()
        )  # asked for when the layer is made, and used by its forward pass alone
        self.config = config
        self.layers = torch.nn.ModuleList(GroupedMLP(EXPERTS, config) for _ in range(5))

    def sharded_state_dict(self):
        # As TransformerBlock does it: the layers share one tensor of the checkpoint.
        offsets = [((0, number, len(self.layers)),) for number in range(len(self.layers))]
        return [layer.sharded_state_dict("layers.", offset) for layer, offset in zip(self.layers, offsets, strict=True)]


class Side:
    """The experts and their optimizer, trained for one step."""

    def __init__(self, seed):
        # Sizes of which no half and no third ends with a row, an expert or a layer.
        sizes = {"hidden_size": 66, "moe_ffn_hidden_size": 20, "num_moe_experts": EXPERTS, "add_bias_linear": False}
        config = tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16, moe_grouped_gemm=True, **sizes)
        self.model = Experts(config, seed).bfloat16()
        self.ddp, self.optimizer = tiny_megatron.distributed(self.model)
        for group in self.optimizer.chained_optimizers[0].optimizer.param_groups:
            group["amsgrad"] = True  # no state is None, which is another patch's
        self.step(seed)

    def step(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ddp.zero_grad_buffer()
        for param in self.model.parameters():
            param.main_grad.copy_(torch.randn(param.shape, generator=generator))
        self.ddp.finish_grad_sync()
        assert self.optimizer.step()[0]

    def sharded(self, **options):
        model = self.model.sharded_state_dict()
        sharding = "fully_sharded_model_space"
        return {
            "model": model,
            "optimizer": self.optimizer.sharded_state_dict(model, sharding_type=sharding, **options),
        }

    def save(self, folder):
        dist_checkpointing.save(self.sharded(), folder)

    def load(self, folder):
        self.optimizer.load_state_dict(dist_checkpointing.load(self.sharded(is_loading=True), folder)["optimizer"])

    def whole(self):
        """{state: all of it, in the order of the model's parameters}, gathered; None but on rank 0."""
        found = {}
        (optimizer,) = self.optimizer.chained_optimizers
        for buffers in (optimizer.get_parameter_state_dp_zero() or {}).values():
            for buffer in buffers.values() if isinstance(buffers, dict) else ():
                for state, tensor in buffer.items():
                    if torch.is_tensor(tensor):
                        found.setdefault(state, []).append(tensor.flatten())
        return {state: torch.cat(tensors) for state, tensors in found.items()}


def differing(left, right):
    assert left.keys() == right.keys()
    return sorted(state for state in left if not torch.equal(left[state], right[state]))


def round_trip(folder):
    saved, loaded = Side(1), Side(2)
    found = {"before": differing(saved.whole(), loaded.whole())}
    saved.save(folder)
    loaded.load(folder)
    found["after"] = differing(saved.whole(), loaded.whole())
    for side in (saved, loaded):
        side.step(3)
    found["next"] = differing(saved.whole(), loaded.whole())
    return found


def save(folder):
    side = Side(1)
    side.save(folder)
    whole = side.whole()
    if whole:
        torch.save(whole, f"{folder}.whole")
    return {"numbers": sum(map(len, whole.values()))}


def load(folder):
    side = Side(2)
    before = side.whole()
    side.load(folder)
    after = side.whole()
    saved = torch.load(f"{folder}.whole") if after else {}
    return {"before": differing(saved, before), "after": differing(saved, after)}


def bare(value):
    """What the checkpoint gives back in the place of what was built for it."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items()}
    if isinstance(value, list):
        return [bare(one) for one in value]
    return value.unwrap() if isinstance(value, LocalNonpersistentObject) else value.data


def in_its_place(piece, column, hidden, ffn):
    """Whether a piece of the gate (column 0) or of up (1) has something, and the numbers of its range; each number of `weight1` is its own
    place there."""
    expert = piece.global_offset[0] * hidden * 2 * ffn
    places = range(piece.flattened_range.start, piece.flattened_range.stop)
    wanted = [expert + place // ffn * 2 * ffn + column * ffn + place % ffn for place in places]
    return bool(wanted) and piece.data.tolist() == wanted


def pieces():
    hidden, ffn, experts = 3, 2, 2
    grouped_gemm_util.grouped_gemm = object()
    config = tiny_megatron.config(
        hidden_size=hidden, moe_ffn_hidden_size=ffn, num_moe_experts=experts, num_attention_heads=1, num_query_groups=1
    )
    factory = GroupedMLP(experts, config).sharded_state_dict("experts.")["experts.weight1"]
    whole = torch.arange(experts * hidden * 2 * ffn).float()
    found = {"shards": 0, "misplaced": 0, "changed": 0, "errors": 0}
    for first, last in itertools.combinations(range(len(whole) + 1), 2):
        found["shards"] += 1
        shard = whole[first:last]
        try:
            built = factory.build_fn("experts", shard.clone(), (0, 0, 0), slice(first, last))
            cut = [
                (one[name], column)
                for one in built
                for column, name in enumerate(("w_tensors", "v_tensors"))
                if name in one
            ]
            found["misplaced"] += not all(in_its_place(piece, column, hidden, ffn) for piece, column in cut)
            found["changed"] += not torch.equal(factory.merge_fn(bare(built)), shard)
        except Exception:
            found["errors"] += 1
    return found


def main():
    use_fused_adam()
    tiny_megatron.initialise()
    case, *folder = sys.argv[1:]
    for one in folder:
        Path(one).mkdir(exist_ok=True)
    dist.barrier()
    result = {"pieces": pieces, "round_trip": round_trip, "save": save, "load": load}[case](*folder)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
