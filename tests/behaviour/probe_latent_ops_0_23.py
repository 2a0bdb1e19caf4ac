"""Probe: the operators of npu_latent_0_23 beside plain PyTorch, the largest difference of each. Usage: probe_latent_ops_0_23.py"""

import json

import npu_latent_0_23
import torch
import torch_npu
from torch.nn.functional import scaled_dot_product_attention

HEADS, NOPE, ROPE, VALUE, SCALE = 3, 6, 4, 5, 0.3
RANDOM = torch.Generator().manual_seed(0)
LENGTHS, EARLIER = (4, 1, 3), (5, 0, 2)


def random(*size):
    return torch.randn(size, generator=RANDOM)


def ends(lengths):
    return torch.tensor(lengths).cumsum(0).tolist()


def call(query, query_rope, key, key_rope, value, queries, keys, mode):
    lengths = {"actual_seq_lengths": ends(queries), "actual_seq_lengths_kv": ends(keys), "sparse_mode": mode}
    settings = {"num_heads": HEADS, "num_key_value_heads": HEADS, "scale": SCALE, "input_layout": "TND", **lengths}
    return torch_npu.npu_fused_infer_attention_score(
        query, key, value, query_rope=query_rope, key_rope=key_rope, **settings
    )


def parts(tokens):
    return random(tokens, HEADS, NOPE), random(tokens, HEADS, ROPE)


def plain(query, key, value, visible):
    query, key, value = (one.transpose(0, 1) for one in (query, key, value))
    return scaled_dot_product_attention(query, key, value, visible, scale=SCALE).transpose(0, 1)


def prefill():
    """Three prompts of which two have an earlier part: each part by the operator, merged, and the whole by torch."""
    query, new, old = parts(sum(LENGTHS)), parts(sum(LENGTHS)), parts(sum(EARLIER))
    values = random(sum(LENGTHS), HEADS, VALUE), random(sum(EARLIER), HEADS, VALUE)
    alone, alone_lse = call(*query, *new, values[0], LENGTHS, LENGTHS, npu_latent_0_23.CAUSAL)
    before, before_lse = call(*query, *old, values[1], LENGTHS, EARLIER, npu_latent_0_23.ALL)
    flat = [one.reshape(-1) for one in (alone_lse, before_lse)], [one.reshape(-1, VALUE) for one in (alone, before)]
    merged = torch_npu.npu_attention_update(*map(tuple, flat), 0)[0].view(alone.shape)
    whole, causal = [], []
    q, k, earlier = (torch.cat(one, -1) for one in (query, new, old))
    for rows, columns in zip(q_slices(LENGTHS), q_slices(EARLIER), strict=True):
        length, context = rows.stop - rows.start, columns.stop - columns.start
        causal.append(plain(q[rows], k[rows], values[0][rows], torch.ones(length, length, dtype=torch.bool).tril()))
        visible = torch.ones(length, context + length, dtype=torch.bool).tril(context)
        keys = torch.cat((earlier[columns], k[rows])), torch.cat((values[1][columns], values[0][rows]))
        whole.append(plain(q[rows], *keys, visible))
    return {"causal": far(alone, torch.cat(causal)), "merged": far(merged, torch.cat(whole))}


def q_slices(lengths):
    return [slice(end - length, end) for end, length in zip(ends(lengths), lengths, strict=True)]


def decode():
    """A query a request over latent keys in pages of four; then in a graph, whose lengths are updated before it is replayed."""
    latent, rotary, query, query_rope = (
        random(6, 1, 4, NOPE),
        random(6, 1, 4, ROPE),
        random(2, HEADS, 1, NOPE),
        random(2, HEADS, 1, ROPE),
    )
    table, operator = torch.tensor([[3, 0], [5, 1]]), torch_npu.npu_fused_infer_attention_score_v2
    settings = {
        "num_query_heads": HEADS,
        "num_key_value_heads": 1,
        "input_layout": "BNSD_NBSD",
        "softmax_scale": SCALE,
        "block_size": 4,
        "query_rope": query_rope,
        "key_rope": rotary,
        "block_table": table,
    }

    def worst(out, lengths):
        found = 0.0
        for request, length in enumerate(lengths):
            keys = [cache[table[request]].reshape(-1, cache.shape[-1])[:length] for cache in (latent, rotary)]
            wide = torch.cat(keys, -1)[:, None].expand(-1, HEADS, -1)
            asked = torch.cat((query[request, :, 0], query_rope[request, :, 0]), -1)[None]
            wanted = plain(asked, wide, keys[0][:, None].expand(-1, HEADS, -1), None).transpose(0, 1)
            found = max(found, far(out[:, request], wanted))
        return found

    def into(lengths):
        work = torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(
            query, latent, latent, **settings, actual_seq_kvlen=lengths
        )
        held = [out, torch.empty(0)]
        operator.out(query, latent, latent, **settings, actual_seq_kvlen=lengths, workspace=work, out=held)

    once, _ = operator(query, latent, latent, **settings, actual_seq_kvlen=[7, 2])
    before = worst(once, (7, 2))
    out, graph = torch.zeros(HEADS, 2, 1, NOPE), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch.npu.graph_task_group_begin(None)
        into([1, 1])
        task = torch.npu.graph_task_group_end(None)
        doubled = out * 2
    query.copy_(random(2, HEADS, 1, NOPE))
    graph.replay()
    torch.npu.graph_task_update_begin(None, task)
    into([5, 8])
    torch.npu.graph_task_update_end(None)
    return {"decode": before, "decode in a graph": worst(doubled / 2, (5, 8))}


def far(one, other):
    return (one - other).abs().max().item()


def refusals():
    query, key, value = parts(4), parts(4), random(4, HEADS, VALUE)
    calls = {
        "another mask": lambda: call(*query, *key, value, (4,), (4,), 4),
        "queries that no sequence has": lambda: call(*query, *key, value, (3,), (4,), 3),
        "keys that no sequence has": lambda: call(*query, *key, value, (4,), (3,), 3),
        "the log of what is merged": lambda: torch_npu.npu_attention_update((value[:, 0, 0],), (value[:, 0],), 1),
    }
    return {name: raised(one) for name, one in calls.items()}


def raised(one):
    try:
        one()
    except (ValueError, NotImplementedError) as error:
        return type(error).__name__
    return None


print(json.dumps({"differences": prefill() | decode(), "refused": refusals()}))
