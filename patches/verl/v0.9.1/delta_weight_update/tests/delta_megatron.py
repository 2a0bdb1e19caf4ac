"""verl's Megatron engine as the trainer of delta_group, with mbridge and MindSpeed's layers. To be imported before verl."""

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

ADAPTOR = mindspeed_on_cpu.install()

import json  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from delta_group import BACKEND, BUCKET_MB, RANK, Trainer, digest  # noqa: E402
from safetensors import safe_open  # noqa: E402


def write_index(model):
    """By which mbridge finds DeepSeek's weights, in one file as in several."""
    (file,) = model.glob("*.safetensors")
    with safe_open(file, "pt") as weights:
        found = {"metadata": {}, "weight_map": dict.fromkeys(weights.keys(), file.name)}
    (model / f"{file.name}.index.json").write_text(json.dumps(found))


class MegatronTrainer(Trainer):
    """Gradients are made up, the same on ranks that have a weight in common; the optimizer and the export are real. So are experts' biases moved
    at random, by as much as Megatron moves them."""

    def __init__(self, model, ranks, rate, **sizes):
        import mindspeed_ops
        from verl.checkpoint_engine import CheckpointEngineRegistry
        from verl.trainer.config import CheckpointConfig
        from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
        from verl.workers.engine.base import EngineRegistry

        self.start(ranks)
        if RANK == 0:
            write_index(Path(model))
        torch.distributed.barrier()
        mindspeed_ops.install()
        model = HFModelConfig(path=model)
        # Where transformers 5 has it no more, and mbridge of the package index asks for it.
        model.hf_config.rope_theta = model.hf_config.rope_parameters["rope_theta"]
        self.engine = EngineRegistry.get_engine_cls("language_model", "megatron")(
            model,
            McoreEngineConfig(param_offload=False, optimizer_offload=False, vanilla_mbridge=True, **sizes),
            McoreOptimizerConfig(lr=rate, lr_warmup_steps=0, total_training_steps=100),
            CheckpointConfig(),
        )
        self.engine.initialize()
        self.sender = CheckpointEngineRegistry.new(BACKEND, is_master=RANK == 0, bucket_size=BUCKET_MB << 20)
        self._steps = 0

    def train(self):
        self._steps += 1
        for chunk in self.engine.module:
            for number, parameter in enumerate(chunk.parameters()):
                draws = torch.Generator().manual_seed(1000 * self._steps + number)
                parameter.main_grad.copy_(torch.randn(parameter.shape, generator=draws))
            for name, buffer in chunk.named_buffers():
                if name.endswith("expert_bias"):
                    buffer += 1e-3 * torch.randn(buffer.shape, generator=draws).sign()
        return float(self.engine.optimizer_step())

    def float32(self):
        """As Engine.state has them: what is trained in that type."""
        weights, _ = self.engine.get_per_tensor_param()
        return {name: digest(one) for name, one in weights if one.dtype == torch.float32}
