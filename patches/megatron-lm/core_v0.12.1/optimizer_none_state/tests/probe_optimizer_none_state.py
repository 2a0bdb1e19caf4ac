"""Probe: saves and loads Megatron's distributed optimizer, real checkpoints on disk, in each scenario of SCENARIOS, or
of ALONE when it is one process.

Both sides are trained for a step on different data first, so that what was loaded cannot be what was there before.
Prints, for each scenario, what the loading side holds afterwards in comparison with the saved side, or the error.
"""

import json
import sys
from pathlib import Path

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from fused_adam import use_fused_adam
from megatron.core import dist_checkpointing


class Side:
    """A model and its optimizer, trained for one step."""

    def __init__(self, seed, amsgrad, trained, gated):
        model_config = tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16, gated_linear_unit=gated)
        self.model = tiny_megatron.gpt(model_config, seed).bfloat16()
        self.ddp, self.optimizer = tiny_megatron.distributed(self.model)
        (self.sharded_optimizer,) = self.optimizer.chained_optimizers
        self.inner = self.sharded_optimizer.optimizer
        for group in self.inner.param_groups:
            group["amsgrad"] = amsgrad
        if trained:
            tiny_megatron.train_step(self.ddp, self.optimizer, seed)

    def state_dict(self, **options):
        model = self.model.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, **options)}

    def save(self, folder, sharding):
        dist_checkpointing.save(self.state_dict(sharding_type=sharding), folder)

    def load(self, folder, sharding, strict):
        state_dict = self.state_dict(sharding_type=sharding, is_loading=True)
        loaded = dist_checkpointing.load(state_dict, folder, strict=strict)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def values(self):
        """By parameter: fp32 master and every state, as they are now; `step` too."""
        found = []
        for group in self.inner.param_groups:
            for param in group["params"]:
                tensors = {"param": param, **self.inner.state.get(param, {})}
                found.append({key: None if value is None else value.clone() for key, value in tensors.items()})
        return found, [group["step"] for group in self.inner.param_groups if "step" in group]

    def forget_second_moment(self, part):
        """One parameter's own state becomes None, on those ranks that hold a share of the parameter."""
        weight = WEIGHTS[part](self.model)
        for model_param, (group, order) in self.sharded_optimizer.model_param_group_index_map.items():
            if model_param is weight:
                self.inner.state[self.inner.param_groups[group]["params"][order]]["exp_avg_sq"] = None


WEIGHTS = {
    "output layer": lambda model: model.output_layer.weight,
    "first layer": lambda model: model.decoder.layers[0].self_attention.linear_proj.weight,
}


def same(left, right):
    return (left is None and right is None) or (left is not None and right is not None and torch.equal(left, right))


def compare(saved, loaded):
    """Names of states that differ or are only on one side; how many tensors are equal, and how many are None."""
    (saved_values, saved_steps), (loaded_values, loaded_steps) = saved, loaded
    differ, equal, none = set(), {}, {}
    for left, right in zip(saved_values, loaded_values, strict=True):
        for key in left.keys() | right.keys():
            if not same(left.get(key), right.get(key)):
                differ.add(key)
            elif right.get(key) is None:
                none[key] = none.get(key, 0) + 1
            else:
                equal[key] = equal.get(key, 0) + 1
    master_types = sorted({str(value["param"].dtype) for value in loaded_values})
    return {
        "differ": sorted(differ),
        "equal": equal,
        "none": none,
        "steps_equal": saved_steps == loaded_steps,
        "master": master_types,
    }


def round_trip(
    folder,
    *,
    saver=False,
    loader=False,
    trained=True,
    gated=True,
    forget=(),
    part="output layer",
    strict="assume_ok_unexpected",
    sharding="fully_sharded_model_space",
):
    """`saver` and `loader` say whether that side uses amsgrad, which is whether it has the state or None."""
    source, target = Side(1, saver, True, gated), Side(2, loader, trained, gated)
    for name, side in (("saver", source), ("loader", target)):
        if name in forget:
            side.forget_second_moment(part)
    before = compare(source.values(), target.values())["differ"]
    source.save(folder, sharding)
    target.load(folder, sharding, strict)
    result = compare(source.values(), target.values()) | {"differed_before": before}
    if saver == loader and not forget:
        for side in (source, target):
            tiny_megatron.train_step(side.ddp, side.optimizer, 3)
        result["after_next_step"] = compare(source.values(), target.values())["differ"]
    return result


SCENARIOS = {
    "none on both sides": {},
    "none, loaded into a new optimizer": {"trained": False},
    "saved, but none where it is loaded": {"saver": True},
    "none, but there where it is loaded": {"loader": True},
    # Not gated: upstream's load that is not strict refuses every missing key of a gated MLP (apply_factory_merges).
    "none, but there where it is loaded, not strict": {"loader": True, "strict": "log_all", "gated": False},
    "none for one parameter": {"forget": ("saver", "loader")},
    "none for one parameter, new optimizer, not strict": {"forget": ("saver",), "trained": False, "strict": "log_all"},
    "none on both sides, gathered on rank 0": {"sharding": "dp_zero_gather_scatter"},
    "there on both sides": {"saver": True, "loader": True},
}
# In one process only: the check that refuses it runs on rank 0 alone, and the other ranks then wait for ever.
ALONE = {"none in one of two layers": {"forget": ("saver", "loader"), "part": "first layer"}}


def main():
    use_fused_adam()
    tiny_megatron.initialise()
    results = {}
    for index, (name, options) in enumerate((SCENARIOS if dist.get_world_size() > 1 else ALONE).items()):
        folder = Path(sys.argv[1], str(index))
        folder.mkdir(exist_ok=True)
        dist.barrier()
        try:
            results[name] = round_trip(str(folder), **options)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(results))


main()
