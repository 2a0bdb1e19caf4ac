"""Probe: updates of changed weights between trainers and an engine, against whole ones.

Usage: probe_delta_weight_update.py STANDIN MODEL TRAINERS STEPS [SIZES]   (SIZES: of verl's Megatron engine, as JSON; else its FSDP engine trains)

The first TRAINERS processes train, the others are an engine with as many ranks of tensor (and expert) parallelism. Prints shares of elements
that were sent in each update, and whether all weights of the engine are then those that a whole update brings: after STEPS steps of the optimizer;
after an update of nothing; when a weight was written by somebody else before; when a bit was turned on the way; a step after a replica joined. Of
Megatron's, how many weights are float32, and how many of these the engine has otherwise.
"""

import importlib
import json
import os
import sys

STANDIN, MODEL, TRAINERS, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
SIZES = json.loads(sys.argv[5]) if sys.argv[5:] else None
TRAINS = int(os.environ["RANK"]) < TRAINERS
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["PATCHCTL_NPUS"] = "1"

if TRAINS and SIZES is not None:
    import delta_megatron

import npu_training_0_9  # noqa: E402
import verl.plugin.platform.platform_npu as platform_npu  # noqa: E402

npu_training_0_9.name_the_device(platform_npu)
if SIZES is None or not TRAINS:
    importlib.import_module(STANDIN).prepare(*(["A2"] if STANDIN != "npu_engine_0_23" else []))

import torch  # noqa: E402
from delta_group import RANK, RANKS, Engine, Sides, Trainer, in_a_thread, serve  # noqa: E402


def drive():
    sides = Sides(list(range(TRAINERS)), list(range(TRAINERS, RANKS)))
    found = {"shares": [], "equal": {}}

    def whole():
        """All weights, and whether the engine had them."""
        before = sides.state()
        sides.ask(sides.engines, "forget")
        share, _ = sides.update()
        return [share, before == sides.state()]

    found["first"] = sides.update()
    first = sides.state()
    for _ in range(STEPS):
        sides.ask(sides.trainers, "train")
        found["shares"].append(sides.update()[0])
    changed = sides.state()
    found["of"] = [sum(one[name] != other[name] for name in one) for one, other in zip(first, changed, strict=True)]
    found["tensors"] = [len(one) for one in changed]
    found["equal"]["after steps"] = whole()
    found["nothing"] = sides.update()
    found["equal"]["after nothing"] = whole()
    for spoil, group in (("spoil", sides.engines), ("spoil_a_flush", sides.trainers)):
        sides.ask(sides.trainers, "train")
        sides.ask(group, spoil)
        found[spoil] = sides.update()[0]
        found["equal"][spoil] = whole()
    sides.ask(sides.trainers, "train")
    found["goes on"] = sides.update()[0]
    found["equal"]["goes on"] = whole()
    sides.ask(sides.trainers, "train")
    sides.ask(sides.engines, "forget")
    found["joined"] = sides.update()[0]
    sides.ask(sides.trainers, "train")
    found["goes on then"] = sides.update()[0]
    if SIZES is not None:
        exact, had = sides.ask(sides.trainers, "float32")[0], sides.state()[0]
        found["float32"] = [len(exact), sum(had[name] != one for name, one in exact.items())]
    found["equal"]["joined"] = whole()
    for group in (sides.engines, sides.trainers):
        group.call("stop", ((), {}))
    return found


def owner_of_this_rank():
    if not TRAINS:
        experts = "experts" in STANDIN or "latent" in STANDIN
        return Engine(MODEL, TRAINERS, RANKS - TRAINERS, enable_expert_parallel=experts)
    return (
        Trainer(MODEL, TRAINERS, 1e-5)
        if SIZES is None
        else delta_megatron.MegatronTrainer(MODEL, TRAINERS, 1e-5, **SIZES)
    )


def main():
    owner = owner_of_this_rank()
    if RANK == 0:
        thread, found = in_a_thread(drive)
    serve(owner)
    torch.distributed.destroy_process_group()
    if RANK == 0:
        thread.join()
        print(json.dumps(found[0]))
    else:
        print("null")


main()
