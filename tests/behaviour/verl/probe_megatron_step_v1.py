"""Probe: verl v0.9.0's Megatron engine for an NPU through a model: log-probabilities, an update, and what it sends then.

Usage: probe_megatron_step_v1.py MODEL SETTINGS   (a Hugging Face model's folder; what override_transformer_config has, as JSON)

Real: the engine with its bridge, optimizer and offload, MindSpeed's layers, Megatron-LM. NPU operators are reference implementations in plain
PyTorch. Two sequences, each a micro-batch, packed as verl packs them.
Prints how far the log-probabilities are from those of Hugging Face's model in float32, and how far those are from what another first token
gives; the gradient's norm, and that of Hugging Face's model; the names that are sent and not the model's, or the other way round; how many
of them the update changed.
"error" is what the engine ended with before it had a model, else null.
"""

import importlib.util
import json
import sys

import npu_training
import npu_training_0_9
import torch
import torch_npu
from patchctl_standins import training
from tensordict import TensorDict
from verl.plugin.platform import platform_npu

npu_training.answer_for_the_device(torch_npu)
npu_training_0_9.name_the_device(platform_npu)
training.before_adaptor()
from mindspeed import megatron_adaptor  # noqa: E402

training.after_adaptor(megatron_adaptor)

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402

PROMPTS = [[10, 11, 12], [20, 21]]
ANSWERS = [[100, 200, 300, 400, 150, 250, 350], [90, 190, 290, 390, 490]]


def nested(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def batch():
    rows = [prompt + answer for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    ones = [[1] * len(answer) for answer in ANSWERS]
    fields = {
        "input_ids": nested(rows),
        "position_ids": nested([list(range(len(row))) for row in rows]),
        "prompts": nested(PROMPTS),
        "responses": nested(ANSWERS),
        "response_mask": nested(ones),
        "loss_mask": nested(ones),
    }
    made = TensorDict(fields, batch_size=len(rows))
    tu.assign_non_tensor(made, temperature=1.0, use_dynamic_bsz=False, micro_batch_size_per_gpu=1)
    tu.assign_non_tensor(made, use_fused_kernels=False, calculate_entropy=True)
    return made


def engine(model, told):
    settings = {"override_transformer_config": told, "vanilla_mbridge": True}
    made = EngineRegistry.get_engine_cls("language_model", "megatron")(
        HFModelConfig(path=model),
        McoreEngineConfig(param_offload=True, optimizer_offload=True, **settings),
        McoreOptimizerConfig(lr=1e-2, lr_warmup_steps=0, total_training_steps=10),
        CheckpointConfig(),
    )
    made.initialize()
    return made


def log_probs(model, row):
    """Of each token but the first."""
    logits = model(torch.tensor([row])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(row[1:])[:, None])[:, 0]


def loss(model_output, **_):
    """Of a micro-batch, whose last place has no token to predict."""
    return -torch.cat([row[:-1] for row in model_output["log_probs"].unbind()]).mean(), {}


def load_to_the_cpu():
    """mbridge's repository reads a DeepSeek's weights to the device; 0.15.1 has no such module."""
    if importlib.util.find_spec("mbridge.utils.device"):
        device = importlib.import_module("mbridge.utils.device")
        device.is_npu_available = device.is_cuda_available = False


def main(folder, settings):
    load_to_the_cpu()
    torch.distributed.init_process_group("gloo")
    try:
        made = engine(folder, json.loads(settings))
    except AttributeError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with made.eval_mode():
        found = made.infer_batch(batch())["model_output"]["log_probs"].unbind()
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = batch()["input_ids"].unbind()
    wanted = [log_probs(hf, row.tolist()) for row in rows]
    others = [log_probs(hf, [30, *row.tolist()[1:]]) for row in rows]
    sum(-one.mean() for one in wanted).backward()
    gradients = [parameter.grad.flatten() for parameter in hf.parameters() if parameter.grad is not None]
    with made.train_mode():
        trained = made.train_batch(batch(), loss)
    sent, own = dict(made.get_per_tensor_param()[0]), load_file(f"{folder}/model.safetensors")
    return {
        "error": None,
        "engine": type(made).__name__,
        "apart": max(float((one[: len(two)] - two).abs().max()) for one, two in zip(found, wanted, strict=True)),
        "depends": max(float((one[1:] - two[1:]).abs().max()) for one, two in zip(others, wanted, strict=True)),
        "norm": float(trained["metrics"]["grad_norm"]),
        "hf norm": float(torch.cat(gradients).norm()),
        "names": sorted(sent.keys() ^ own.keys()),
        "changed": sum(not torch.equal(weight.bfloat16(), own[name].bfloat16()) for name, weight in sent.items()),
        "sent": len(sent),
    }


print(json.dumps(main(*sys.argv[1:])))
torch.distributed.destroy_process_group()
