"""Probe: the experts that verl's Megatron engine routes to, and those that the rollout or an earlier pass chose.

Usage: probe_rollout_routing_replay.py CASE...   (of CASES)

Real: AgentLoopOutput as the v1 trainer stores it, MegatronEngineWithLMHead.forward_backward_batch, Megatron-LM's GPT with its routers, dispatcher
and experts. Its attention of packed sequences is PyTorch's. Prints for each case the experts that were wanted and those that were taken, for each
sequence, token and layer; and for R3 how many tokens of each sequence the rollout had read, and the bytes that a token's routes take.
"""

import json
import sys
import types

import numpy as np
import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils import tensordict_utils as tu
from verl.utils.megatron.router_replay_patch import apply_router_replay_patch
from verl.utils.megatron.router_replay_utils import build_r3_replay_mask
from verl.workers.config import McoreEngineConfig
from verl.workers.config.engine import EngineRouterReplayConfig
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

# Without Transformer Engine core_v0.16.0 compares this name with None, and has not defined it; MindSpeed has a gate of its own.
moe_utils.te_general_gemm = None
# A recomputed pass puts the device's random numbers back; nothing here draws any.
megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
megatron_random._set_cuda_rng_state = lambda state, *args, **kwargs: None

LAYERS, TOP = 2, 2
PROMPTS = [[10, 11, 12], [20, 21]]
# Of the responses. 1: the model wrote it; 0: a tool or a user did, in the middle or behind the last that the model wrote.
WITH_END = [[1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 1]]
WITHOUT_END = [[1, 1, 1, 1], [1, 1, 0, 0, 1, 1]]
TAKEN = []  # by the routers, in the order of their calls: (layer, which experts take which tokens)


class Packed(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **unused):
        return tiny_megatron.packed_attention(query, key, value, packed_seq_params.cu_seqlens_q_padded)


def gpt(experts, **changes):
    torch.manual_seed(0)
    config = tiny_megatron.config(
        num_moe_experts=experts,
        moe_router_topk=TOP,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        moe_ffn_hidden_size=16,
        variable_seq_lengths=True,
        **changes,
    )
    config.enable_routing_replay = config.moe_enable_routing_replay = True
    spec = get_gpt_layer_local_spec(num_experts=experts, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = Packed
    return GPTModel(
        config, spec, vocab_size=512, max_sequence_length=64, position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )  # fmt: skip


def engine(mode, experts, **changes):
    """verl's engine around a tiny model: what its `initialize` makes of a checkpoint, without the bridge that reads one."""
    made = MegatronEngineWithLMHead.__new__(MegatronEngineWithLMHead)
    made.engine_config = McoreEngineConfig(router_replay=EngineRouterReplayConfig(mode=mode))
    made.model_config = types.SimpleNamespace(
        hf_config=types.SimpleNamespace(architectures=["Qwen3MoeForCausalLM"]),
        mtp=types.SimpleNamespace(enable=False),
        tokenizer=types.SimpleNamespace(pad_token_id=0),
    )
    made.enable_routing_replay, made.mini_layer_topk_idx_list = True, []
    apply_router_replay_patch()
    made.module = [gpt(experts, **changes)]
    made.tf_config = made.module[0].config
    for router in (one for one in made.module[0].modules() if isinstance(one, TopKRouter)):
        router.register_forward_hook(lambda module, _, output: TAKEN.append((module.layer_number, output[1])))
    return made


def stored(experts, dtype, masks):
    """What the agent loop stores: tokens, and routes of all that the rollout's engine read."""
    draw, rows = np.random.default_rng(0), []
    for prompt, mask in zip(PROMPTS, masks, strict=True):
        read = len(prompt) + max(
            at for at, wrote in enumerate(mask) if wrote
        )  # not the last token that the model wrote
        routes = np.array([[draw.permutation(experts)[:TOP] for _ in range(LAYERS)] for _ in range(read)], dtype=dtype)
        output = AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=draw.integers(30, 500, len(mask)).tolist(),
            response_mask=mask,
            routed_experts=routes,
            metrics=AgentLoopMetrics(),
            extra_fields={},
        )
        rows.append((output.as_dict(), routes))
    return rows


def nested(tensors):
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def data(rows, sequences):
    """The batch of an update or a pass, in micro-batches of so many sequences."""
    fields = {
        "input_ids": nested(torch.cat([one["prompts"], one["responses"]]) for one in rows),
        "response_mask": nested(one["response_mask"] for one in rows),
        "loss_mask": nested(one["response_mask"] for one in rows),
        "prompts": nested(one["prompts"] for one in rows),
        "responses": nested(one["responses"] for one in rows),
    }
    made = TensorDict(fields, batch_size=len(rows))
    tu.assign_non_tensor(
        made, temperature=1.0, use_dynamic_bsz=False, micro_batch_size_per_gpu=sequences, enable_routing_replay=True
    )
    return made


def chosen(calls, rows):
    """For each sequence, token and layer the experts that these calls took, one a layer, of packed rows."""
    ends = np.cumsum([len(one["prompts"]) + len(one["responses"]) for one in rows])[:-1]
    layers = [[row.nonzero().flatten().tolist() for row in taken] for _, taken in sorted(calls, key=lambda one: one[0])]
    tokens = list(zip(*layers, strict=True))
    return [tokens[first:end] for first, end in zip([0, *ends], [*ends, len(tokens)], strict=True)]


def routes_of(tensors):
    return [[[sorted(layer) for layer in token] for token in one.tolist()] for one in tensors]


def r3(masks):
    made, pairs = engine("R3", 8), stored(8, np.uint8, masks)
    rows = [row for row, _ in pairs]
    batch = data(rows, len(rows))
    batch["routed_experts"] = nested(one["routed_experts"] for one in rows)
    TAKEN.clear()
    with torch.no_grad():
        made.forward_backward_batch(batch, None, forward_only=True)
    return {
        "bytes a token": rows[0]["routed_experts"][0].nbytes,
        "read": [len(routes) for _, routes in pairs],
        "wanted": routes_of(routes for _, routes in pairs),
        "taken": chosen(TAKEN, rows),
    }


def recomputed():
    """An update in two micro-batches whose activations are computed again: what each router took, in either pass."""
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    made, pairs = engine("R3", 8, **again), stored(8, np.uint8, WITHOUT_END)
    rows = [row for row, _ in pairs]
    batch = data(rows, 1)
    batch["routed_experts"] = nested(one["routed_experts"] for one in rows)
    made.get_data_parallel_group = lambda: None
    TAKEN.clear()
    made.forward_backward_batch(batch, lambda model_output, **_: (model_output["log_probs"].values().sum(), {}), False)
    calls = [TAKEN[at : at + LAYERS] for at in range(0, len(TAKEN), LAYERS)]
    passes = [[chosen(one, [rows[at // 2]])[0] for at, one in enumerate(calls) if at % 2 == which] for which in (0, 1)]
    return {"wanted": routes_of(routes for _, routes in pairs), "forward": passes[0], "again": passes[1]}


def r2(experts):
    """A pass that records the routes, and the update's pass with them."""
    made, pairs = engine("R2", experts), stored(experts, np.uint16, WITHOUT_END)
    for router in (one for one in made.module[0].modules() if isinstance(one, TopKRouter)):
        router.weight.data[-1] *= 10  # the last expert takes some
    rows = [row for row, _ in pairs]
    TAKEN.clear()
    with torch.no_grad():
        output = made.forward_backward_batch(data(rows, len(rows)), None, forward_only=True)
    return {"wanted": chosen(TAKEN, rows), "taken": routes_of(output["model_output"]["routed_experts"].unbind())}


def mask_of(total, wrote):
    """Of one sequence: to its last token that the model wrote, which nothing has read."""
    last = int(wrote.nonzero().max()) if wrote.any() else -1
    replayed = total - (len(wrote) - last) if last >= 0 else 0
    return torch.arange(total) < replayed


def masks():
    draw, equal = np.random.default_rng(0), 0
    for _ in range(300):
        lengths = draw.integers(1, 9, draw.integers(1, 7))
        wrote = [torch.from_numpy(draw.integers(0, 2, one) * (draw.random() < 0.8)) for one in lengths]
        total = [len(one) + int(draw.integers(0, 5)) for one in wrote]
        made = build_r3_replay_mask(nested(torch.arange(one) for one in total), nested(wrote))
        wanted = torch.cat([mask_of(*one) for one in zip(total, wrote, strict=True)])
        equal += torch.equal(made.values(), wanted)
    return {"batches": 300, "equal": equal}


def masks_without_values():
    """The error with which a mask ends on a device that has shapes alone."""

    def batch(*offsets):
        values = torch.empty(offsets[-1], dtype=torch.long, device="meta")
        return torch.nested.nested_tensor_from_jagged(values, offsets=torch.tensor(offsets, device="meta"))

    try:
        made = build_r3_replay_mask(batch(0, 5, 12), batch(0, 3, 7))
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    assert made.values().shape == (12,)
    return None


CASES = {
    "masks": masks,
    "masks without values": masks_without_values,
    "R2, 257 experts": lambda: r2(257),
    "R3, an end that the model did not write": lambda: r3(WITH_END),
    "R3": lambda: r3(WITHOUT_END),
    "R3, recomputed": recomputed,
    "R2": lambda: r2(8),
    "R2, 384 experts": lambda: r2(384),
}


def main():
    tiny_megatron.initialise()
    print(json.dumps([CASES[case]() for case in sys.argv[1:]]))


if __name__ == "__main__":
    main()
