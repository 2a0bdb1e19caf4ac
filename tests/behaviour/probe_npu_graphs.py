"""Probe: the stand-in's graphs and FIA's checks: what a replay computes beside plain PyTorch, and what is refused."""

import json

import torch
import torch_npu
from torch_npu import graphs

HEADS, SIZE, BLOCK = 2, 4, 8


def call(query, cache, table, ends, keys, out):
    """FIA over a paged cache, as vllm-ascend calls it in a graph."""
    torch_npu.npu_fused_infer_attention_score.out(
        query=query,
        key=cache,
        value=cache,
        block_table=table,
        block_size=BLOCK,
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=keys,
        num_key_value_heads=HEADS,
        num_heads=HEADS,
        workspace=torch.empty(0),
        out=[out, torch.empty(0)],
    )


def plain(query, cache, ends, keys):
    """The same with torch's own attention: request r's keys lie in block r."""
    parts, start = [], 0
    for request, (end, length) in enumerate(zip(ends, keys, strict=True)):
        part, start = query[start:end].transpose(0, 1), end
        held = cache[request, :length].view(length, HEADS, SIZE).transpose(0, 1)
        visible = torch.ones(part.shape[1], length, dtype=torch.bool).tril(length - part.shape[1])
        one = torch.nn.functional.scaled_dot_product_attention(part, held, held, visible, scale=1.0)
        parts.append(one.transpose(0, 1) if length else torch.zeros_like(one).transpose(0, 1))
    return torch.cat(parts)


def replay():
    """A graph of a product, FIA and a sum, replayed with other inputs and other lengths."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(HEADS * SIZE, HEADS * SIZE, generator=generator), torch.zeros(5, HEADS * SIZE)
    cache = torch.randn(3, BLOCK, HEADS * SIZE, generator=generator)
    table, out = torch.arange(3)[:, None], torch.zeros(5, HEADS, SIZE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        query = (x @ weight).view(5, HEADS, SIZE)
        torch.npu.graph_task_group_begin(None)
        call(query, cache, table, [1, 3, 5], [1, 2, 2], out)
        task = torch.npu.graph_task_group_end(None)
        result = out + query
    x.copy_(torch.randn(5, HEADS * SIZE, generator=generator))
    graph.replay()
    waiting = result.clone()
    torch.npu.graph_task_update_begin(None, task)
    call(query, cache, table, [2, 3, 5], [7, 3, 0], out)
    torch.npu.graph_task_update_end(None)
    expected = plain((x @ weight).view(5, HEADS, SIZE), cache, [2, 3, 5], [7, 3, 0])
    expected = expected + (x @ weight).view(5, HEADS, SIZE)
    return {"difference": (result - expected).abs().max().item(), "waits": not torch.equal(waiting, result)}


def refusals():
    query, cache = torch.zeros(4, HEADS, SIZE), torch.zeros(2, BLOCK, HEADS * SIZE)
    table, out = torch.arange(2)[:, None], torch.zeros(4, HEADS, SIZE)
    calls = {
        "padded query": lambda: call(query, cache, table, [1, 3], [1, 2], out),
        "fewer key lengths": lambda: call(query, cache, table, [1, 4], [1], out),
        "more rows": lambda: call(query, cache, torch.arange(3)[:, None], [1, 4], [1, 2], out),
        "going back": lambda: call(query, cache, table, [5, 4], [1, 2], out),
    }
    return {name: raised(one) for name, one in calls.items()} | {"reading back": raised(read_back)}


def read_back():
    with torch.npu.graph(torch.npu.NPUGraph()):
        (torch.ones(1) + 1).item()


def raised(one):
    try:
        one()
    except RuntimeError as error:
        return str(error)
    return None


print(json.dumps({"replay": replay(), "refused": refusals(), "after": graphs.moment()}))
