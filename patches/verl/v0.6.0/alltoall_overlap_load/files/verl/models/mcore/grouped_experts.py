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
"""Grouped expert weights: which models have them, and how they are loaded from a distributed checkpoint.

Megatron's GroupedMLP (core 0.12.1, transformer/moe/experts.py), which MindSpeed's moe_alltoall_overlap_comm always
builds, keeps the local experts of a layer in two parameters instead of one linear layer an expert:

    weight1   declared [hidden, experts * 2 * ffn], in memory [experts, hidden, 2 * ffn]: columns of gate, then of up
    weight2   declared [experts * ffn, hidden],     in memory [experts, ffn, hidden]

So each expert is the transpose of the `nn.Linear` weight that other layouts have. GroupedMLP.sharded_state_dict
transposes into new tensors to look like those layouts; a loader that relies on loading in place, as verl's does, fills
these copies and the parameters keep their random start. Here the checkpoint has the parameters' own memory layout,
under keys of its own (`...mlp.experts.weight1`), so that loading is in place and needs no second copy. A checkpoint
that has it says so: RECORD in its common state.
"""

import warnings

import torch

GROUPED_WEIGHTS = ("weight1", "weight2")
# What sharded_state_dict calls these weights; the same in every layout.
LINEAR_KEYS = {"weight1": "experts.linear_fc1.weight", "weight2": "experts.linear_fc2.weight"}
RECORD = "expert_weights_layout"
GROUPED_LAYOUT = "grouped, version 1"
# Set on the TransformerConfig of a model that was checked, for code that sees the model and not verl's configuration.
MARK = "verl_grouped_experts"
SHOWN_KEYS = 8


def is_grouped(experts):
    """Whether this module keeps its experts in weight1 and weight2."""
    return set(GROUPED_WEIGHTS) <= set(dict(experts.named_parameters(recurse=False)))


def expert_modules(model):
    """The (name, module) of the routed experts of every MoE layer of this pipeline stage."""
    return [(name, module) for name, module in model.named_modules() if name.endswith("mlp.experts")]


def expert_view(experts, name):
    """The parameter as [local experts, rows, columns], without a copy."""
    weight = getattr(experts, name)
    hidden = experts.config.hidden_size
    shape = (hidden, -1) if name == "weight1" else (-1, hidden)
    view = weight.detach().view(experts.num_local_experts, *shape)
    # MindSpeed's Tensor.view copies what is not contiguous, and a copy would be loaded instead of the parameter.
    if view.data_ptr() != weight.data_ptr():
        raise ValueError(f"mlp.experts.{name} is not contiguous: it cannot be loaded in place")
    return view


def use_grouped_experts(chunks, where, megatron, load_weight=True):
    """Checks `megatron.grouped_experts` against the model that was built, before any weight is loaded.

    chunks: the model, as a list of virtual pipeline stages. where: the key of the section, for messages. megatron: the
    section with the engine's settings. Raises ValueError, with what to set instead. A model with grouped experts and
    the field off is upstream's behaviour and stays so; it gets a warning.
    """
    from verl.utils.megatron_utils import unwrap_model
    from verl.utils.settings_checks.alltoall_overlap_load import check_section

    models = [unwrap_model(chunk) for chunk in chunks]
    experts = [module for model in models for _, module in expert_modules(model)]
    config = models[0].config
    if not megatron.get("grouped_experts", False):
        if any(map(is_grouped, experts)):
            warnings.warn(
                f"this model has grouped experts (weight1, weight2) and {where}.grouped_experts is False: weights from "
                "a distributed checkpoint do not reach them. Set it to True, with a checkpoint converted by "
                "converter_hf_to_mcore.py --grouped_experts",
                stacklevel=2,
            )
        return
    check_section(where, megatron, load_weight)
    check_experts(where, config, experts)
    for model in models:
        setattr(model.config, MARK, True)


def check_experts(where, config, experts):
    """Refuses a model whose experts are not grouped, or not in the layout that this module knows."""
    from megatron.core import parallel_state

    if config.num_moe_experts is None:
        raise ValueError(f"{where}.grouped_experts is True and the model has no experts: set it to False")
    for module in experts:
        if not is_grouped(module):
            raise ValueError(
                f"{where}.grouped_experts is True and the model's experts are {type(module).__name__}, not grouped: "
                f"set {where}.override_transformer_config.moe_alltoall_overlap_comm=True (MindSpeed), or "
                "grouped_experts=False"
            )
        check_shapes(where, config, module, parallel_state.get_expert_model_parallel_world_size())


def check_shapes(where, config, experts, ep_size):
    """Refuses experts that are padded, not gated, or spread unevenly or over more than the expert parallel ranks."""
    local, hidden, ffn = experts.num_local_experts, config.hidden_size, config.moe_ffn_hidden_size
    if local * ep_size != config.num_moe_experts:
        raise ValueError(
            f"{where}.grouped_experts: {local} experts on each of {ep_size} expert parallel ranks are not the model's "
            f"{config.num_moe_experts}; uneven experts and moe_tp_extend_ep are not supported"
        )
    expected = {"weight1": (hidden, local * 2 * ffn), "weight2": (local * ffn, hidden)}
    found = {name: tuple(getattr(experts, name).shape) for name in GROUPED_WEIGHTS}
    if found != expected or not config.gated_linear_unit:
        raise ValueError(
            f"{where}.grouped_experts: expert weights have the shapes {found}, gated experts of this size have "
            f"{expected}; padded or ungated experts are not supported"
        )


def layout_of(path):
    """The record of the checkpoint's layout of experts; None where it has Megatron's own."""
    from megatron.core import dist_checkpointing

    return dist_checkpointing.load_common_state_dict(path).get(RECORD)


def check_layout(path, grouped):
    """Raises ValueError when the checkpoint has the other layout of expert weights than the model."""
    found = layout_of(path)
    if grouped and found != GROUPED_LAYOUT:
        raise ValueError(
            f"{path}: expert weights have {f'the layout {found!r}' if found else 'one tensor an expert'}, and "
            f"megatron.grouped_experts needs {GROUPED_LAYOUT!r}: convert again with converter_hf_to_mcore.py "
            "--grouped_experts"
        )
    if not grouped and found is not None:
        raise ValueError(
            f"{path}: expert weights have the layout {found!r}, and this model loads one tensor an expert: set "
            "megatron.grouped_experts=True (with a model that has grouped experts), or convert again without "
            "--grouped_experts"
        )


def has_grouped_experts(chunks):
    """Whether `use_grouped_experts` found the model's experts grouped and its field set."""
    from verl.utils.megatron_utils import unwrap_model

    return getattr(unwrap_model(chunks[0]).config, MARK, False)


def load_grouped_weights(chunks, path, is_value_model=False):
    """Loads a checkpoint of the grouped layout into a model with grouped experts, in place.

    Raises ValueError when the layouts differ, a key is missing on either side, or a parameter would not be reached. Not
    loaded, and allowed to be missing: `_extra_state`, and the `output_layer` of a value model.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import apply_factories
    from megatron.core.dist_checkpointing.serialization import StrictHandling

    from verl.utils.megatron_utils import unwrap_model

    check_layout(path, grouped=True)
    models = [unwrap_model(chunk) for chunk in chunks]
    state = {f"model{stage}": sharded_state(model, is_value_model) for stage, model in in_virtual_stages(models)}
    # Builds the views of gate and up now, so that what they point to can be checked.
    apply_factories(state)
    tensors = sharded_tensors(state)
    for model in models:
        check_reached(model, tensors, is_value_model)
    check_keys(gathered_keys(tensors), stored_keys(path), is_value_model)
    dist_checkpointing.load(state, path, strict=StrictHandling.ASSUME_OK_UNEXPECTED)


def in_virtual_stages(models):
    """Enumerates the virtual pipeline stages; Megatron numbers the layers of the one that is current."""
    from megatron.core import parallel_state

    if len(models) == 1:
        yield 0, models[0]
        return
    before = parallel_state.get_virtual_pipeline_model_parallel_rank()
    try:
        for stage, model in enumerate(models):
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
            yield stage, model
    finally:
        parallel_state.set_virtual_pipeline_model_parallel_rank(before)


def sharded_state(model, is_value_model):
    """The model's sharded state dict, with grouped experts as views of their parameters, without what is not loaded."""
    state = model.sharded_state_dict()
    for prefix, experts in expert_modules(model):
        for name in GROUPED_WEIGHTS:
            key = f"{prefix}.{name}"
            state[key] = in_place_shard(state[key], experts, name)
    return {key: entry for key, entry in state.items() if not is_exempt(key, is_value_model)}


def in_place_shard(factory, experts, name):
    """The ShardedTensor [layers..., experts, rows, columns] of one grouped weight, on the parameter's own memory."""
    from megatron.core.dist_checkpointing import ShardedTensor

    # Built on no memory: only where this rank's experts lie is wanted.
    shape = torch.empty_like(factory.data, device="meta")
    built = factory.build_fn(factory.key, shape, factory.replica_id, factory.flattened_range)
    place = built[0] if isinstance(built, list) else built
    axes = place.prepend_axis_num
    view = expert_view(experts, name)
    return ShardedTensor(
        key=grouped_key(place.key, name),
        data=view,
        dtype=view.dtype,
        local_shape=tuple(view.shape),
        global_shape=(*place.global_shape[: axes + 1], *view.shape[1:]),
        global_offset=(*place.global_offset[: axes + 1], 0, 0),
        axis_fragmentations=(*place.axis_fragmentations[: axes + 1], 1, 1),
        replica_id=place.replica_id,
        prepend_axis_num=axes,
    )


def grouped_key(key, name):
    """`decoder.layers.mlp.experts.experts.linear_fc1.weight` -> `decoder.layers.mlp.experts.weight1`."""
    if not key.endswith("." + LINEAR_KEYS[name]):
        raise ValueError(f"{key}: not the key of an expert's weight ({LINEAR_KEYS[name]})")
    return key.removesuffix(LINEAR_KEYS[name]) + name


def is_exempt(key, is_value_model):
    """Whether a key is neither loaded nor missed; by whole components, so that `my_output_layer_norm` is not."""
    components = key.split(".")
    return components[-1].split("/")[0] == "_extra_state" or (is_value_model and "output_layer" in components)


def sharded_tensors(state):
    """Every ShardedTensor of a nested state dict."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.dict_utils import nested_values

    return [value for value in nested_values(state) if isinstance(value, ShardedTensor)]


def check_reached(model, tensors, is_value_model):
    """Raises ValueError unless loading `tensors` in place writes every parameter and persistent buffer of the model."""
    reached = {tensor.data.data_ptr() for tensor in tensors}
    missed = [
        name
        for name, tensor in own_tensors(model)
        if tensor.numel() and tensor.data_ptr() not in reached and not is_exempt(name, is_value_model)
    ]
    if missed:
        raise ValueError(f"the distributed checkpoint would not reach these weights of the model: {shown(missed)}")


def own_tensors(model):
    """Parameters and persistent buffers by name. Not from `state_dict`, which MindSpeed's linear layers thin out."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def gathered_keys(tensors):
    """The checkpoint keys that the model wants, on any rank."""
    own = {tensor.key for tensor in tensors}
    every = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, own)
    return set().union(*every)


def stored_keys(path):
    """The keys of the tensors and objects in the checkpoint."""
    from megatron.core import dist_checkpointing

    return {entry.key for entry in dist_checkpointing.serialization.load_sharded_metadata(path).values()}


def check_keys(wanted, stored, is_value_model):
    """Raises ValueError unless model and checkpoint have the same keys, but for the exempt ones."""
    wanted, stored = ({key for key in keys if not is_exempt(key, is_value_model)} for keys in (wanted, stored))
    faults = []
    if wanted - stored:
        faults.append(f"the checkpoint lacks {shown(wanted - stored)}")
    if stored - wanted:
        faults.append(f"the model has no {shown(stored - wanted)}")
    if faults:
        raise ValueError(f"checkpoint and model do not fit: {'; '.join(faults)}")


def shown(names):
    """The first few names, for a message."""
    names = sorted(names)
    rest = len(names) - SHOWN_KEYS
    return ", ".join(names[:SHOWN_KEYS]) + (f" and {rest} more" if rest > 0 else "")
