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
"""Writes the grouped layout of expert weights (see grouped_experts.py) from a model that has one tensor an expert.

Works on the converted Megatron model and not on Hugging Face's, so that it is the same for every architecture that
scripts/converter_hf_to_mcore.py fills.
"""

import torch

from verl.models.mcore.grouped_experts import GROUPED_LAYOUT, RECORD, expert_modules, grouped_key, shown

LINEARS = {"weight1": "linear_fc1", "weight2": "linear_fc2"}


def to_grouped_layout(model, state, transformer_config):
    """Replaces the experts in the model's sharded state dict by shards of the grouped weights; returns the state dict.

    Expert parallelism must be 1, as it is in the conversion script. A model without experts is left as it is. Each
    expert's parameter is transposed where it is, one at a time, because a transposed view would be copied as a whole by
    dist_checkpointing: afterwards the model can be saved but not run.
    """
    if transformer_config.num_moe_experts is None:
        print("--grouped_experts: this model has no experts, the checkpoint is the usual one")
        return state
    for prefix, experts in expert_modules(model):
        check_whole(prefix, experts, transformer_config)
        for name, linear in LINEARS.items():
            for index in range(experts.num_local_experts):
                key = expert_key(state, prefix, linear, index)
                state[key] = transposed_shard(state[key], expert_parameter(experts, linear, index), name)
    # Every rank writes the same record, also one whose pipeline stage has no experts: it becomes common state.
    state[RECORD] = GROUPED_LAYOUT
    return state


def check_whole(prefix, experts, transformer_config):
    """Refuses experts that are spread over ranks or have no gate."""
    if experts.num_local_experts != transformer_config.num_moe_experts or not transformer_config.gated_linear_unit:
        raise ValueError(
            f"{prefix}: {experts.num_local_experts} of {transformer_config.num_moe_experts} experts are here, gated: "
            f"{transformer_config.gated_linear_unit}; --grouped_experts needs all of them in one rank, and gated"
        )


def expert_key(state, prefix, linear, index):
    """The state dict's key of one expert's weight, in Transformer Engine's layout or in that of separate experts."""
    keys = [f"{prefix}.{linear}.weight{index}", f"{prefix}.local_experts.{index}.{linear}.weight"]
    for key in keys:
        if key in state:
            return key
    raise ValueError(f"--grouped_experts: the model has neither {' nor '.join(keys)}")


def expert_parameter(experts, linear, index):
    """The parameter of one expert's weight, [outputs, inputs]."""
    if hasattr(experts, "local_experts"):
        return getattr(experts.local_experts[index], linear).weight
    return getattr(getattr(experts, linear), f"weight{index}")


def transposed_shard(entry, parameter, name):
    """The ShardedTensor [layers..., experts, inputs, outputs] of one expert's weight, which it transposes in place."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    place = entry
    if isinstance(entry, ShardedTensorFactory):
        # Built on no memory: only where the expert lies is wanted.
        place = entry.build_fn(entry.key, torch.empty_like(parameter, device="meta"), entry.replica_id, None)[0]
    axes = place.prepend_axis_num
    parameter.data = parameter.data.t().contiguous()
    return ShardedTensor(
        key=grouped_key(place.key, name),
        data=parameter.data,
        dtype=parameter.dtype,
        local_shape=tuple(parameter.shape),
        global_shape=(*place.global_shape[:axes], *parameter.shape),
        global_offset=(*place.global_offset[:axes], 0, 0),
        axis_fragmentations=(*place.axis_fragmentations[:axes], 1, 1),
        replica_id=place.replica_id,
        prepend_axis_num=axes,
    )


def check_saved(state, path):
    """Compares what was saved with what the checkpoint at `path` holds, tensor by tensor, for the script's --test.

    Raises ValueError with the keys that differ.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import apply_factories

    from verl.models.mcore.grouped_experts import sharded_tensors

    # Saving has done it, unless the checkpoint was there before; it also adds leading axes to the data.
    apply_factories(state)
    stored = dist_checkpointing.load_plain_tensors(path)
    different = set()
    for tensor in sharded_tensors(state):
        where = zip(tensor.global_offset, (1,) * tensor.prepend_axis_num + tensor.local_shape, strict=True)
        index = tuple(slice(start, start + length) for start, length in where)
        if tensor.key not in stored or not torch.equal(
            stored[tensor.key][index].reshape(tensor.local_shape), tensor.data.cpu().reshape(tensor.local_shape)
        ):
            different.add(tensor.key)
    if different:
        raise ValueError(f"{path} does not hold what was converted: {shown(different)}")
    print("Conversion test passed!")
