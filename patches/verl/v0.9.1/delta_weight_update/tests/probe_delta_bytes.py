"""Probe of bench_delta_weight_update: the trainer's ranks and one receiver, in processes of their own, with verl's engine and the patch's wire.

Usage: probe_delta_bytes.py MODEL RATE STEPS [SIZES]; SIZES are of verl's Megatron engine, as JSON, else its FSDP engine trains. The last process
receives. Prints bytes that rank 0 sent and seconds of each update, of changes and
of all weights in turn, and what each trainer's rank holds to compare with.
"""

import json
import os
import sys
import time

os.environ["PATCHCTL_NPUS"] = "1"
SIZES = json.loads(sys.argv[4]) if sys.argv[4:] else None
if SIZES is not None:
    import delta_megatron

import npu_training_0_9  # noqa: E402
import verl.plugin.platform.platform_npu as platform_npu  # noqa: E402

npu_training_0_9.name_the_device(platform_npu)
import delta_group  # noqa: E402
import torch  # noqa: E402
from delta_group import BACKEND, RANK, RANKS, Group, Sides, Trainer, in_a_thread, serve  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineRegistry, delta_in_place_engine  # noqa: E402

torch._C._get_accelerator = lambda: torch.device("cpu")  # both as npu_engine has them
torch.cpu.empty_cache = lambda: None
MODEL, RATE, STEPS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
TRAINERS = RANKS - 1
delta_group.BUCKET_MB = 256
CHECKSUM = delta_in_place_engine.DeltaInPlaceCheckpointEngine._checksum


def digests(on):
    """Whether flushes have digests: a whole update as upstream sends it has none."""
    delta_in_place_engine.DeltaInPlaceCheckpointEngine._checksum = staticmethod(CHECKSUM if on else lambda *given: 0)


class Receiver:
    """Takes updates off the wire, and looks at all of their values."""

    def __init__(self):
        self.engine = CheckpointEngineRegistry.new(BACKEND, bucket_size=delta_group.BUCKET_MB << 20)

    def execute_checkpoint_engine(self, method, **given):
        return getattr(self.engine, method)(**given)

    def update_weights(self, global_steps=None):
        taken = torch.zeros((), dtype=torch.int64)
        for _, tensor in self.engine.receive_weights():
            taken += tensor.view(torch.uint8).sum()
        return self.engine.held is not None

    def digests(self, on):
        digests(on)

    def forget(self):
        self.engine.held = None


class Counting(Trainer if SIZES is None else delta_megatron.MegatronTrainer):
    """A trainer that counts what it sends, and says what it holds."""

    sent = 0

    def update_weights(self, global_steps=None, mode=None):
        Counting.sent = 0
        return super().update_weights(global_steps, mode)

    def digests(self, on):
        digests(on)

    def bytes_sent(self):
        return Counting.sent

    def held(self):
        held = self.engine._delta_shard_snap if SIZES is None else self.sender._before
        return sum(one.nbytes for one in held.values())


def counted(wire):
    broadcast = wire._broadcast

    def sent(self, tensor):
        Counting.sent += tensor.nbytes
        broadcast(self, tensor)

    wire._broadcast = sent


class AwakeReplica:
    """A receiver without an engine: nothing of it sleeps."""

    def __init__(self, ranks):
        self.workers = ranks

    async def nothing(self, **given):
        pass

    abort_all_requests = resume_generation = release_kv_cache = resume_kv_cache = nothing


def drive():
    sides = Sides(list(range(TRAINERS)), [TRAINERS])
    sides.manager.replicas = [AwakeReplica([TRAINERS])]
    first = Group([0])

    def update(changes=False):
        for group in (sides.engines, sides.trainers):
            sides.ask(group, "digests", changes)
        began = time.perf_counter()
        share, _ = sides.update()
        return {"share": share, "seconds": time.perf_counter() - began, "bytes": sides.ask(first, "bytes_sent")[0]}

    update()
    found = {"changes": [], "all": []}
    for _ in range(STEPS):
        sides.ask(sides.trainers, "train")
        found["changes"].append(update(changes=True))
        sides.ask(sides.engines, "forget")
        found["all"].append(update())
    found["held"] = sides.ask(sides.trainers, "held")
    for group in (sides.engines, sides.trainers):
        group.call("stop", ((), {}))
    return found


def main():
    torch.set_num_threads(1)
    counted(delta_in_place_engine.Wire)
    owner = Counting(MODEL, TRAINERS, RATE, **(SIZES or {})) if RANK < TRAINERS else Receiver()
    thread, found = in_a_thread(drive) if RANK == 0 else (None, None)
    serve(owner)
    if thread is not None:
        thread.join()
        print(json.dumps(found[0]))
    else:
        print("null")


main()
