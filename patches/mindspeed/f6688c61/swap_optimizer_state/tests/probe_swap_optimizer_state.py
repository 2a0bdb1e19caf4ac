"""Probe: saves and loads Megatron's distributed optimizer with MindSpeed's swap_optimizer, real checkpoints on disk.

Usage: probe_swap_optimizer_state.py on|off   (swap_optimizer)

Two models with other weights take other steps; then the second loads what the first saved, and both take the same step. The
checkpoint is read into the state of a third: Megatron reads into the very tensors that it is given, so that those of the second
would have the right values without a load.
Prints the error of saving or loading, whether states lay on the host before, and how many parameters differ after that step.
"""

import json
import sys
from pathlib import Path

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()

import mindspeed_ops  # noqa: E402
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402

SWAPPED = sys.argv[1] == "on"


class Side:
    def __init__(self, seed):
        self.model = tiny_megatron.gpt(tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16), seed).bfloat16()
        self.ddp, self.optimizer = tiny_megatron.distributed(self.model)
        self.inner = self.optimizer.chained_optimizers[0].optimizer

    def step(self, seed):
        """A step with made-up gradients: what is shown is the optimizer's."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.ddp.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
        succeeded, *_ = self.optimizer.step()
        assert succeeded

    def state_dict(self, **options):
        model = self.model.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, **options)}

    def save(self, folder):
        dist_checkpointing.save(self.state_dict(), folder)

    def load(self, folder, into):
        loaded = dist_checkpointing.load(into.state_dict(is_loading=True), folder)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def on_the_host(self):
        """How many parameters of the optimizer have no memory of their own."""
        return sum(p.untyped_storage().size() == 0 for group in self.inner.param_groups for p in group["params"])


def main():
    mindspeed_ops.install()
    tiny_megatron.initialise()
    ADAPTOR.repatch({"swap_optimizer": SWAPPED})
    saved, loaded, other = Side(0), Side(1), Side(2)
    folder = Path("checkpoint")
    folder.mkdir()
    saved.step(10)
    saved.step(11)
    loaded.step(12)
    result = {"on the host": saved.on_the_host() > 0, "error": None}
    try:
        saved.save(folder)
        loaded.load(folder, other)
    except RuntimeError as error:
        return result | {"error": str(error)}
    still = saved.on_the_host() > 0 and loaded.on_the_host() > 0
    for side in (saved, loaded):
        side.step(13)
    pairs = zip(saved.model.parameters(), loaded.model.parameters(), strict=True)
    return result | {"still": still, "different": sum(not torch.equal(one, other) for one, other in pairs)}


print(json.dumps(main()))
