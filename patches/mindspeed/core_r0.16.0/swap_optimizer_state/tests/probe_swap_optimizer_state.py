"""Probe: saves and loads Megatron's distributed optimizer with MindSpeed's swap_optimizer, real checkpoints on disk.

Usage: probe_swap_optimizer_state.py SETTINGS FORMAT...   (what MindSpeed is told, as JSON; formats of the distributed optimizer,
"late FORMAT" with copies to the host that are late)

For each format two models with other weights take other steps; then the second loads what the first saved, and both take the same
step. The checkpoint is read into the state of a third: Megatron reads into the very tensors that it is given, so that those of the
second would have the right values without a load. All parameters are in bfloat16 but one norm, which is in float32.
Prints for each format the error of saving or loading, of which tensors the first had no memory before and after, and in how many
parameters both differ after the load and after that step.
"""

import json
import sys
from pathlib import Path

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

ADAPTOR = mindspeed_on_cpu.install()

import mindspeed_ops  # noqa: E402
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from optimizer_tensors import different, tensors, values, without_memory  # noqa: E402


class LateCopies:
    """Copies into MindSpeed's memory on the host arrive when somebody waits for the device, and not before: its stream is another."""

    def __init__(self):
        from mindspeed.core.optimizer.swap_optimizer.swap_optimizer import SwapDistributedOptimizer

        self.on_host = SwapDistributedOptimizer.param_to_cpu_states_map
        self.waiting, self.copied = [], 0
        self.copy, self.synchronize = torch.Tensor.copy_, torch.cuda.synchronize

    def install(self):
        torch.Tensor.copy_ = lambda tensor, source, non_blocking=False: self.enqueue(tensor, source, non_blocking)
        torch.cuda.synchronize = self.wait

    def enqueue(self, tensor, source, non_blocking):
        if non_blocking and self.is_on_host(tensor):
            self.waiting.append((tensor, source.detach().clone()))
            return tensor
        if self.is_on_host(source):  # the way back waits for the way there
            self.arrive()
        return self.copy(tensor, source, non_blocking)

    def is_on_host(self, tensor):
        return any(tensor is held for states in self.on_host.values() for held in states.values())

    def arrive(self):
        for tensor, source in self.waiting:
            self.copy(tensor, source)
        self.copied += len(self.waiting)
        self.waiting.clear()

    def wait(self, *device):
        self.arrive()
        return self.synchronize(*device)


class Side:
    def __init__(self, seed, sharding, swapped):
        self.model = tiny_megatron.gpt(tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16), seed).bfloat16()
        if swapped:
            self.model.decoder.final_layernorm.float()
        self.ddp, self.optimizer = tiny_megatron.distributed(self.model)
        (self.sharded,) = self.optimizer.chained_optimizers
        # As verl's checkpoint manager has it.
        self.metadata = {
            "distrib_optim_sharding_type": sharding,
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
        }

    def step(self, seed):
        """A step with made-up gradients: what is shown is the optimizer's."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.ddp.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
        succeeded, *_ = self.optimizer.step()
        assert succeeded

    def state_dict(self, **options):
        model = self.model.sharded_state_dict(metadata=self.metadata)
        states = self.optimizer.sharded_state_dict(model, metadata=self.metadata, **options)
        return {"model": model, "optimizer": states}

    def save(self, folder):
        dist_checkpointing.save(self.state_dict(), folder)

    def load(self, folder, into):
        loaded = dist_checkpointing.load(into.state_dict(is_loading=True), folder)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def values(self):
        torch.cuda.synchronize()
        return [*values(self.sharded), *(parameter.detach().clone() for parameter in self.model.parameters())]


def round_trip(sharding, swapped):
    saved, loaded, other = (Side(seed, sharding, swapped) for seed in range(3))
    folder = Path(sharding)
    folder.mkdir()
    saved.step(10)
    loaded.step(12)
    result = {"parameters": len(tensors(saved.sharded)), "before": without_memory(saved.sharded), "error": None}
    result["apart"] = different(saved.values(), loaded.values()) > 0
    saved.step(11)
    try:
        saved.save(folder)
        loaded.load(folder, other)
    except Exception as error:
        return result | {"error": f"{type(error).__name__}: {error}"}
    result |= {"after": without_memory(loaded.sharded), "different": [different(saved.values(), loaded.values())]}
    for side in (saved, loaded):
        side.step(13)
    result["different"].append(different(saved.values(), loaded.values()))
    return result


def main():
    settings, *formats = sys.argv[1:]
    mindspeed_ops.install()
    tiny_megatron.initialise()
    settings = json.loads(settings)
    ADAPTOR.repatch(settings)
    seen = {}
    for name in formats:
        late, _, sharding = name.rpartition(" ")
        if late:
            copies = LateCopies()
            copies.install()
        seen[name] = round_trip(sharding, settings["swap_optimizer"])
        if late:
            seen[name]["late"] = copies.copied
    return seen


# Megatron writes checkpoints in processes that it spawns, which import this file.
if __name__ == "__main__":
    print(json.dumps(main()))
    torch.distributed.destroy_process_group()
