"""Probe: of 200 random pairs of placements (experts twice on some ranks, slots permuted), those that moves do not join; and what EplbConfig
makes of each argument. Usage: probe_eplb_moves.py EPLB_CONFIG_JSON..."""

import json
import sys

import torch
from vllm_ascend.ascend_config import EplbConfig


def random_placement(generator, ranks, experts, slots):
    """For each rank the expert in each slot; every expert is somewhere."""
    while True:
        rows = [torch.randperm(experts, generator=generator)[:slots].tolist() for _ in range(ranks)]
        if len({expert for row in rows for expert in row}) == experts:
            return rows


def as_map(placement, experts):
    return torch.tensor([[row.index(one) if one in row else -1 for one in range(experts)] for row in placement])


def wrong_moves():
    from vllm_ascend.eplb.on_demand import moves_between

    generator = torch.Generator().manual_seed(0)
    ranks, experts, slots = 3, 7, 4
    wrong = []
    for case in range(200):
        current, wanted = (random_placement(generator, ranks, experts, slots) for _ in range(2))
        held = [list(rank) for rank in current]
        for move in moves_between(as_map(current, experts), as_map(wanted, experts)):
            held[move.target][move.target_slot] = current[move.source][move.source_slot]
        if held != wanted:
            wrong.append(case)
    return wrong


def answer(user_config):
    try:
        return EplbConfig(user_config).config
    except (AssertionError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


configs = [answer(json.loads(one)) for one in sys.argv[1:]]
print(json.dumps({"configs": configs} if configs else {"wrong": wrong_moves()}))
