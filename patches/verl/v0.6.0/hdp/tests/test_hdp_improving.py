"""hdp, its packing: what sequences that change places gain, and layouts that are found only without padding."""

from __future__ import annotations

import pytest
from harness import Upstream
from test_hdp_packing import packing_of


@pytest.mark.on
def test_sixteen_ranks_gain_a_fifth_by_sequences_that_change_places(upstream: Upstream) -> None:
    """Halving alone ends at 10,961: the group of the longest sequences has short ones that others have time for."""
    packing = packing_of(upstream)
    lengths = [3581, 934, 7685, 13831, 1584, 1243, 970, 1597, 4738, 1920, 1244, 13385, 3474, 2053, 2739, 2026, 3930]
    lengths += [4043, 339, 8744]
    assert packing.slowest(packing.layout(lengths, 16, 7536), lengths) < 8_900


@pytest.mark.on
def test_a_layout_is_found_whose_halves_have_room_only_without_padding(upstream: Upstream) -> None:
    """On all 16 ranks padding makes 82 tokens a rank of 68; cut further, the same sequences need 74, and 74 are allowed."""
    packing = packing_of(upstream)
    lengths = [151, 30, 64, 21, 15, 101, 20, 12, 51, 18, 51, 257, 44, 80, 94, 73]
    assert packing.tokens_of_rank(lengths, 16, 1) == 82 and round(sum(lengths) / 16) == 68
    groups = packing.layout(lengths, 16, 74)
    held = [packing.tokens_of_rank([lengths[index] for index in one.sequences], one.ranks, 1) for one in groups]
    assert max(held) <= 74
    assert sorted(index for one in groups for index in one.sequences) == list(range(len(lengths)))
    assert sum(one.ranks for one in groups) == 16
