"""Probe: verl's workers and engines, made with MindSpeed as verl makes them: what their constructors refuse, what not.

Usage: probe_hdp_workers.py CASES, on two ranks. CASES is a JSON object: name -> [who, overrides], see hdp_settings.
"""

import json
import sys

import probe_hdp_model as tiny  # first: it imports MindSpeed's adaptor
import torch.distributed as dist
from hdp_settings import ACCEPTED, composed, make, place, said
from megatron.core import mpu

CASES = json.loads(sys.argv[1])
ENGINES = ("MegatronEngine", "MindspeedEngineWithLMHead")


def has_begun():
    return dist.is_initialized() or mpu.model_parallel_is_initialized()


def refused(who, overrides):
    """The message, and whether anything was begun before it: MindSpeed's patches are all that upstream begins with."""
    before = has_begun()
    try:
        message = said(lambda: make(who, composed(*overrides)))
    except (AssertionError, RuntimeError) as error:  # of one that went on, without what it needs
        message = f"went on, until {error!r}"
    return {"said": message, "begun": has_begun() and not before}


def accepted():
    """An actor with the switch on, who starts gloo and makes the groups; then all the others with the switch off."""
    places = {"actor_rollout, on": place("actor_rollout", make("actor_rollout", composed(*ACCEPTED)))}
    ranks = mpu.get_context_parallel_world_size()
    tiny.use_parallel()
    for who in ("actor_rollout", "ref", "critic", "reward model"):
        places[who] = place(who, make(who, composed()))
    for who in ENGINES:
        mpu.destroy_model_parallel()  # an engine makes them itself
        places[who] = place(who, make(who, composed()))
    return {"ranks": ranks, "places": places}


def main():
    result = {"refused": {name: refused(*case) for name, case in CASES.items()}, "accepted": None}
    # A second start of gloo would be another case: if one of the above has started it, this one is not shown.
    if not has_begun():
        result["accepted"] = accepted()
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
