# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

import megatron.core.parallel_state as ps
from megatron.core.model_parallel_config import ModelParallelConfig
from tests.unit_tests.test_utilities import Utils

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class FakeGroup:
    ranks: tuple

    def size(self):
        return len(self.ranks)


@pytest.fixture
def world(monkeypatch):
    """Returns a function that makes this process a rank among `world_size`, and groups fakes.

    It gives the list of groups that a barrier was called on.
    """
    barriers = []

    def make(world_size, rank=0):
        monkeypatch.setattr(dist, 'is_initialized', lambda: True)
        monkeypatch.setattr(dist, 'get_world_size', lambda group=None: world_size)
        monkeypatch.setattr(dist, 'get_rank', lambda group=None: rank)
        monkeypatch.setattr(dist, 'barrier', lambda group=None, **_: barriers.append(group.ranks))
        monkeypatch.setattr(ps, 'create_group', lambda ranks, **_: FakeGroup(tuple(ranks)))
        return barriers

    ps.destroy_model_parallel()
    yield make
    ps.destroy_model_parallel()


def _initialize(tp_size=1, **kwargs):
    ps.initialize_model_parallel(
        tp_size, context_parallel_size=2, create_gloo_process_groups=False, **kwargs
    )


def _groups():
    """The ranks of each group there is, by its size."""
    found = {}
    for size in SIZES:
        try:
            group = ps.get_dynamic_data_context_parallel_groups(group_size=size)
        except KeyError:
            continue
        found[size] = group.ranks
    return found


def test_groups_of_every_power_of_two(world):
    barriers = world(8, rank=5)
    _initialize(dynamic_context_parallel=True)
    whole = tuple(range(8))
    assert _groups() == {1: (5,), 2: (4, 5), 4: (4, 5, 6, 7), 8: whole}
    # The communicators of groups of several ranks are made right away.
    assert barriers == [(4, 5), (4, 5, 6, 7)]


def test_tensor_parallel_ranks_have_groups_of_their_own(world):
    world(8, rank=5)
    _initialize(2, dynamic_context_parallel=True)
    assert _groups() == {1: (5,), 2: (5, 7), 4: (1, 3, 5, 7)}


def test_groups_are_destroyed_with_the_others(world):
    world(8, rank=5)
    _initialize(dynamic_context_parallel=True)
    ps.destroy_model_parallel()
    _initialize()
    assert set(_groups()) == {8}


def test_hybrid_context_parallelism_has_no_groups_of_one_rank(world):
    world(8, rank=5)
    _initialize(hybrid_context_parallel=True)
    assert set(ps._HYBRID_DP_CP_GROUPS) == {2, 4}


@pytest.mark.parametrize('world_size', [6, 12])
def test_number_of_ranks_has_to_be_a_power_of_two(world, world_size):
    world(world_size)
    with pytest.raises(ValueError, match=f"power of 2 of DPxCP ranks, .* there are {world_size}"):
        _initialize(dynamic_context_parallel=True)
    assert not ps.is_initialized()


@pytest.mark.skipif(Utils.world_size not in (2, 4, 8), reason="needs several ranks")
def test_groups_communicate():
    Utils.initialize_model_parallel(context_parallel_size=2, dynamic_context_parallel=True)
    for size in (one for one in SIZES if one <= Utils.world_size):
        group = ps.get_dynamic_data_context_parallel_groups(group_size=size)
        total = torch.tensor(Utils.rank, device=torch.cuda.current_device())
        dist.all_reduce(total, group=group)
        first = Utils.rank // size * size
        assert total == sum(range(first, first + size))
    Utils.destroy_model_parallel()


def test_setting_is_not_for_the_pipeline_schedule():
    assert not ModelParallelConfig().dynamic_context_parallel
    with pytest.raises(ValueError, match="use hybrid_context_parallel"):
        ModelParallelConfig(dynamic_context_parallel=True)
