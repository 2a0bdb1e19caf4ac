# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

import random
from itertools import groupby

import pytest

from megatron.core import parallel_state


@pytest.fixture
def schedule(monkeypatch):
    """Returns a function that gives micro-batches; samples are numbered by their lengths."""
    from megatron.core.datasets.data_schedule import DefaultDynamicCPScheduler

    def make(ranks, max_tokens, lengths, tp_size=1, **kwargs):
        monkeypatch.setattr(parallel_state, 'get_tensor_model_parallel_world_size', lambda: tp_size)
        scheduler = DefaultDynamicCPScheduler(max_tokens, cp_size=1, dp_size=ranks, **kwargs)
        return scheduler.get_groups_and_subsamples(list(enumerate(lengths)))

    return make


def _blocks(micro_batch):
    """First rank, number of ranks and samples of each run of ranks that share their samples."""
    blocks, first = [], 0
    for samples, run in groupby(micro_batch):
        size = len(list(run))
        blocks.append((first, size, samples))
        first += size
    return blocks


@pytest.mark.parametrize(
    ('ranks', 'tp_size', 'max_tokens'),
    [(1, 1, 16), (2, 1, 7), (4, 1, 16), (4, 2, 24), (8, 1, 50), (8, 4, 32), (32, 2, 40)],
)
@pytest.mark.parametrize('seed', range(5))
def test_micro_batches_fit_groups_and_memory(schedule, ranks, tp_size, max_tokens, seed):
    draw = random.Random(seed)
    limits = [max_tokens * (ranks if draw.random() < 0.2 else 1) for _ in range(40)]
    lengths = [draw.randint(1, limit) for limit in limits]
    seen = []
    for micro_batch in schedule(ranks, max_tokens, lengths, tp_size):
        assert len(micro_batch) == ranks
        for first, size, samples in _blocks(micro_batch):
            assert samples, "a rank is idle"
            # There is a process group of these ranks.
            assert size & (size - 1) == 0 and first % size == 0
            align = tp_size * (2 * size if size > 1 else 1)
            tokens = sum(-(-lengths[sample] // align) * align // size for sample in samples)
            # The padding of a sequence that all ranks share may exceed the limit.
            assert tokens <= max_tokens or (size == ranks and len(samples) == 1)
            seen += samples
    assert sorted(seen) == list(range(len(lengths)))


def test_sequences_have_as_many_ranks_as_they_need(schedule):
    """60 and 33 tokens need all four ranks, 27 and 20 two of them, and the others one."""
    assert schedule(4, 16, [60, 5, 33, 12, 3, 9, 20, 16, 7, 27]) == [
        [[0], [0], [0], [0]],
        [[2], [2], [2], [2]],
        [[9], [9], [6, 8], [6, 8]],
        [[7], [3], [5], [1, 4]],
    ]


def test_few_sequences_are_spread_over_all_ranks(schedule):
    assert schedule(4, 16, []) == []
    assert schedule(4, 16, [3]) == [[[0]] * 4]
    assert schedule(4, 16, [3, 9]) == [[[1], [1], [0], [0]]]


def test_what_cannot_be_scheduled_is_refused(schedule):
    with pytest.raises(ValueError, match="65 tokens needs more than 4 ranks of 16 tokens"):
        schedule(4, 16, [3, 65])
    with pytest.raises(ValueError, match="has to be a power of 2, not 6"):
        schedule(6, 16, [3])
    with pytest.raises(NotImplementedError, match="virtual pipeline stages"):
        schedule(4, 16, [3], microbatch_group_size_per_vp_stage=2)
