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
"""Who sends which expert to whom, when training and rollout place a model's experts on the same ranks differently.

Pure: layouts in, transfers out. It imports neither torch nor the rest of verl, every rank computes the same from the
same layouts, and `ep_reshard_exchange` executes the result.

Ranks are global. A rank trains the experts that it `owns` in the MoE layers of its pipeline stage, and its rollout
engine keeps those that it `holds` in all MoE layers. Where a rank owns what it holds, nothing is sent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankLayout:
    """What one rank trains and what its rollout engine keeps.

    Args:
        stage: pipeline stage in training.
        owns: ids of the experts that it trains, in the order of Megatron's local index.
        holds: ids of the experts that its engine keeps, each once.
        engine: the global ranks of the engine's expert parallel group; the rank alone when it keeps all experts.
        node: name of the machine; transfers within one are preferred.
    """

    stage: int
    owns: tuple[int, ...]
    holds: tuple[int, ...]
    engine: tuple[int, ...]
    node: str = ""


@dataclass(frozen=True, order=True)
class Transfer:
    """One expert of a layer of `stage` on its way from a rank that trains it to one whose engine keeps it."""

    source: int
    target: int
    stage: int
    expert: int


def check_layouts(layouts: Sequence[RankLayout], num_experts: int) -> None:
    """Raises ValueError unless every stage trains every expert, and every engine keeps each expert exactly once.

    Args:
        layouts: one for each global rank.
        num_experts: experts in an MoE layer, without redundant ones.
    """
    experts = list(range(num_experts))
    for stage in sorted({layout.stage for layout in layouts}):
        trained = {expert for layout in layouts if layout.stage == stage for expert in layout.owns}
        if sorted(trained) != experts:
            raise ValueError(f"pipeline stage {stage} trains experts {sorted(trained)}, the model has {num_experts}")
    for rank, layout in enumerate(layouts):
        if rank not in layout.engine or any(layouts[other].engine != layout.engine for other in layout.engine):
            raise ValueError(f"rank {rank} says that its engine is on ranks {list(layout.engine)}, others disagree")
        kept = sorted(expert for other in layout.engine for expert in layouts[other].holds)
        if kept != experts:
            raise ValueError(
                f"the rollout engine on ranks {list(layout.engine)} keeps experts {kept}, not each of {num_experts} "
                "once: redundant or unevenly replicated experts cannot be served by ep_alltoallv_reshard"
            )


def route(layouts: Sequence[RankLayout], stage: int) -> list[Transfer]:
    """The transfers of an MoE layer of `stage`: every expert that a rank holds and does not train comes to it once.

    Of the ranks that train an expert (data parallel replicas) the receiver gets it from one on its own node, among
    those from the one that has sent least so far, among those from the nearest.
    """
    owners = defaultdict(list)
    for rank, layout in enumerate(layouts):
        if layout.stage == stage:
            for expert in layout.owns:
                owners[expert].append(rank)
    sent: Counter[int] = Counter()
    transfers = []
    for expert, target in sorted((expert, rank) for rank, layout in enumerate(layouts) for expert in layout.holds):
        if target in owners[expert]:
            continue
        source = min(
            owners[expert],
            key=lambda rank: (layouts[rank].node != layouts[target].node, sent[rank], abs(rank - target), rank),
        )
        sent[source] += 1
        transfers.append(Transfer(source, target, stage, expert))
    return transfers


def exchange_groups(ranks: int, transfers: Iterable[Transfer]) -> list[tuple[int, ...]]:
    """The smallest sets of ranks between which nothing is sent, in ascending order; they partition `range(ranks)`."""
    leader = list(range(ranks))

    def find(rank: int) -> int:
        while leader[rank] != rank:
            leader[rank] = rank = leader[leader[rank]]
        return rank

    for transfer in transfers:
        low, high = sorted((find(transfer.source), find(transfer.target)))
        leader[high] = low
    groups = defaultdict(list)
    for rank in range(ranks):
        groups[find(rank)].append(rank)
    return sorted(map(tuple, groups.values()))


def single_rounds(transfers: Iterable[Transfer]) -> list[list[Transfer]]:
    """Rounds in which a rank sends at most one expert and receives at most one: as few as there can be.

    The fewest are as many as the busiest rank has experts to send, or to receive. It is König's colouring of the
    edges of a bipartite graph: when the two ends of a transfer have no free round in common, the transfers that
    alternate between a round free here and a round free there change places.
    """
    sending: dict[int, dict[int, Transfer]] = defaultdict(dict)
    receiving: dict[int, dict[int, Transfer]] = defaultdict(dict)
    for transfer in sorted(transfers):
        here, there = _first_free(sending[transfer.source]), _first_free(receiving[transfer.target])
        if here != there:
            _swap_path(sending, receiving, transfer.target, here, there)
        sending[transfer.source][here] = receiving[transfer.target][here] = transfer
    rounds = defaultdict(list)
    for source in sorted(sending):
        for number, transfer in sending[source].items():
            rounds[number].append(transfer)
    return [rounds[number] for number in sorted(rounds)]


def _first_free(taken: dict[int, Transfer]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _swap_path(
    sending: dict[int, dict[int, Transfer]],
    receiving: dict[int, dict[int, Transfer]],
    target: int,
    here: int,
    there: int,
) -> None:
    """Frees round `here` at `target`, where `there` is free, along the path that alternates between the two."""
    path, rank, number, ends = [], target, here, (receiving, sending)
    while transfer := ends[0][rank].get(number):
        path.append((transfer, number))
        rank = transfer.source if ends[0] is receiving else transfer.target
        number = there if number == here else here
        ends = ends[::-1]
    for transfer, number in path:
        del sending[transfer.source][number], receiving[transfer.target][number]
    for transfer, number in path:
        other = there if number == here else here
        sending[transfer.source][other] = receiving[transfer.target][other] = transfer


def merge_rounds(rounds: Sequence[Sequence[Transfer]], width: int) -> list[list[Transfer]]:
    """Every `width` rounds made one, in which a rank sends and receives at most `width` experts."""
    return [
        sorted(transfer for one in rounds[first : first + width] for transfer in one)
        for first in range(0, len(rounds), width)
    ]


def splits(one_round: Iterable[Transfer], rank: int, group: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many experts `rank` sends to, and receives from, each rank of `group` in a round, in the group's order."""
    one_round = list(one_round)
    to = Counter(transfer.target for transfer in one_round if transfer.source == rank)
    origin = Counter(transfer.source for transfer in one_round if transfer.target == rank)
    return [to[other] for other in group], [origin[other] for other in group]
