# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
import pytest
import torch
import torch_npu  # noqa: F401

from mindspeed.core.context_parallel import utils
from mindspeed.core.context_parallel.utils import RingP2P

ODD_RINGS = [[0, 1, 2], [1, 3, 5], [0, 1, 2, 3, 4]]
EVEN_RINGS = [[0, 1], [0, 1, 2, 3], [1, 5, 2, 6]]


class FakeOp:
    def wait(self):
        pass


def run_rank(monkeypatch, rank, ring_ranks, *groups, is_backward=False):
    """Let a rank send and receive once. Returns its calls in their order: (name, other rank, group)."""
    calls = []

    def record(name):
        def call(tensor, other_rank, group):
            calls.append((name, other_rank, group))
            return FakeOp()

        return call

    monkeypatch.setattr(utils.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(utils.dist, "isend", record("send"))
    monkeypatch.setattr(utils.dist, "irecv", record("recv"))
    ring = RingP2P(ring_ranks, *groups, is_backward=is_backward)
    ring.async_send_recv(torch.zeros(4, 2, 2), torch.zeros(4, 2, 2))
    assert ring.wait() == 1
    return calls


def run_ring(monkeypatch, ring_ranks, *groups, is_backward=False):
    """Let each rank of a ring send and receive once. Returns what was sent and what was received, each as a set of
    (sender, receiver, group), and the order of calls by rank.
    """
    sent, received, order = set(), set(), {}
    for rank in ring_ranks:
        calls = run_rank(monkeypatch, rank, ring_ranks, *groups, is_backward=is_backward)
        sent |= {(rank, other, group) for name, other, group in calls if name == "send"}
        received |= {(other, rank, group) for name, other, group in calls if name == "recv"}
        order[rank] = [name for name, *_ in calls]
    return sent, received, order


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("ring_ranks", ODD_RINGS + EVEN_RINGS)
class TestRingP2P:
    def test_message_is_received_in_the_group_it_is_sent_in(self, monkeypatch, ring_ranks, is_backward):
        groups = ("group", "group for overlap")
        sent, received, _ = run_ring(monkeypatch, ring_ranks, *groups, is_backward=is_backward)
        assert len(sent) == len(ring_ranks)
        assert sent == received

    def test_send_and_recv_overlap(self, monkeypatch, ring_ranks, is_backward):
        """Each rank uses both groups, except for one rank of a ring of odd size."""
        groups = ("group", "group for overlap")
        sent, received, _ = run_ring(monkeypatch, ring_ranks, *groups, is_backward=is_backward)
        used = {rank: {group for *pair, group in sent | received if rank in pair} for rank in ring_ranks}
        both = [rank for rank in ring_ranks if used[rank] == set(groups)]
        assert len(both) >= len(ring_ranks) - len(ring_ranks) % 2

    def test_one_group(self, monkeypatch, ring_ranks, is_backward):
        sent, received, _ = run_ring(monkeypatch, ring_ranks, "group", is_backward=is_backward)
        assert sent == received
        assert {group for *_, group in sent} == {"group"}


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("ring_ranks", EVEN_RINGS)
def test_ring_of_even_size(monkeypatch, ring_ranks, is_backward):
    """Even ranks send first, and in the first group; odd ranks receive first, and send in the second."""
    sent, _, order = run_ring(monkeypatch, ring_ranks, "group", "group for overlap", is_backward=is_backward)
    group_of = {sender: group for sender, _, group in sent}
    assert [group_of[rank] for rank in ring_ranks[::2]] == ["group"] * (len(ring_ranks) // 2)
    assert [group_of[rank] for rank in ring_ranks[1::2]] == ["group for overlap"] * (len(ring_ranks) // 2)
    assert all(order[rank] == ["send", "recv"] for rank in ring_ranks[::2])
    assert all(order[rank] == ["recv", "send"] for rank in ring_ranks[1::2])
