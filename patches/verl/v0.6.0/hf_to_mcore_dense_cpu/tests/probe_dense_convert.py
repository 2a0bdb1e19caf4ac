"""Probe: verl's conversion script takes tiny dense models, on the CPU and through the device.

Usage: probe_dense_convert.py SCRIPT FOLDER
Prints {"converted": {model: {"device": ..., "cpu": ...}}, "refused": {case: the refusal or null}}. Of each conversion:
"error"; "on_device" (elements of the tensors that were made on or moved to the device); "parameters" (elements of each of
Hugging Face's); "keys" (shapes in the checkpoint); and what `grouped_worker.compared` finds of the tensors that a rollout
gets after verl has loaded the checkpoint. Of the CPU's also "differing": keys whose tensors are not those of the device's.
"""

import grouped_worker as gw  # first: it makes torch and verl run on a CPU

# isort: split
import json
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from tiny_moe_models import EXPERTS, SHAPE, configuration
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
)
from verl.models.mcore import hf_to_mcore_config, init_mcore_model
from verl.utils.megatron_utils import get_model, unwrap_model
from verl.utils.model import load_mcore_dist_weights

SCRIPT, FOLDER = sys.argv[1], Path(sys.argv[2])
OPTION = "--use_cpu_initialization"
DENSE = SHAPE | {"num_hidden_layers": 2}
CONFIGURATIONS = {
    # As in Qwen3-32B, all heads together are wider than the model.
    "qwen3": Qwen3Config(**DENSE, head_dim=16),
    "qwen2": Qwen2Config(**DENSE | {"tie_word_embeddings": True}),
    "llama": LlamaConfig(**DENSE),
    "qwen3_moe": configuration("qwen3_moe"),
    "llama with biases": LlamaConfig(**DENSE, attention_bias=True),
    "mixtral": MixtralConfig(**DENSE, num_local_experts=4, num_experts_per_tok=EXPERTS["num_experts_per_tok"]),
}
CONVERTED = ("qwen3", "qwen2", "llama", "qwen3_moe")
# The stand-in's device is the CPU; with an index it can be told from the host.
DEVICE = torch.device("cpu:0")


class OnDevice(TorchFunctionMode):
    """Counts the elements of tensors that a call puts on the device."""

    elements = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        named = [(kwargs or {}).get("device")]
        # A tensor is moved to an index or to a device; other functions take numbers, too.
        named += args[1:2] if getattr(function, "__name__", "") == "to" else []
        if isinstance(made, torch.Tensor) and any(map(names_device, named)):
            self.elements += made.numel()
        return made


def names_device(value):
    return type(value) is int or str(value) == str(DEVICE) or str(value).startswith(("cuda", "npu"))


def write(name):
    """A model with random weights, all different from each other."""
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(CONFIGURATIONS[name], torch_dtype=torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_()
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(FOLDER / name)


def run_script(name, path, *options):
    """Runs the script as a program; the refusal or null, and how much it put on the device."""
    gw.mindspeed_on_cpu.forget_attention_backend()
    end_groups()
    sys.argv = [SCRIPT, "--hf_model_path", str(FOLDER / name), "--output_path", str(path), *options]
    error = None
    with OnDevice() as device:
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except (ValueError, AssertionError) as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
    return {"error": error, "on_device": device.elements}


def end_groups():
    """The script makes its own."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def conversion(name, place, *options):
    path = FOLDER / place / name
    found = run_script(name, path, *options)
    if found["error"]:
        return found
    gw.use_parallel({})
    tensors = dist_checkpointing.load_plain_tensors(str(path))
    config = AutoConfig.from_pretrained(FOLDER / name)
    module, transformer = megatron_model(config)
    load_mcore_dist_weights(module, str(path))
    converter = gw.get_mcore_weight_converter(config, torch.bfloat16)
    given = list(gw.per_tensor_generator(module, config, converter, transformer, gw.NAMES))
    found |= {
        "keys": {key: list(tensor.shape) for key, tensor in tensors.items()},
        "parameters": [tensor.numel() for tensor in gw.hugging_face_weights(FOLDER / name).values()],
        **gw.compared(given, FOLDER / name),
    }
    return found


def megatron_model(config):
    """verl's Megatron model of this configuration, with other weights."""
    transformer = hf_to_mcore_config(config, torch.bfloat16)
    transformer.use_cpu_initialization = True

    def provider(pre_process, post_process):
        tied = config.tie_word_embeddings
        return init_mcore_model(
            transformer, config, pre_process, post_process, share_embeddings_and_output_weights=tied
        )

    return get_model(provider, wrap_with_ddp=False, transformer_config=transformer), transformer


def both_ways(name):
    write(name)
    found = {"device": conversion(name, "device"), "cpu": conversion(name, "cpu", OPTION)}
    if not found["cpu"]["error"]:
        found["cpu"]["differing"] = differing(FOLDER / "device" / name, FOLDER / "cpu" / name)
    return found


def differing(*paths):
    first, second = (dist_checkpointing.load_plain_tensors(str(path)) for path in paths)
    return sorted(key for key in {*first, *second} if not same(first.get(key), second.get(key)))


def same(first, second):
    return first is not None and second is not None and torch.equal(first, second)


def refused_by_script(name):
    write(name)
    return run_script(name, FOLDER / "refused" / name, OPTION)["error"]


def refused_copy(spoil):
    """What is said of a Hugging Face model that does not fit; `spoil` makes it so."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "qwen3", torch_dtype=torch.bfloat16)
    spoil(model)
    gw.use_parallel({})
    module, _ = megatron_model(model.config)
    try:
        from verl.models.mcore.dense_conversion import copy_dense_weights

        copy_dense_weights(model, unwrap_model(module[0]), model.config)
    except (ValueError, ImportError) as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return None


def without_query_norm(model):
    del model.model.layers[1].self_attn.q_norm.weight


def with_one_scale(model):
    model.model.norm.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))


def in_float32(model):
    model.model.norm.float()


def main():
    torch.cuda.current_device = lambda: DEVICE
    converted = {name: both_ways(name) for name in CONVERTED}
    refused = {name: refused_by_script(name) for name in ("llama with biases", "mixtral")}
    spoilt = {"missing": without_query_norm, "shape": with_one_scale, "dtype": in_float32}
    refused |= {name: refused_copy(spoil) for name, spoil in spoilt.items()}
    end_groups()
    print(json.dumps({"converted": converted, "refused": refused}))


main()
