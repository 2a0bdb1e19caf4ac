# Part of patchctl's patch delta_weight_update; not in upstream verl.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Sparse weight updates over whatever collectives the device has: the engine delta_in_place of verl's checkpoint engines.

Trainer's side, buckets and gathering are upstream's delta_sharded. Instead of cupy and NCCL it sends over gloo where the platform's own backend
is gloo, else over the communicator that verl's HCCL engine uses. A receiver yields named tensors: whole weights, or pieces of changes that
verl.workers.rollout.vllm_rollout.delta_in_place writes. All sides hold the token of the update they took last; where one differs from the
trainer's, as in a replica that has just joined, the next update sends all weights.
"""

import json
import pickle
import uuid
from datetime import timedelta

import ray
import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore, get_rank, get_world_size, group

from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl.checkpoint_engine.delta_checkpoint_engine import DeltaShardedCheckpointEngine
from verl.checkpoint_engine.delta_sync.sparse_gather import shard_delta_indices
from verl.utils.delta_in_place import BEGINS, digest_of_pairs
from verl.utils.device import get_device_id, get_device_name, get_nccl_backend, get_torch_device
from verl.utils.distributed import stateless_init_process_group
from verl.utils.net_utils import get_free_port

TIMEOUT = timedelta(minutes=30)
FLOAT32 = "#float32"
POSITIONS = 1 << 31  # upstream's are int32


class Wire:
    """What rank 0 sends goes to all others: objects over gloo, tensors over the device's own collectives."""

    def __init__(self, address, rank: int, size: int, store: TCPStore | None = None) -> None:
        host, port, device_port = address
        self.size = size
        store = store or TCPStore(host, port, None, False, TIMEOUT, False)
        self._gloo = ProcessGroupGloo(store, rank, size, TIMEOUT)
        own = get_nccl_backend() != "gloo"
        self._device = stateless_init_process_group(host, device_port, rank, size, get_device_id()) if own else None

    def close(self) -> None:
        """Gives back the device's communicator, which nothing else ends."""
        device, self._device = self._device, None
        if hasattr(device, "destroy"):
            device.destroy()
        elif device is not None:  # vllm-ascend's
            device.hccl.hcclCommDestroy(device.comm)

    def send(self, tensor: torch.Tensor) -> None:
        """Broadcasts uint8 [bytes], the same size on all sides."""
        if not tensor.numel():
            return
        if self._device is None:
            self._broadcast(tensor)
        else:
            self._device.broadcast(tensor, src=0)
            get_torch_device().synchronize()

    def receive(self, size: int) -> torch.Tensor:
        tensor = torch.empty(size, dtype=torch.uint8, device=get_device_name())
        self.send(tensor)  # a broadcast is called alike on both sides
        return tensor

    def send_object(self, value) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        self._broadcast(torch.tensor([data.numel()]))
        self._broadcast(data)

    def receive_object(self):
        size = torch.zeros(1, dtype=torch.int64)
        self._broadcast(size)
        data = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(data)
        return pickle.loads(data.numpy().tobytes())

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        self._gloo.broadcast([tensor], options).wait()


class NamedAsExported:
    """A training engine whose changes have the names of its whole export, which takes packed experts apart (unfuse_moe_params).

    Raises:
        ValueError: for experts packed in so large a tensor that positions in it wrap, before anything is sent.
    """

    def __init__(self, engine) -> None:
        self._engine = engine
        model_type = engine.model_config.hf_config.model_type
        for name, weight in engine.module.named_parameters():
            if parts_of_experts(name, weight.shape, model_type) and weight.shape.numel() >= POSITIONS:
                raise ValueError(
                    f"delta_in_place: {name} has 2^31 elements or more, and their positions are int32; use another "
                    "checkpoint engine, or train with megatron"
                )

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def get_per_tensor_param_delta_shard(self):
        entries, peft_config = self._engine.get_per_tensor_param_delta_shard()
        model_type = self._engine.model_config.hf_config.model_type
        return ((*unfused(entry, model_type), group) for *entry, group in entries), peft_config


def unfused(entry, model_type: str):
    """([(name, shape)], dtype, counts [1], positions [n], values [n]) of a packed expert weight as those of its parts; others as they are."""
    slots, dtype, _, where, values = entry
    name, shape = slots[0]
    parts = parts_of_experts(name, shape, model_type)
    if not parts:
        return entry
    base = name.rpartition(".")[0]
    part = (shape[1] // len(parts), shape[2])
    slots = [(f"{base}.{expert}.{one}.weight", part) for expert in range(shape[0]) for one in parts]
    size = part[0] * part[1]
    slot = where.long() // size
    order = slot.argsort(stable=True)  # for a shard that is cut elsewhere than in its first dimension
    return slots, dtype, slot.bincount(minlength=len(slots)).cpu(), (where % size)[order], values[order]


def parts_of_experts(name: str, shape, model_type: str) -> tuple[str, ...]:
    """What a tensor of packed experts is exported as for each expert; empty for another weight."""
    base, _, kind = name.rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind, ())
    return parts if model_type != "gpt_oss" and base.endswith(".mlp.experts") and len(shape) == 3 else ()


class ComparedAsExported:
    """A Megatron engine, whose shards are laid out otherwise than what is sent: each rank compares its share of every exported weight.

    All ranks export the same weights, in the same order. An expert's bias is float32 in the engine too: vectors of that type are sent as
    pairs of bfloat16, bit by bit, under a name that ends in FLOAT32.

    Args:
        dtype: in which other weights are sent and compared.
        before: the shares of the last update by name, on the host; of all of a model's bytes one part a rank.
    """

    def __init__(self, engine, dtype: torch.dtype, before: dict[str, torch.Tensor]) -> None:
        self._engine, self._dtype, self._before = engine, dtype, before

    def get_per_tensor_param(self):
        return self._noted(), None

    def prime_delta_snapshots(self) -> None:
        """What was exported is noted on the way: to export it again would gather all weights once more."""

    def get_per_tensor_param_delta_shard(self):
        return self._changes(), None

    def _noted(self):
        for name, tensor in self._exported():
            self._before[name] = self._share(tensor)[1].to("cpu", copy=True)
            yield (f"{name}{FLOAT32}", tensor.view(torch.bfloat16)) if tensor.dtype == torch.float32 else (name, tensor)

    def _changes(self):
        for name, tensor in self._exported():
            start, share = self._share(tensor)
            where, values = shard_delta_indices(share, self._before[name].to(share.device), start)
            self._before[name].copy_(share)
            shape = tuple(tensor.shape)
            if tensor.dtype == torch.float32:
                name, shape, values = f"{name}{FLOAT32}", (2 * len(tensor),), values.view(torch.bfloat16)
                where = torch.stack((2 * where, 2 * where + 1), dim=-1).view(-1)
            kind = str(values.dtype).removeprefix("torch.")
            yield [(name, shape)], kind, torch.tensor([len(where)]), where.to(torch.int32), values, group.WORLD

    def _exported(self):
        """Each weight once: of a model whose output is tied to its embedding, the first and the last of several pipeline stages have it."""
        weights, _ = self._engine.get_per_tensor_param()
        seen = set()
        for name, tensor in weights:
            if name in seen:
                continue
            seen.add(name)
            tensor = tensor.detach().contiguous()
            vector = tensor.dtype == torch.float32 and tensor.dim() == 1
            yield name, tensor.to(self._dtype) if tensor.is_floating_point() and not vector else tensor

    @staticmethod
    def _share(tensor):
        """(where this rank's share begins in the flattened weight, the share [n])."""
        flat = tensor.view(-1)
        start, end = (flat.numel() * rank // get_world_size() for rank in (get_rank(), get_rank() + 1))
        return start, flat[start:end]


@CheckpointEngineRegistry.register("delta_in_place")
class DeltaInPlaceCheckpointEngine(DeltaShardedCheckpointEngine):
    """Sends what changed since the last update, or all weights where somebody does not hold the last one.

    Args:
        bucket_size: bytes of a flush, of which two are held on the trainer's rank 0 and one by a receiver.
        rollout_dtype: in which all weights are sent and compared.
        batch_gather: parameters whose changes are gathered at a time.
    """

    wire_format = "named_tensors"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        rollout_dtype: torch.dtype = torch.bfloat16,
        batch_gather: int = 32,
    ) -> None:
        # Not the constructors above, which start what NCCL needs.
        self.bucket_size, self.is_master, self.rollout_dtype = bucket_size, is_master, rollout_dtype
        self.encoding, self.batch_gather, self.verify_every = "indices", batch_gather, 0
        self._shard_seeded = False
        self.rank = self.wire = self.held = self._store = None
        self._before: dict[str, torch.Tensor] = {}

    def prepare(self) -> dict:
        """What this side holds, how many its wire connects, and where the others find the trainer's rank 0: its address and two ports."""
        address = None
        if self.is_master:
            ip = ray.util.get_node_ip_address().strip("[]")
            # Listens from here on: a port that is only free now may be another's by the time of init_process_group.
            self._store = TCPStore(ip, 0, None, True, TIMEOUT, False)
            address = (ip, self._store.port, get_free_port(ip)[0])
        return {"held": self.held, "size": self.wire and self.wire.size, "address": address}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]):
        held, size = metadata[0]["held"], rollout_world_size + 1
        whole = held is None or any(one["held"] != held for one in metadata[actor_wg_world_size:])
        whole = whole or metadata[0]["size"] != size  # a replica has left
        ranks = [0] + [-1] * (actor_wg_world_size - 1), list(range(1, size))
        common = {"size": size, "address": metadata[0]["address"], "whole": whole}
        return tuple(
            {"rank": of_side} | {key: [value] * len(of_side) for key, value in common.items()} for of_side in ranks
        )

    def init_process_group(self, rank: int, size: int, address: tuple, whole: bool) -> None:
        """Connects rank 0 with the receivers. The trainer's other ranks have -1; all of them send everything where `whole` says so."""
        self.rank = rank
        self._shard_seeded = self._shard_seeded and not whole
        if rank >= 0 and (whole or self.wire is None):
            if self.wire is not None:
                self.wire.close()
            self.wire = Wire(address, rank, size, self._store)

    def finalize(self) -> None:
        """Nothing is held between updates but the connection."""

    async def send_weights(self, engine, global_steps: int | None = None) -> dict[str, float] | None:
        self.held = None  # until all have been sent
        if self.is_master:
            self.wire.send_object({"whole": not self._shard_seeded})
        if engine.engine_config.strategy == "megatron":
            engine = ComparedAsExported(engine, self.rollout_dtype, self._before)
        else:
            engine = NamedAsExported(engine)
        metrics = await super().send_weights(engine, global_steps)
        get_torch_device().synchronize()  # snapshots are copied without waiting
        if self.is_master:
            self.held = uuid.uuid4().hex
            self.wire.send_object({"held": self.held})
        return metrics

    def _publish_flush(self, flush, first: bool, is_last: bool) -> None:
        self._publish(flush.params, flush.positions_cpu, flush.values_gpu, flush.checksum)

    def _publish_values_flush(self, params, values, is_last: bool, verify: bool = False) -> None:
        empty = torch.empty(0, dtype=torch.uint8, device=values.device)
        self._publish(params, empty, values, self._checksum(empty, values))

    def _publish(self, params, positions, values, checksum) -> None:
        sizes = positions.numel(), values.nbytes
        kind = str(values.dtype).removeprefix("torch.")
        params = [(one.name, tuple(one.shape), one.val_start, one.val_end) for one in params]
        self.wire.send_object({"params": params, "sizes": sizes, "dtype": kind, "checksum": checksum})
        self.wire.send(positions.contiguous())
        self.wire.send(values.contiguous().view(torch.uint8))

    def _publish_terminal(self, first: bool) -> None:
        pass  # the token that is held ends each update

    def _release_staging_pool(self, phase: str) -> None:
        pass  # there is none

    @staticmethod
    def _checksum(positions: torch.Tensor, values: torch.Tensor) -> int:
        return int(digest_of_pairs(positions.view(torch.int32), values))

    def receive_weights(self, global_steps: int | None = None):
        """Yields (name, tensor): BEGINS, then the weights, or pieces for delta_in_place.write of vllm_rollout.

        A piece is int32: positions in the flattened weight, then values of `dtype` with zeros up to four bytes. Its name is JSON with the
        weight's `name` and `shape`, `dtype`, the number of values `count` and the place `at` of the first among the flush's values.
        """
        self.held, sound = None, True
        message = self.wire.receive_object()
        yield BEGINS, torch.tensor([message["whole"]], dtype=torch.uint8, device=get_device_name())
        while "held" not in (flush := self.wire.receive_object()):
            positions, values = map(self.wire.receive, flush["sizes"])
            values = values.view(getattr(torch, flush["dtype"]))
            sound = sound and self._checksum(positions, values) == flush["checksum"]
            if not sound:
                continue  # what is left is taken off the wire, and then all comes again
            for name, shape, start, end in flush["params"]:
                if message["whole"]:
                    own = values[start:end]
                    vector = name.endswith(FLOAT32)
                    yield name.removesuffix(FLOAT32), own.clone().view(torch.float32) if vector else own.view(shape)
                else:
                    yield from self._pieces(name, shape, positions.view(torch.int32), values, range(start, end))
        self.held = flush["held"] if sound else None

    def _pieces(self, name, shape, positions, values, where):
        """The changes of a weight in pieces of at most half a bucket, which the engine's worker receives in buckets too."""
        positions, values, at = positions[where.start : where.stop], values[where.start : where.stop], where.start
        if name.endswith(FLOAT32):
            name, shape = name.removesuffix(FLOAT32), (shape[0] // 2,)
            positions, values = positions[::2] // 2, values.clone().view(torch.float32)
        most = max(1, self.bucket_size // (2 * (4 + values.element_size())))
        for start in range(0, len(values), most):
            own = values[start : start + most]
            data = own.contiguous().view(torch.uint8)
            padded = torch.nn.functional.pad(data, (0, -data.numel() % 4)).view(torch.int32)
            label = {"name": name, "shape": shape, "dtype": str(values.dtype).removeprefix("torch.")}
            label |= {"count": len(own), "at": at + start}
            yield json.dumps(label), torch.cat((positions[start : start + most], padded))
