"""Probe: a checkpoint of the distributed optimizer on Megatron's HybridDeviceOptimizer, all of whose updates are made on the host.

Its states have what no other optimizer of the distributed one has, AdamW's `step` and a `master_param`. What lies in the buffers of Megatron's
DDP counts as the device's here, every copy as the host's. Prints what a load brought, and what one more step on both sides makes of it; or,
where the saving side has None for a state of one parameter, what a load that is not strict brought. Each: the names of states that differ, how
many are None on either side, and each side's steps.
"""

import json
import sys
from pathlib import Path

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from fused_adam import use_fused_adam
from megatron.core import dist_checkpointing
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

DEVICE = set()


class Side:
    """A model and its offloaded optimizer, trained for one step."""

    def __init__(self, seed):
        # Not gated: upstream's load that is not strict refuses every missing key of a gated MLP (apply_factory_merges).
        config = tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16, gated_linear_unit=False)
        self.model = tiny_megatron.gpt(config, seed).bfloat16()
        ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self.ddp = DistributedDataParallel(self.model.config, ddp_config, self.model)
        DEVICE.update(buffer.param_data.untyped_storage().data_ptr() for buffer in self.ddp.buffers)
        config = OptimizerConfig(
            optimizer="adam",
            lr=1e-2,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            use_precision_aware_optimizer=True,
            optimizer_cpu_offload=True,
            optimizer_offload_fraction=1.0,
            pin_cpu_grads=False,
            pin_cpu_params=False,
        )
        self.optimizer = get_megatron_optimizer(config, [self.ddp])
        (self.sharded_optimizer,) = self.optimizer.chained_optimizers
        self.hybrid = self.sharded_optimizer.optimizer
        self.step(seed)

    def step(self, seed):
        tiny_megatron.train_step(self.ddp, self.optimizer, seed)

    def sharded(self, **options):
        model = self.model.sharded_state_dict()
        options["sharding_type"] = "fully_sharded_model_space"
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, **options)}

    def load(self, folder, strict):
        loaded = dist_checkpointing.load(self.sharded(is_loading=True), folder, strict=strict)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def states(self):
        """What the host holds, by parameter: the weight and each state."""
        of_params = [
            (param, state) for optimizer in self.hybrid.cpu_optimizers for param, state in optimizer.state.items()
        ]
        return [
            {key: None if value is None else value.detach().clone() for key, value in {"param": param, **state}.items()}
            for param, state in of_params
        ]


def compare(left, right):
    differ, none = set(), [0, 0]
    for one, other in zip(left.states(), right.states(), strict=True):
        for key in one.keys() | other.keys():
            values = one.get(key), other.get(key)
            none = [count + (value is None) for count, value in zip(none, values, strict=True)]
            if None not in values and not torch.equal(*values):
                differ.add(key)
    steps = [
        sorted({float(state["step"]) for state in side.states() if state["step"] is not None}) for side in (left, right)
    ]
    return {"differ": sorted(differ), "none": none, "steps": steps}


def round_trip(folder, none):
    saved, loaded = Side(1), Side(2)
    saved.step(3)  # the loading side is a step behind
    if none:
        # Of no layer: those share one tensor of the checkpoint, which has to be whole.
        group, order = saved.sharded_optimizer.model_param_group_index_map[saved.model.output_layer.weight]
        saved.hybrid.state[saved.hybrid.param_groups[group]["params"][order]]["exp_avg_sq"] = None
    found = {"before": compare(saved, loaded)}
    dist_checkpointing.save(saved.sharded(), folder)
    loaded.load(folder, "log_all" if none else "assume_ok_unexpected")
    found["after"] = compare(saved, loaded)
    if not none:
        for side in (saved, loaded):
            side.step(4)
        found["next"] = compare(saved, loaded)
    return found


def main():
    torch.Tensor.is_cuda = property(lambda tensor: tensor.untyped_storage().data_ptr() in DEVICE)
    torch.Tensor.pin_memory = lambda tensor, *device: tensor
    use_fused_adam()
    tiny_megatron.initialise()
    results = {}
    for name in ("all there", "one is None"):
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        try:
            results[name] = round_trip(str(folder), none=name == "one is None")
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    dist.destroy_process_group()
    print(json.dumps(results))


main()
