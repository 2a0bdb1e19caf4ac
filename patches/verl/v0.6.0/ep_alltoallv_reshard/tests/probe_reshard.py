"""Probe: verl's per_tensor_generator, gathering all experts and sending each where it is kept, on the same models.

Usage: probe_reshard.py CASE..., each FAMILY:EXPERTS:TP:PP:VPP:EP_TRAIN:EP_ROLLOUT:ROUND_BYTES, on as many gloo ranks as
processes are started. EP_ROLLOUT 1 is an engine of one rank that keeps all experts, 0 only gathers; ROUND_BYTES 0 is the
default.
"""

import json
import os
import sys
import time
import weakref

import megatron_cpu
import torch
import torch.distributed as dist
from megatron.core import mpu
from probe_reshard_layouts import kept_experts
from torch.utils._python_dispatch import TorchDispatchMode

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Traffic:
    """Counts what this rank receives in collectives on tensors, in bytes; sizes of Python objects are left out."""

    def __init__(self):
        self.received = {"all_gather": 0, "broadcast": 0, "all_to_all_single": 0}
        self.rounds = 0
        self.originals = {name: getattr(dist, name) for name in self.received}
        self.nested = False

    def __enter__(self):
        for name in self.received:
            setattr(dist, name, self._counting(name))
        # Collectives on objects are made of those on tensors, which they name in their own module.
        self.objects = {name: getattr(dist, name) for name in ("all_gather_object", "broadcast_object_list")}
        for name, function in self.objects.items():
            setattr(dist, name, self._uncounted(function))
        return self

    def __exit__(self, *exc):
        for name, function in (self.originals | self.objects).items():
            setattr(dist, name, function)

    def _uncounted(self, function):
        def call(*args, **kwargs):
            self.nested = True
            try:
                return function(*args, **kwargs)
            finally:
                self.nested = False

        return call

    def _counting(self, name):
        def call(*args, **kwargs):
            if self.nested:
                return self.originals[name](*args, **kwargs)
            self.received[name] += getattr(self, f"_of_{name}")(*args, **kwargs)
            holders = [(tensor, tensor._use_count()) for tensor in _tensors(args)]
            result = self.originals[name](*args, **kwargs)
            _wait_until_let_go(holders)
            return result

        return call

    def _of_all_gather(self, outputs, tensor, group=None):
        return (dist.get_world_size(group) - 1) * tensor.nbytes

    def _of_broadcast(self, tensor, src, group=None):
        return 0 if src == dist.get_rank() else tensor.nbytes

    def _of_all_to_all_single(self, output, tensor, output_sizes, input_sizes, group=None):
        self.rounds += 1
        return sum(output_sizes) * output.itemsize


class Memory(TorchDispatchMode):
    """Bytes of the tensors made under it that are still alive, and the most there have been at once."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() in self.alive:
                self._keep(storage.data_ptr(), tensor)
            elif storage.data_ptr() not in known and storage.nbytes():
                self.alive[storage.data_ptr()] = [storage.nbytes(), 0]
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                self._keep(storage.data_ptr(), tensor)
        return result

    def _keep(self, address, tensor):
        self.alive[address][1] += 1
        weakref.finalize(tensor, self._drop, address)

    def _drop(self, address):
        self.alive[address][1] -= 1
        if not self.alive[address][1]:
            self.now -= self.alive.pop(address)[0]


def _wait_until_let_go(holders, seconds=10):
    """Until gloo's thread has dropped its references, which it does at some time after the collective returned.

    Until then it keeps the tensors alive, and the peak would be that of the scheduler.
    """
    end = time.monotonic() + seconds
    while any(tensor._use_count() > count for tensor, count in holders) and time.monotonic() < end:
        time.sleep(0.0002)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def consumed(weights):
    """What going through `weights` as vllm's load_weights does costs this rank, holding one weight at a time.

    The peak is that of the memory made since the last weight came, and of what is still held, when an expert comes.
    """
    peak = 0
    with Traffic() as traffic, Memory() as memory:
        for name, _weight in weights:
            if expert_of(name) is not None:
                peak = max(peak, memory.peak)
            memory.peak = memory.now
    return {"received": traffic.received, "rounds": traffic.rounds, "peak": peak}


def expert_of(name):
    """The expert whose weight has this name of Hugging Face's, or None."""
    _, found, rest = name.partition(".mlp.experts.")
    return int(rest.split(".")[0]) if found else None


def make_reshard(model, ep_rollout, round_bytes):
    """The exchange with engines on `ep_rollout` consecutive ranks each, as verl and vllm place them."""
    from verl.utils.ep_reshard_exchange import ExpertReshard, expert_weights
    from verl.utils.ep_reshard_setup import gather_records, rank_layout

    rank = dist.get_rank()
    engine = tuple(range(rank // ep_rollout * ep_rollout, (rank // ep_rollout + 1) * ep_rollout))
    kept = kept_experts(model.experts, ep_rollout, rank % ep_rollout)
    records = gather_records(lambda: (rank_layout(model.experts, kept, engine), expert_weights(model.chunks, model.tf)))
    return ExpertReshard(records, model.experts, **({"round_bytes": round_bytes} if round_bytes else {}))


def gather(model):
    """Upstream's path alone: which experts come, and those whose values are not what was trained."""
    gathered = dict(model.weights())
    experts = [name for name in gathered if expert_of(name) is not None]
    return {
        "experts": sorted({expert_of(name) for name in experts}),
        "weights": [len(gathered), len(experts)],
        "wrong": [name for name in experts if not _same(gathered[name], model.trained(name))],
    }


def compare(model, reshard):
    """The two paths on one model: names and values that differ for the engine of this rank, and what they cost."""
    reference = model.reference()
    gathered, sent = dict(reference.weights()), [*model.weights(reshard)]
    kept = {name for name in gathered if expert_of(name) is None or expert_of(name) in reshard.layout.holds}
    names = [name for name, _ in sent]
    return {
        "missing": sorted(kept - set(names)),
        "unasked": sorted(set(names) - kept),
        "twice": len(names) - len(set(names)),
        "differ": [name for name, weight in sent if name in kept and not _same(weight, gathered[name])],
        "wrong": [
            name for name, weight in sent if expert_of(name) is not None and not _same(weight, model.trained(name))
        ],
        "holds": reshard.layout.holds,
        "weights": len(names),
        "expert_weights": sum(expert_of(name) is not None for name in names),
        "all_expert_weights": sum(expert_of(name) is not None for name in gathered),
        "dtypes": sorted({str(weight.dtype) for name, weight in sent if expert_of(name) is not None}),
        "all_gather": consumed(reference.weights()),
        "all_to_all": consumed(model.weights(reshard)),
        "group": list(reshard.members),
    }


def _same(one, other):
    return one.dtype == other.dtype and torch.equal(one, other)


def planned(model, reshard):
    """Bytes that the plan says this rank receives, and those that gathering does; of an expert, and by weight."""
    layout, held = reshard.layout, set(reshard.layout.holds)
    shapes = (
        2 * model.tf.moe_ffn_hidden_size * model.tf.hidden_size,
        model.tf.hidden_size * model.tf.moe_ffn_hidden_size,
    )
    layers = moe_layers(model)
    stages = mpu.get_pipeline_model_parallel_world_size()
    gather = sent = 0
    for stage, count in layers.items():
        own = set(layout.owns) if stage == layout.stage else set()
        for numel in shapes:
            sent += count * 2 * numel * len(held - own)
            broadcast = len(layout.owns) if stage != layout.stage and stages > 1 else 0
            gather += count * 2 * numel * (model.experts - len(layout.owns) + broadcast)
    return {"all_gather": gather, "all_to_all": sent, "expert_bytes": 2 * shapes[0]}


def moe_layers(model):
    """How many MoE layers each pipeline stage has."""
    first = ("mlp.experts.linear_fc1.weight0", "mlp.experts.weight1")
    mine = sum(name.endswith(first) for chunk in model.chunks for name in chunk.state_dict())
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, (mpu.get_pipeline_model_parallel_rank(), mine))
    return dict(sorted(counts))


def run(case, store):
    from probe_reshard_models import Model

    family, *numbers = case.split(":")
    # Every group of gloo has threads, and Megatron makes some twenty a layout: they end with the case.
    dist.init_process_group("gloo", store=dist.PrefixStore(case, store), rank=RANK, world_size=RANKS)
    experts, tp, pp, vpp, ep_train, ep_rollout, round_bytes = map(int, numbers)
    mpu.initialize_model_parallel(
        tp,
        pp,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
        expert_model_parallel_size=ep_train,
        expert_tensor_parallel_size=1,
    )
    try:
        model = Model(family, experts, vpp)
        if not ep_rollout:
            return gather(model)
        reshard = make_reshard(model, ep_rollout, round_bytes)
        return compare(model, reshard) | {"planned": planned(model, reshard)}
    finally:
        mpu.destroy_model_parallel()
        dist.destroy_process_group()
        # Megatron leaves the attention backend of a model in the environment, and refuses another one there.
        for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
            os.environ.pop(name, None)


def main():
    megatron_cpu.adapt_megatron()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, RANKS, is_master=RANK == 0)
    results = {case: run(case, store) for case in sys.argv[1:]}
    store.set(f"done{RANK}", "")
    store.wait([f"done{rank}" for rank in range(RANKS)])  # the first rank serves the store
    print(json.dumps(results))


main()
