"""Probe: verl's Megatron engine for an NPU with MindSpeed's swap_optimizer, its own checkpoints on disk.

Usage: probe_swap_optimizer_verl.py MODEL SETTINGS   (a Hugging Face model's folder; what override_transformer_config has, as JSON)

Real: the engine with its device mesh, bridge, optimizer, scheduler and checkpoints, MindSpeed's layers, Megatron-LM. Gradients are made up. Two
engines take other steps; then the second loads what the first saved, and both take the same two steps.
Prints which optimizer verl has, of which tensors the first has no memory, the learning rate that each goes on with, and in how many tensors
of the optimizer and parameters both differ before the load, after it, and after each of these steps; or what was refused.
"""

import json
import sys
from pathlib import Path

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

mindspeed_on_cpu.install()

import mindspeed_ops  # noqa: E402
import npu_training  # noqa: E402
import npu_training_0_9  # noqa: E402
import torch  # noqa: E402
import torch_npu  # noqa: E402
from optimizer_tensors import different, values, without_memory  # noqa: E402
from verl.plugin.platform import platform_npu  # noqa: E402

npu_training.answer_for_the_device(torch_npu)
npu_training_0_9.name_the_device(platform_npu)

from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402


class Engine:
    def __init__(self, model, told):
        settings = {"override_transformer_config": told, "vanilla_mbridge": True}
        self.engine = EngineRegistry.get_engine_cls("language_model", "megatron")(
            HFModelConfig(path=model),
            McoreEngineConfig(param_offload=False, optimizer_offload=False, **settings),
            McoreOptimizerConfig(
                lr=1e-2, lr_warmup_steps=8, total_training_steps=10, use_checkpoint_opt_param_scheduler=True
            ),
            CheckpointConfig(),
        )
        self.engine.initialize()
        (self.optimizer,) = self.engine.optimizer.chained_optimizers

    def step(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.engine.module[0].parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
        self.engine.optimizer_step()

    def values(self):
        return [*values(self.optimizer), *(one.detach().clone() for one in self.engine.module[0].parameters())]


def main(model, settings):
    torch.distributed.init_process_group("gloo")
    mindspeed_ops.install()
    told = json.loads(settings)
    try:
        saved, loaded = Engine(model, told), Engine(model, told)
    except AssertionError as error:
        return {"refused": str(error)}
    for seed in (10, 11):
        saved.step(seed)
        saved.engine.lr_scheduler_step()
    loaded.step(12)  # and no scheduler's: Megatron-LM adds the steps that it loads to its own
    result = {"optimizer": type(saved.optimizer).__name__, "without memory": without_memory(saved.optimizer)}
    result["different"] = [different(saved.values(), loaded.values()) > 0]
    folder = str(Path("checkpoint").absolute())
    saved.engine.save_checkpoint(folder, global_step=2)
    loaded.engine.load_checkpoint(folder, del_local_after_load=False)
    result["different"].append(different(saved.values(), loaded.values()))
    for seed in (13, 14):  # the second with the rate that the scheduler has set
        for side in (saved, loaded):
            side.step(seed)
        result["rates"] = [side.engine.lr_scheduler_step() for side in (saved, loaded)]
        result["different"].append(different(saved.values(), loaded.values()))
    return result


# Megatron writes checkpoints in processes that it spawns, which import this file.
if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
    torch.distributed.destroy_process_group()
