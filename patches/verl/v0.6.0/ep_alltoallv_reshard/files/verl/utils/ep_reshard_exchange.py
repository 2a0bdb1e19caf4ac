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
"""Moves expert weights from the ranks that train them to the ranks whose rollout engine keeps them.

`ep_reshard` plans, this executes: for the n-th weight of the MoE layers of all pipeline stages together, rounds of
`all_to_all_single` with uneven splits. Together, so that all stages send at a time and not one after the other. The
list form, `all_to_all`, is not used: gloo refuses it when sizes differ. All other weights come from upstream's
`per_tensor_generator`, which is shown the model without its routed experts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

import torch
import torch.distributed as dist
from megatron.core import mpu

from verl.utils.device import get_device_id
from verl.utils.ep_reshard import (
    RankLayout,
    Transfer,
    check_layouts,
    exchange_groups,
    merge_rounds,
    route,
    single_rounds,
    splits,
)
from verl.utils.megatron_utils import per_tensor_generator, unwrap_model
from verl.utils.model import normalize_model_name

# What a rank receives in a round, and sends at most: one fc1 of DeepSeek-V3 is 56 MiB. Smaller experts go several in a
# round, as each costs the latency of a collective; a larger one goes alone.
ROUND_BYTES = 64 * 2**20

_ROUTED = ".mlp.experts."
_EXPERT = re.compile(r"(?P<prefix>.*\.mlp\.experts\.linear_fc[12])\.weight\d+")
_GROUPED = re.compile(r".*\.mlp\.experts\.weight[12]")


@dataclass(frozen=True)
class ExpertWeight:
    """One weight (fc1 or fc2) of the experts of one MoE layer, as a pipeline stage trains it.

    Args:
        chunk: virtual stage, the index of the model chunk.
        names: of the chunk's parameters: one for each local expert, or the one that holds all (`grouped`).
        prefix: name in the whole model, without the expert: ...mlp.experts.linear_fc1 or linear_fc2.
        shape: of one expert.
        dtype: of the parameter.
        grouped: whether one parameter holds all experts (Megatron's GroupedMLP).
    """

    chunk: int
    names: tuple[str, ...]
    prefix: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    grouped: bool


def expert_weights(actor_module: Sequence[torch.nn.Module], transformer_config) -> list[ExpertWeight]:
    """This rank's routed experts, by layer and weight, in the model's order.

    Args:
        actor_module: this rank's model chunks.
        transformer_config: Megatron's configuration.

    Raises:
        ValueError: when a routed expert's parameter has a name that is not understood, or when there are not the
            experts, or not the gated ones, that the configuration says.
    """
    found = []
    for chunk, model in enumerate(actor_module):
        # Of meta: with param_offload the model has no memory when the exchange is made.
        parameters = {
            name: torch.empty_like(weight, device="meta")
            for name, weight in unwrap_model(model).named_parameters()
            if _ROUTED in name
        }
        routed = list(parameters)
        for (prefix, grouped), names in groupby(routed, _weight_of):
            names = tuple(names)
            own = _of_experts(names, parameters, grouped, transformer_config)
            _check_own(names, own, grouped, transformer_config)
            # The name in the whole model, as per_tensor_generator makes it.
            prefix = normalize_model_name(prefix, mpu.get_pipeline_model_parallel_rank(), chunk, transformer_config)
            prefix = re.sub(r"^(module\.)+", "", prefix)
            prefix = re.sub(r"\.weight(?=[12]$)", ".linear_fc", prefix)
            found.append(ExpertWeight(chunk, names, prefix, tuple(own[0].shape), own[0].dtype, grouped))
    return found


def _weight_of(name: str) -> tuple[str, bool]:
    """A parameter's name without the expert, and whether it holds all local experts; raises ValueError."""
    if match := _EXPERT.fullmatch(name):
        return match["prefix"], False
    if _GROUPED.fullmatch(name):
        return name, True
    raise ValueError(
        f"{name}: experts neither in Transformer Engine's grouped linear layers nor in Megatron's GroupedMLP, set "
        "actor_rollout_ref.actor.megatron.override_transformer_config.moe_grouped_gemm=True"
    )


def _check_own(names: tuple[str, ...], own: list[torch.Tensor], grouped: bool, transformer_config) -> None:
    """Refuses experts that are spread in another way, padded or not gated: they would go under wrong names."""
    local = transformer_config.num_moe_experts // mpu.get_expert_model_parallel_world_size()
    if len(own) != local:
        raise ValueError(f"{names[0]}: {len(own)} experts on this rank, the configuration says {local}")
    if not grouped:
        return
    hidden, ffn = transformer_config.hidden_size, transformer_config.moe_ffn_hidden_size
    expected = (hidden, 2 * ffn) if names[0].endswith("1") else (ffn, hidden)
    if tuple(own[0].shape) != expected:
        raise ValueError(f"{names[0]}: an expert has the shape {tuple(own[0].shape)}, gated ones have {expected}")


def _of_experts(names, parameters, grouped, transformer_config) -> list[torch.Tensor]:
    """The local experts' tensors, by local index; views of the parameters."""
    weights = [parameters[name].detach() for name in names]
    if not grouped:
        return weights
    local = transformer_config.num_moe_experts // mpu.get_expert_model_parallel_world_size()
    hidden = transformer_config.hidden_size
    # In memory the experts come one after the other, [hidden, 2 * ffn] and [ffn, hidden]; weight1's declared shape,
    # [hidden, experts * 2 * ffn], hides it.
    shape = (local, hidden, -1) if names[0].endswith("1") else (local, -1, hidden)
    return list(weights[0].view(shape))


class WithoutExperts:
    """A model chunk as upstream's generator shall see it: without routed experts."""

    def __init__(self, chunk: torch.nn.Module) -> None:
        self._model = unwrap_model(chunk)

    def named_parameters(self):
        return ((name, weight) for name, weight in self._model.named_parameters() if _ROUTED not in name)

    def state_dict(self):
        return {name: value for name, value in self._model.state_dict().items() if _ROUTED not in name}


class ExpertReshard:
    """The exchange of expert weights between training and rollout; made once, by all ranks together.

    Args:
        records: of every global rank its layout and its `expert_weights`, the same on each rank.
        num_experts: experts in an MoE layer.
        round_bytes: upper limit of what a rank sends, and of what it receives, in one round; one expert goes anyway.

    Raises:
        ValueError: when layouts do not fit each other, see `ep_reshard.check_layouts`.
    """

    def __init__(
        self,
        records: Sequence[tuple[RankLayout, list[ExpertWeight]]],
        num_experts: int,
        round_bytes: int = ROUND_BYTES,
    ) -> None:
        layouts = [layout for layout, _ in records]
        check_layouts(layouts, num_experts)
        self.rank = dist.get_rank()
        self.layout = layouts[self.rank]
        self.round_bytes = round_bytes
        self.stages = _by_stage(records)
        transfers = [transfer for stage in self.stages for transfer in route(layouts, stage)]
        groups = exchange_groups(len(layouts), transfers)
        self.members = next(group for group in groups if self.rank in group)
        self.group = _process_group(groups, self.members)
        self.rounds = single_rounds(one for one in transfers if one.target in self.members)

    def weights(
        self, actor_module, model_config, weight_converter, transformer_config, layer_name_mapping
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields Hugging Face's names and weights: the experts that this rank's engine keeps, and all else.

        Arguments are those of `per_tensor_generator`. All ranks have to consume it in step. An expert that is yielded
        is part of the model or of a receive buffer: the consumer copies it.
        """
        parameters = [dict(unwrap_model(chunk).named_parameters()) for chunk in actor_module]
        for index in range(max(map(len, self.stages.values()))):
            weights = {stage: all_of[index] for stage, all_of in self.stages.items() if index < len(all_of)}
            own = []
            if mine := weights.get(self.layout.stage):
                own = _of_experts(mine.names, parameters[mine.chunk], mine.grouped, transformer_config)
            for stage, expert, tensor in self._exchange(weights, own):
                yield from _named(weights[stage], expert, tensor, weight_converter)
                # A receive buffer must not outlive its round: the next one is allocated meanwhile.
                del tensor
        yield from per_tensor_generator(
            [WithoutExperts(chunk) for chunk in actor_module],
            model_config,
            weight_converter,
            transformer_config,
            layer_name_mapping,
        )

    def _exchange(
        self, weights: dict[int, ExpertWeight], own: list[torch.Tensor]
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields (stage, expert id, tensor) of the experts held; `own` are the tensors trained here, if there are."""
        trained = dict(zip(self.layout.owns, own, strict=True)) if own else {}
        for expert in self.layout.holds:
            if expert in trained:
                yield self.layout.stage, expert, trained[expert]
        # Stages may have different numbers of MoE layers.
        rounds = [[one for one in one_round if one.stage in weights] for one_round in self.rounds]
        weight = next(iter(weights.values()))
        width = max(1, self.round_bytes // (_numel(weight) * weight.dtype.itemsize))
        for one_round in merge_rounds([one_round for one_round in rounds if one_round], width):
            yield from self._round(one_round, weight, trained)

    def _round(
        self, one_round: list[Transfer], weight: ExpertWeight, trained: dict[int, torch.Tensor]
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        # Rounds are sorted by source and target first, and `members` ascend: both sides have the order of the splits.
        sent = [trained[one.expert].reshape(-1) for one in one_round if one.source == self.rank]
        expected = [one for one in one_round if one.target == self.rank]
        received = torch.empty((len(expected), *weight.shape), dtype=weight.dtype, device=get_device_id())
        # A single expert is sent from where it lies.
        buffer = sent[0] if len(sent) == 1 else torch.cat(sent) if sent else received.new_empty(0)
        sizes = [[count * _numel(weight) for count in counts] for counts in splits(one_round, self.rank, self.members)]
        dist.all_to_all_single(received.view(-1), buffer, sizes[1], sizes[0], group=self.group)
        for transfer, tensor in zip(expected, received, strict=True):
            yield transfer.stage, transfer.expert, tensor


def _by_stage(records: Sequence[tuple[RankLayout, list[ExpertWeight]]]) -> dict[int, list[ExpertWeight]]:
    """The expert weights of each pipeline stage.

    Raises:
        ValueError: when ranks of a stage differ, or weights that are to be exchanged together.
    """
    stages: dict[int, list[ExpertWeight]] = {}
    for rank, (layout, weights) in enumerate(records):
        if stages.setdefault(layout.stage, weights) != weights:
            raise ValueError(f"rank {rank} has other expert weights than the other ranks of stage {layout.stage}")
    for weights in zip_longest(*stages.values()):
        kinds = {(one.prefix[-1], one.shape, one.dtype, one.grouped) for one in weights if one is not None}
        if len(kinds) > 1:
            raise ValueError(f"experts of different pipeline stages differ: {sorted(map(str, kinds))}")
    return dict(sorted(stages.items()))


def _numel(weight: ExpertWeight) -> int:
    return torch.Size(weight.shape).numel()


def _named(weight: ExpertWeight, expert: int, tensor: torch.Tensor, converter) -> Iterator[tuple[str, torch.Tensor]]:
    """An expert's tensor under Hugging Face's names: fc1 is gate and up projection, which a grouped one transposes."""
    parts = [tensor]
    if weight.prefix.endswith("linear_fc1"):
        parts = list(tensor.chunk(2, dim=1 if weight.grouped else 0))
    if weight.grouped:
        parts = [part.t().contiguous() for part in parts]
    return zip(*converter.convert_param(f"{weight.prefix}.weight{expert}", parts), strict=True)


def _process_group(groups: Sequence[tuple[int, ...]], members: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The process group of `members`; None, which is the group of all, also when nothing is ever sent.

    An existing group is taken where the ranks are the same, since each of them costs buffers on the device (HCCL: 200
    MB by default). `new_group` has to be called by all ranks, for all groups, in one order.
    """
    training = [None] * dist.get_world_size()
    dist.all_gather_object(training, tuple(dist.get_process_group_ranks(mpu.get_expert_model_parallel_group())))
    found = None
    for group in groups:
        if len(group) in (1, len(training)):
            continue
        if all(training[rank] == group for rank in group):
            made = mpu.get_expert_model_parallel_group() if group == members else None
        else:
            made = dist.new_group(list(group))
        if group == members:
            found = made
    return found
