"""Probe: what the entry points of verl say to a configuration before Ray starts.

Usage: probe_rebalance_refusals.py CASE...   (a JSON list of overrides, of entry_points.py). Prints for each case the error, null where the
settings are taken. "another balancer" is what a manager says that has one of its own.
"""

import asyncio
import json
import sys

from entry_points import composed, refused
from verl.workers.rollout import llm_server

ANOTHER = "another balancer"


class Another(llm_server.GlobalRequestLoadBalancer):
    """A recipe's own."""


def refused_by_the_manager(settings):
    rollout = composed(settings)[1].actor_rollout_ref.rollout
    manager = llm_server.LLMServerManager.__new__(llm_server.LLMServerManager)
    manager.rollout_config, manager._load_balancer_cls = rollout, Another
    manager.server_addresses = manager.server_handles = []
    try:
        asyncio.run(manager._init_global_load_balancer())
    except ValueError as error:
        return str(error)
    return None


def answer(settings):
    if ANOTHER in settings:
        return refused_by_the_manager([one for one in settings if one != ANOTHER])
    return refused(settings)


print(json.dumps([answer(json.loads(case)) for case in sys.argv[1:]]))
