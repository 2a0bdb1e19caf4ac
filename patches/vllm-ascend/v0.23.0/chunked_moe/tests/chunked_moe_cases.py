"""What probe_chunked_moe.py runs below the engine: fused_experts with all its arguments, whole and in chunks.

Two ranks hold two of four experts each. Everything is real but the operators, which the stand-in torch_npu computes.
"""

from contextlib import contextmanager
from dataclasses import replace

import torch
import vllm_ascend.utils
from vllm.config import CUDAGraphMode, set_current_vllm_config
from vllm.distributed import get_ep_group
from vllm.forward_context import BatchDescriptor, get_forward_context
from vllm_ascend.ascend_forward_context import MoECommType, set_ascend_forward_context
from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE, AscendUnquantizedFusedMoEMethod
from vllm_ascend.ops.fused_moe.moe_comm_method import AllGatherCommImpl, AlltoAllCommImpl, get_moe_comm_method
from vllm_ascend.ops.fused_moe.moe_runtime_args import build_fused_experts_input
from vllm_ascend.quantization.quant_type import QuantType

# Which device exchanges tokens so, outside MC2's capacity.
DEVICE = {"ALLTOALL": "A3", "ALLGATHER": "A2"}
EXPERTS, LOCAL, HIDDEN, WIDTH = 4, 2, 16, 12
TOKENS, CHUNK = 11, 3
PER_TOKEN = ("hidden_states", "topk_weights", "topk_ids")
OF_ROUTING = ("mc2_mask", "pertoken_scale")


def generator(seed):
    return torch.Generator().manual_seed(seed)


def difference(one, other):
    """The largest difference, in parts of the largest value."""
    one, other = one.float(), other.float()
    return ((one - other).abs().max() / other.abs().max().clamp(min=1e-9)).item()


@contextmanager
def exchanged_by(kind):
    before = vllm_ascend.utils._ascend_device_type
    vllm_ascend.utils._ascend_device_type = vllm_ascend.utils.AscendDeviceType[DEVICE[kind]]
    try:
        yield
    finally:
        vllm_ascend.utils._ascend_device_type = before


def method(kind):
    return get_moe_comm_method(MoECommType[kind])


@contextmanager
def dispatched(comm):
    """How many rows each per-token argument has, for every call of the real dispatcher."""
    calls, dispatch = [], comm.token_dispatcher.token_dispatch

    def recorded(token_dispatch_input):
        rows = {name: getattr(token_dispatch_input, name) for name in PER_TOKEN}
        rows |= {name: getattr(token_dispatch_input.routing, name) for name in OF_ROUTING}
        calls.append({name: len(of) for name, of in rows.items() if of is not None})
        return dispatch(token_dispatch_input=token_dispatch_input)

    comm.token_dispatcher.token_dispatch = recorded
    try:
        yield calls
    finally:
        del comm.token_dispatcher.token_dispatch


@contextmanager
def context(config, kind, tokens_of_ranks, **settings):
    """The forward context of a step in which each data-parallel rank has so many tokens."""
    rank = get_ep_group().rank_in_group
    counts = torch.tensor(tokens_of_ranks, dtype=torch.int32)
    arguments = {"num_tokens": tokens_of_ranks[rank], "num_tokens_across_dp": counts}
    with exchanged_by(kind), set_ascend_forward_context(None, config, **arguments, **settings):
        yield


def layer_run(layer, config, kind, hidden, logits, tokens_of_ranks):
    def run(size):
        comm = method(kind)
        comm.chunk_size = size
        forward = layer.forward_impl if layer._shared_experts is None else layer.shared_forward_impl
        with context(config, kind, tokens_of_ranks), dispatched(comm) as calls:
            out = forward(hidden.clone(), logits.clone())
        return {"out": out, "given": [call["hidden_states"] for call in calls]}

    return run


def weights(seed=0, dtype=torch.float32):
    """w1 (gate and up) and w2 of this rank's experts, in the layout for computing."""
    w1 = torch.randn(EXPERTS, HIDDEN, 2 * WIDTH, generator=generator(seed), dtype=dtype)
    w2 = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator(seed + 1), dtype=dtype)
    return {"w1": _own(w1), "w2": _own(w2)}


def _own(experts):
    first = get_ep_group().rank_in_group * LOCAL
    return experts[first : first + LOCAL]


def expert_map():
    mapped = torch.full((EXPERTS,), -1, dtype=torch.int32)
    _own(mapped).copy_(torch.arange(LOCAL))
    return mapped


def tokens(k=2, dtype=torch.float32):
    """Tokens of this rank with their experts, unevenly spread; each rank's are its own."""
    seed = 20 + get_ep_group().rank_in_group
    scores = torch.rand(TOKENS, EXPERTS, generator=generator(seed)) + torch.tensor([0.6, 0.0, 0.2, 0.1])
    weight, ids = scores.softmax(-1).topk(k, -1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator(seed + 10)).to(dtype)
    return {"hidden_states": hidden, "topk_weights": weight.to(dtype), "topk_ids": ids.int()}


def quantized(seed=40):
    w1 = torch.randint(-127, 128, (EXPERTS, HIDDEN, 2 * WIDTH), generator=generator(seed)).to(torch.int8)
    w2 = torch.randint(-127, 128, (EXPERTS, WIDTH, HIDDEN), generator=generator(seed + 1)).to(torch.int8)
    s1, s2 = (torch.rand(EXPERTS, width, generator=generator(seed + 2)) / 100 for width in (2 * WIDTH, HIDDEN))
    return {name: [_own(value)] for name, value in {"w1": w1, "w2": w2, "w1_scale": s1, "w2_scale": s2}.items()}


def of_integers(seed=50):
    """Weights of integers with scales and offsets, for tokens of floats."""
    made = {name: value[0] for name, value in quantized(seed).items()}
    made["w1_scale"], made["w2_scale"] = made["w1_scale"][:, None], made["w2_scale"][:, None]
    offsets = {f"{name}_offset": torch.full_like(made[f"{name}_scale"], 3.0) for name in ("w1", "w2")}
    return made | offsets


def quantized_tokens():
    given = tokens()
    largest = given["hidden_states"].abs().amax(-1)
    scaled = (given["hidden_states"] / largest[:, None] * 127).round().to(torch.int8)
    return given | {"hidden_states": scaled, "pertoken_scale": largest / 127}


def arguments(kind):
    """By name: what build_fused_experts_input is given beside the expert map."""
    plain = tokens() | weights()
    transposed = {name: value.transpose(1, 2) for name, value in weights().items()}
    w8a8 = {"quant_type": QuantType.W8A8}
    made = {
        "plain": plain,
        "bfloat16": tokens(dtype=torch.bfloat16) | weights(dtype=torch.bfloat16),
        "dynamic eplb": plain | {"dynamic_eplb": True},
        "log2phy": plain | {"log2phy": torch.tensor([2, 0, 3, 1], dtype=torch.int32)},
        "mc2_mask": plain | {"mc2_mask": torch.arange(TOKENS) < TOKENS - 2},
        "weights in the loader's layout": tokens() | transposed | {"need_trans": True},
        "w8a8, fused": tokens() | quantized() | w8a8,
        "w8a8, tokens not quantized": tokens() | quantized() | w8a8 | {"dynamic_eplb": True},
        "w4a16": tokens() | of_integers() | {"quant_type": QuantType.W4A16},
    }
    if kind == "ALLTOALL":
        # The routing operator of all-gather takes two dimensions only.
        made["three dimensions"] = plain | {"hidden_states": tokens()["hidden_states"].view(1, TOKENS, HIDDEN)}
    if kind == "ALLGATHER":
        # Only its dispatcher reads these; that of all-to-all quantizes tokens itself, and weighs them at the end.
        made["w8a8, tokens quantized"] = quantized_tokens() | quantized() | w8a8
        made["weight on input"] = tokens(k=1) | weights() | {"apply_router_weight_on_input": True}
        made["no expert map"] = plain | {"topk_ids": plain["topk_ids"] % LOCAL, "expert_map": None}
    return made


def all_cases(config):
    """By kind and name of arguments: how far chunks of CHUNK tokens are from the whole, and what each was given."""
    return {kind: {name: _compared(config, kind, given) for name, given in arguments(kind).items()} for kind in DEVICE}


def _compared(config, kind, given):
    comm = _method_for(config, kind, given["topk_ids"].shape[-1])
    whole, _ = _computed(config, kind, comm, given, 0)
    chunked, calls = _computed(config, kind, comm, given, CHUNK)
    shapes = [(one.routed_out.shape, one.routed_out.dtype) for one in (chunked, whole)]
    return {
        "difference": difference(chunked.routed_out, whole.routed_out),
        "alike": shapes[0] == shapes[1],
        "counts": [chunked.expert_tokens.tolist(), whole.expert_tokens.tolist()],
        "types": [chunked.group_list_type, whole.group_list_type],
        "calls": calls,
    }


def _method_for(config, kind, k):
    """A method as a layer of this size would have it; the engine's own ones are left alone."""
    of_engine = method(kind).moe_config
    sizes = {"num_experts": EXPERTS, "num_local_experts": LOCAL, "experts_per_token": k}
    with set_current_vllm_config(config):
        made = replace(of_engine, **sizes)
        made.global_redundant_expert_num = 0
        return {"ALLGATHER": AllGatherCommImpl, "ALLTOALL": AlltoAllCommImpl}[kind](made)


def _computed(config, kind, comm, given, size):
    comm.chunk_size = size
    copied = {name: value.clone() if torch.is_tensor(value) else value for name, value in given.items()}
    for name in ("w1", "w2", "w1_scale", "w2_scale"):  # lists of the quantized paths, which replace what is in them
        copied[name] = list(copied[name]) if isinstance(copied.get(name), list) else copied.get(name)
    with context(config, kind, [TOKENS] * 2), dispatched(comm) as calls:
        return comm.fused_experts(experts_input(copied)), calls


def experts_input(given):
    """What a layer hands to fused_experts, with this rank's expert map unless `given` has one."""
    others = {"expert_map": expert_map(), "quant_type": QuantType.NONE, "dynamic_eplb": False}
    return build_fused_experts_input(**others | given)


class SharedExperts(torch.nn.Module):
    """An MLP as upstream's layer takes shared experts apart: two projections that give (output, bias)."""

    def __init__(self, seed=70):
        super().__init__()
        self.up = torch.randn(HIDDEN, 2 * WIDTH, generator=generator(seed))
        self.down = torch.randn(WIDTH, HIDDEN, generator=generator(seed + 1))

    def gate_up_proj(self, x):
        return x @ self.up, None

    def act_fn(self, x):
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def down_proj(self, x):
        return x @ self.down, None


def shared_experts(config):
    """A layer with shared experts, whole and in chunks: both outputs, and whether events for the overlap are there."""
    sizes = {"num_experts": EXPERTS, "top_k": 2, "hidden_size": HIDDEN, "intermediate_size": WIDTH}
    settings = {"params_dtype": torch.float32, "renormalize": True, "prefix": "shared.experts"}
    with set_current_vllm_config(config):
        layer = AscendFusedMoE(shared_experts=SharedExperts(), **sizes, **settings)
    for weight in (layer.w13_weight, layer.w2_weight):
        torch.nn.init.normal_(weight, generator=generator(60))
    AscendUnquantizedFusedMoEMethod.process_weights_after_loading(layer.quant_method, layer)
    hidden, logits = tokens()["hidden_states"], torch.randn(TOKENS, EXPERTS, generator=generator(61))
    found = {}
    for kind in DEVICE:
        run = layer_run(layer, config, kind, hidden, logits, [TOKENS] * 2)
        whole, chunked = run(0), run(CHUNK)
        found[kind] = {
            "shared": difference(chunked["out"][0], whole["out"][0]),
            "routed": difference(chunked["out"][1], whole["out"][1]),
            "given": chunked["given"],
        }
    return found


def left_alone(config):
    """How many calls a batch above the chunk size takes where it must stay whole, and in MC2 how many are planned."""
    graph = {"batch_descriptor": BatchDescriptor(TOKENS)}
    found = {}
    for name, settings in {"eager": {}, "graph": graph | {"aclgraph_runtime_mode": CUDAGraphMode.FULL}}.items():
        found[name] = _calls(config, settings, capturing=False)
    found["capture"] = _calls(config, {}, capturing=True)
    from vllm_ascend.ops.fused_moe.chunked import number_of_chunks

    with context(config, "ALLGATHER", [TOKENS] * 2):
        for kind in ("MC2", "FUSED_MC2"):
            get_forward_context().moe_comm_type = MoECommType[kind]
            found[kind] = number_of_chunks(TOKENS, CHUNK)
    return found


def _calls(config, settings, capturing):
    comm = _method_for(config, "ALLGATHER", 2)
    comm.chunk_size = CHUNK
    with context(config, "ALLGATHER", [TOKENS] * 2, **settings), dispatched(comm) as calls:
        get_forward_context().capturing = capturing
        comm.fused_experts(experts_input(tokens() | weights()))
    return len(calls)
