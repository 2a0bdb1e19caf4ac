"""Probe: saves and loads Megatron's distributed optimizer, real checkpoints on disk, in each scenario of SCENARIOS, or
of ALONE when it is one process. Usage: probe_optimizer_none_state.py FOLDER

Both sides are trained for a step on different data first, so that what was loaded cannot be what was there before.
Prints, for each scenario, what the loading side holds afterwards in comparison with the saved side, or the error.
"""

import json
import sys
from pathlib import Path

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from fused_adam import FusedAdam, use_fused_adam
from megatron.core import dist_checkpointing, optimizer
from megatron.core.optimizer import distrib_optimizer
from torch.distributed.checkpoint.api import CheckpointException


class Adam(FusedAdam):
    """As this Megatron-LM makes apex's."""

    def __init__(self, params, *, adam_w_mode, **settings):
        assert adam_w_mode
        super().__init__(params, **settings)


class Side:
    """A model and its optimizer, trained for one step. With `amsgrad` it has the state that is None without."""

    def __init__(self, seed, amsgrad, trained, sharding):
        model_config = tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16)
        self.model = tiny_megatron.gpt(model_config, seed).bfloat16()
        self.ddp, self.optimizer = tiny_megatron.distributed(self.model)
        (self.sharded_optimizer,) = self.optimizer.chained_optimizers
        self.inner = self.sharded_optimizer.optimizer
        # As verl's checkpoint manager has it.
        self.metadata = {
            "distrib_optim_sharding_type": sharding,
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
        }
        for group in self.inner.param_groups:
            group["amsgrad"] = amsgrad
        if trained:
            tiny_megatron.train_step(self.ddp, self.optimizer, seed)

    def state_dict(self, **options):
        model = self.model.sharded_state_dict(metadata=self.metadata)
        states = self.optimizer.sharded_state_dict(model, metadata=self.metadata, **options)
        return {"model": model, "optimizer": states}

    def load(self, folder):
        loaded = dist_checkpointing.load(self.state_dict(is_loading=True), folder)
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

    def forget_second_moment(self):
        """One parameter's own state becomes None, on those ranks that hold a share of the parameter."""
        weight = self.model.output_layer.weight
        for model_param, (group, order) in self.sharded_optimizer.model_param_group_index_map.items():
            if model_param is weight:
                self.inner.state[self.inner.param_groups[group]["params"][order]]["exp_avg_sq"] = None


def same(left, right):
    return (left is None and right is None) or (left is not None and right is not None and torch.equal(left, right))


def compare(saved, loaded):
    """Names of states that differ or are only on one side, of those that are equal, and of those that are None on both."""
    (saved_values, saved_steps), (loaded_values, loaded_steps) = saved, loaded
    differ, equal, none = set(), set(), set()
    for left, right in zip(saved_values, loaded_values, strict=True):
        for key in left.keys() | right.keys():
            if not same(left.get(key), right.get(key)):
                differ.add(key)
            else:
                (none if right.get(key) is None else equal).add(key)
    return {
        "differ": sorted(differ),
        "equal": sorted(equal),
        "none": sorted(none),
        "steps_equal": saved_steps == loaded_steps,
        "master": sorted({str(value["param"].dtype) for value in loaded_values}),
    }


def round_trip(folder, *, saver=False, loader=False, trained=True, forget=False, sharding="dp_reshardable"):
    """`saver` and `loader` say whether that side uses amsgrad, which is whether it has the state or None."""
    source, target = Side(1, saver, True, sharding), Side(2, loader, trained, sharding)
    if forget:
        source.forget_second_moment()
    before = compare(source.values(), target.values())["differ"]
    dist_checkpointing.save(source.state_dict(), folder)
    target.load(folder)
    result = compare(source.values(), target.values()) | {"differed_before": before}
    if saver == loader:
        for side in (source, target):
            tiny_megatron.train_step(side.ddp, side.optimizer, 3)
        result["after_next_step"] = compare(source.values(), target.values())["differ"]
    return result


SCENARIOS = {
    "none on both sides": {},
    "none, loaded into a new optimizer": {"trained": False},
    "saved, but none where it is loaded": {"saver": True},
    "none, but there where it is loaded": {"loader": True},
    "none on both sides, gathered": {"sharding": "fully_reshardable"},
    "there on both sides": {"saver": True, "loader": True},
}
# In one process only: a rank without a share of the parameter would wait for ever.
ALONE = {"none for one parameter": {"forget": True}}


def main():
    use_fused_adam()
    optimizer.Adam = distrib_optimizer.Adam = Adam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    tiny_megatron.initialise()
    results = {}
    for index, (name, options) in enumerate((SCENARIOS if dist.get_world_size() > 1 else ALONE).items()):
        folder = Path(sys.argv[1], str(index))
        folder.mkdir(exist_ok=True)
        dist.barrier()
        try:
            results[name] = round_trip(str(folder), **options)
        except (Exception, CheckpointException) as error:  # the latter is a BaseException
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(results))


# Megatron writes checkpoints in processes that it spawns, which import this file.
if __name__ == "__main__":
    main()
