"""Probe: experts in verl v0.9.0's Megatron engine for an NPU, from a Hugging Face model to what an update sends, on ranks that share them.

Usage: probe_experts_v1.py MODEL   (a Qwen3-MoE)

Real: the engine, mbridge, MindSpeed's layers, Megatron-LM. No pass through the model is made.
Prints for the engine as it comes which parts of a layer's experts a rank trains, which weights an update on it sends, those that are not the
model's, which of verl's own converters were asked, and how much there is beside the model while an expert's weight is sent, at most, in
the bytes of one expert's fc1; and what an engine with MindSpeed's all-to-all overlap ends with.
"""

import gc
import json
import sys

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

mindspeed_on_cpu.install()

import mindspeed_ops  # noqa: E402
import npu_training  # noqa: E402
import npu_training_0_9  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from verl.plugin.platform import platform_npu  # noqa: E402

npu_training.answer_for_the_device(torch_npu)
npu_training_0_9.name_the_device(platform_npu)

from verl.models.mcore import registry  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import megatron_utils  # noqa: E402
from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402

OVERLAP = {"moe_alltoall_overlap_comm": True, "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True}
ASKED = []


def noted(name, function):
    def called(*args, **settings):
        ASKED.append(name)
        return function(*args, **settings)

    return called


def watch():
    """What the patches of v0.6.0 change, where it is still there."""
    converters = registry.MODEL_CONFIG_CONVERTER_REGISTRY
    converters.update({kind: noted(function.__name__, function) for kind, function in converters.items()})
    megatron_utils.per_tensor_generator = noted("per_tensor_generator", megatron_utils.per_tensor_generator)


def engine(model, told):
    made = EngineRegistry.get_engine_cls("language_model", "megatron")(
        HFModelConfig(path=model),
        McoreEngineConfig(
            expert_model_parallel_size=dist.get_world_size(), vanilla_mbridge=True, override_transformer_config=told
        ),
        McoreOptimizerConfig(lr=1e-2, lr_warmup_steps=0, total_training_steps=10),
        CheckpointConfig(),
    )
    made.initialize()
    return made


def storages():
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


def at_once(made):
    """The most that is there beside the model when a weight of an expert is given to whoever sends it, in those of one fc1."""
    before, most = storages(), 0
    for name, _ in made.get_per_tensor_param()[0]:
        if ".experts." in name:
            most = max(most, sum(size for place, size in storages().items() if place not in before))
    weights = made.module[0].named_parameters()
    (one,) = {weight.nbytes for name, weight in weights if ".experts.linear_fc1.weight" in name}
    return most / one


def main(model):
    torch.distributed.init_process_group("gloo")
    mindspeed_ops.install()
    watch()
    made = engine(model, {})
    sent, own = dict(made.get_per_tensor_param()[0]), load_file(f"{model}/model.safetensors")
    result = {
        "trained": sorted(
            {name.split(".mlp.experts.")[1] for name, _ in made.module[0].named_parameters() if ".experts." in name}
        ),
        "sent": len(sent),
        "experts sent": sum(".experts." in name for name in sent),
        "wrong": sorted(
            {*sent} ^ {*own} | {name for name in sent if not torch.equal(sent[name], own[name].bfloat16())}
        ),
        "asked": ASKED,
    }
    del sent
    result["at once"] = at_once(made)
    try:
        engine(model, OVERLAP)
    except Exception as error:
        return result | {"overlap": f"{type(error).__name__}: {error}"}
    return result | {"overlap": None}


print(json.dumps(main(sys.argv[1])))
torch.distributed.destroy_process_group()
