"""Probe: bytes of the experts' part of a layer, whole and in chunks, at growing imbalance.

Usage: probe_chunked_memory.py MODEL SETTINGS, one process a rank of the expert parallel group; MODEL is any MoE model,
its sizes are not used. SETTINGS: `tokens` a rank, `hidden`, `width`, `experts`, `k`, `picks` (how many of its k experts
each token has on rank 0, a list) and `chunks` (sizes, 0 for none).

Bytes are those of tensors on this CPU that exist between operators, counted by a TorchDispatchMode: results of NPU
operators count, what their stand-ins need inside does not, nor an NPU operator's workspace, HCCL's buffers and what an
allocator loses. Inputs and weights are not counted; the output is.
"""

import json
import sys
import time

import npu_experts_0_23

npu_experts_0_23.prepare(device="A3")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: E402
from chunked_moe_ranks import RANK, RANKS, make_layer, start  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes  # noqa: E402
from vllm.forward_context import get_forward_context  # noqa: E402
from vllm_ascend.ascend_forward_context import MoECommType, set_ascend_forward_context  # noqa: E402

OPERATORS = ("npu_grouped_matmul", "npu_swiglu", "npu_moe_token_permute", "npu_moe_token_unpermute")


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made since the start have held at a time."""

    def __init__(self):
        super().__init__()
        self.made, self.known, self.peak = {}, set(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [one for one in [*args, *(kwargs or {}).values()] if isinstance(one, torch.Tensor)]
        # What was not made here was there before.
        self.known |= {one.untyped_storage()._cdata for one in given} - self.made.keys()
        result = function(*args, **(kwargs or {}))
        self.count(result)
        return result

    def count(self, result):
        for one in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in self.known:
                storage = one.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage)
        self.made = {key: ref for key, ref in self.made.items() if not ref.expired()}
        self.peak = max(self.peak, sum(_bytes(ref) for ref in self.made.values()))


def _bytes(ref):
    storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
    return storage.nbytes() if storage is not None else 0


def as_one_operator(function):
    """`function` as an NPU has it: its results are made, nothing else can be seen."""

    def called(*args, **kwargs):
        with _disable_current_modes():
            result = function(*args, **kwargs)
        if isinstance(COUNTING[-1], LiveBytes):
            COUNTING[-1].count(result)
        return result

    return called


COUNTING = [None]
exchange = dist.all_to_all_single


def exchanged(*args, **kwargs):
    """gloo's thread holds the tensors of an exchange for a moment after it has ended; an NPU's stream does not."""
    work = exchange(*args, **kwargs)
    work.wait()
    time.sleep(0.02)
    return work


dist.all_to_all_single = exchanged


def routing(settings, picks):
    """Experts of each token: `picks` of them on rank 0, the others anywhere else; all different."""
    generator = torch.Generator().manual_seed(100 + RANK)
    tokens, k, own = settings["tokens"], settings["k"], settings["experts"] // RANKS
    here = torch.rand(tokens, own, generator=generator).argsort(1)[:, :picks]
    elsewhere = torch.rand(tokens, settings["experts"] - own, generator=generator).argsort(1)[:, : k - picks] + own
    weights = torch.full((tokens, k), 1 / k)
    return {"topk_ids": torch.cat([here, elsewhere], 1).int(), "topk_weights": weights}


def run(config, layer, settings, kind, picks, size):
    """Peak bytes and output for one way to take the tokens."""
    from vllm_ascend.ops.fused_moe.moe_comm_method import get_moe_comm_method
    from vllm_ascend.ops.fused_moe.moe_runtime_args import build_fused_experts_input
    from vllm_ascend.quantization.quant_type import QuantType

    comm = get_moe_comm_method(kind)
    comm.chunk_size = size
    hidden = torch.randn(settings["tokens"], settings["hidden"], generator=torch.Generator().manual_seed(RANK))
    given = routing(settings, picks) | {"w1": layer.w13_weight, "w2": layer.w2_weight, "expert_map": layer._expert_map}
    given |= {"quant_type": QuantType.NONE, "dynamic_eplb": False}
    with set_ascend_forward_context(None, config, num_tokens=settings["tokens"] * RANKS):
        get_forward_context().moe_comm_type, get_forward_context().moe_comm_method = kind, comm
        with torch.inference_mode():
            COUNTING.append(LiveBytes())
            with COUNTING[-1]:
                result = comm.fused_experts(build_fused_experts_input(hidden_states=hidden, **given))
            peak = COUNTING.pop().peak
    return {"peak": peak, "rows": int(result.expert_tokens.sum())}, result.routed_out


def main():
    settings = json.loads(sys.argv[2])
    config = start(sys.argv[1])
    for name in OPERATORS:
        setattr(torch_npu, name, as_one_operator(getattr(torch_npu, name)))
    layer = make_layer(config, settings)
    found = []
    cases = [(MoECommType.ALLTOALL, picks) for picks in settings["picks"]]
    for kind, picks in [*cases, (MoECommType.ALLGATHER, settings["picks"][0])]:
        whole = None
        for size in settings["chunks"]:
            one, out = run(config, layer, settings, kind, picks, size)
            whole = out if whole is None else whole
            difference = ((out - whole).abs().max() / whole.abs().max().clamp(min=1e-9)).item()
            found.append(one | {"kind": kind.name, "picks": picks, "size": size, "difference": difference})
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


main()
