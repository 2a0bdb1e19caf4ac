# Copyright 2025 Individual Contributor: patchctl
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Copies a dense model's weights into Megatron's on the CPU, for scripts/converter_hf_to_mcore.py.

loader.py does it on a device that holds the whole model. This is for one process with all of the
model in its host's memory; the device gets nothing.
"""

import torch

from verl.models.mcore.weight_converter import McoreToHFWeightConverterDense

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SHOWN = 5


@torch.no_grad()
def copy_dense_weights(hf_model, model, hf_config):
    """Fills what `model`, a GPTModel on the CPU, will save, with the weights of `hf_model`.

    Raises ValueError when the architecture is none of ARCHITECTURES, when either model has a
    parameter that the other has not, and for another shape, dtype or number of parameters.
    """
    check_architecture(hf_config)
    # A tied output layer is no parameter of its own, here as in Megatron.
    weights = dict(hf_model.named_parameters())
    targets = saved_tensors(model)
    converter = McoreToHFWeightConverterDense(hf_config, model.config)
    sources = {name: hugging_face_names(name, converter) for name in targets}
    check_names(sources, weights)
    copied = 0
    for name, target in targets.items():
        parts = [weights[source] for source in sources[name]]
        weight = merged(parts, model.config.num_query_groups)
        check_fits(name, target, weight)
        target.copy_(weight)
        copied += target.numel()
    if copied != hf_model.num_parameters():
        raise ValueError(f"{copied} of {hf_model.num_parameters()} parameters were copied")
    print(f"copied {copied} parameters on the CPU")


def check_architecture(hf_config):
    """Refuses an architecture whose names this module does not know."""
    unknown = sorted(set(hf_config.architectures) - set(ARCHITECTURES))
    if unknown:
        raise ValueError(
            f"--use_cpu_initialization does not support {', '.join(unknown)}; dense models that it "
            f"supports: {', '.join(ARCHITECTURES)}"
        )


def saved_tensors(model):
    """The tensors that the model's sharded state dict is made of, by the model's names.

    Not named_parameters: MindSpeed's layers name a weight twice, and when the model is built
    without memory the two are two tensors. Not state_dict: MindSpeed's layers take q_layernorm and
    k_layernorm out of it.
    """
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    tensors = (ShardedTensor, ShardedTensorFactory)
    state = model.sharded_state_dict()
    return {name: entry.data for name, entry in state.items() if isinstance(entry, tensors)}


def hugging_face_names(name, converter):
    """Hugging Face's names of what one Megatron parameter is merged from, in that order."""
    parts = 1
    if name.endswith((".linear_qkv.weight", ".linear_qkv.bias")):
        parts = 3
    elif name.endswith(".linear_fc1.weight"):
        parts = 2
    return converter.convert_param(name, [None] * parts)[0]


def check_names(sources, weights):
    """Refuses two models of which one has a parameter that the other has not."""
    wanted = {source for names in sources.values() for source in names}
    missing, unknown = sorted(wanted - set(weights)), sorted(set(weights) - wanted)
    if missing or unknown:
        raise ValueError(f"the Hugging Face model lacks {shown(missing)}; Megatron's has no place for {shown(unknown)}")


def shown(names):
    """The first few names, for a message."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "nothing") + rest


def merged(parts, groups):
    """Megatron's tensor: query, key, value of one group after the other, or gate and up."""
    if len(parts) == 3:
        by_group = [part.unflatten(0, (groups, -1)) for part in parts]
        return torch.cat(by_group, dim=1).flatten(0, 1)
    return torch.cat(parts) if len(parts) == 2 else parts[0]


def check_fits(name, target, weight):
    """Refuses a weight that would be broadcast or rounded."""
    if target.shape != weight.shape or target.dtype != weight.dtype:
        raise ValueError(
            f"{name}: Megatron's is {tuple(target.shape)} in {target.dtype}, "
            f"Hugging Face's {tuple(weight.shape)} in {weight.dtype}"
        )
