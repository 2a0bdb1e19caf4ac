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
"""Hugging Face names and tensors for grouped expert weights (see grouped_experts.py), for updates of the rollout.

A grouped weight is cut into experts, each transposed back and passed to upstream's weight converter under the name it
has in Transformer Engine's layout. So every architecture works whose converter knows `mlp.experts.linear_fc1.weight0`.
"""

import torch

from verl.models.mcore.grouped_experts import has_grouped_experts

LINEARS = {".mlp.experts.weight1": ".mlp.experts.linear_fc1", ".mlp.experts.weight2": ".mlp.experts.linear_fc2"}


def is_grouped_expert(name, chunks):
    """Whether this parameter holds grouped experts of a model whose `megatron.grouped_experts` is set."""
    return name.endswith(tuple(LINEARS)) and has_grouped_experts(chunks)


def grouped_expert_tensors(name, weight, weight_converter):
    """Yields the (name, tensor) of every expert of the layer, gathered over the expert parallel group.

    weight: this rank's parameter, `[hidden, local experts * 2 * ffn]` (weight1) or `[local experts * ffn, hidden]`
    (weight2). One expert of each rank is gathered at a time, in the order of upstream's per_tensor_generator. Raises
    ValueError when the parameter is not `num_moe_experts / ep_size` experts of the configured size.
    """
    from megatron.core import parallel_state

    ep_size = parallel_state.get_expert_model_parallel_world_size()
    check_parallel(name, weight_converter.mcore_config, ep_size)
    local_count = weight_converter.mcore_config.num_moe_experts // ep_size
    prefix, experts = local_experts(name, weight, local_count, weight_converter.mcore_config)
    for local_id, expert in enumerate(experts):
        for ep_rank, gathered in enumerate(gather(expert, ep_size, parallel_state)):
            yield from hf_tensors(prefix, ep_rank * local_count + local_id, gathered, weight_converter)


def check_parallel(name, config, ep_size):
    """Refuses experts that are split by tensor parallelism or unevenly by expert parallelism."""
    from megatron.core import parallel_state

    etp_size = parallel_state.get_expert_tensor_parallel_world_size()
    if etp_size > 1:
        raise ValueError(f"{name}: grouped experts with expert tensor parallelism ({etp_size}); set it to 1")
    if config.num_moe_experts is None or config.num_moe_experts % ep_size:
        raise ValueError(f"{name}: {config.num_moe_experts} experts cannot be spread over {ep_size} ranks evenly")


def local_experts(name, weight, count, config):
    """The name up to the expert's number in Transformer Engine's layout, and a view [rows, columns] of each expert.

    rows and columns are [hidden, 2 * ffn] for weight1 and [ffn, hidden] for weight2.
    """
    suffix = name[name.rindex(".mlp.experts.") :]
    hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size
    rows, columns = (hidden, 2 * ffn) if suffix.endswith("weight1") else (ffn, hidden)
    declared = (rows, count * columns) if suffix.endswith("weight1") else (count * rows, columns)
    if tuple(weight.shape) != declared:
        raise ValueError(f"{name} has the shape {tuple(weight.shape)}, {count} experts of this model need {declared}")
    # The declared shape of weight1 hides it: in memory the experts come one after the other.
    experts = weight.detach().contiguous().view(count, rows, columns)
    return name.removesuffix(suffix) + LINEARS[suffix], list(experts)


def gather(expert, ep_size, parallel_state):
    """The same local expert of every expert parallel rank, by rank."""
    if ep_size == 1:
        return [expert]
    gathered = [torch.empty_like(expert) for _ in range(ep_size)]
    torch.distributed.all_gather(gathered, expert, group=parallel_state.get_expert_model_parallel_group())
    return gathered


def hf_tensors(prefix, expert_id, expert, weight_converter):
    """The (name, tensor) pairs of one expert, as the rollout wants them: contiguous and not transposed."""
    parts = expert.chunk(2, dim=1) if prefix.endswith("linear_fc1") else [expert]
    parts = [part.t().contiguous() for part in parts]
    names, tensors = weight_converter.convert_param(f"{prefix}.weight{expert_id}", parts)
    return list(zip(names, tensors, strict=True))
