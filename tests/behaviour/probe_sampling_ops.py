"""Probe: the stand-in for the operator that keeps the k likeliest tokens and those within p, against a loop over tokens.

Prints, for each case, the tokens of each row that the operator keeps and those that the loop keeps.
"""

import json

import torch
import torch_npu  # noqa: F401  (registers the operator)


def kept_by_loop(row, k, p):
    """From the likeliest down: while fewer than k or equal to the k-th, and while those before are less than p."""
    order = sorted(range(len(row)), key=lambda token: -row[token])
    if k is not None:
        order = [token for token in order if row[token] >= row[order[k - 1]]]
    weights = torch.tensor([row[token] for token in order]).double().softmax(0).tolist()
    before = [sum(weights[:place]) for place in range(len(order))]
    return sorted(token for token, sum_before in zip(order, before, strict=True) if p is None or sum_before < p)


def case(logits, k=None, p=None):
    given = {
        "k": None if k is None else torch.tensor(k, dtype=torch.int32),
        "p": None if p is None else torch.tensor(p),
    }
    before = logits.clone()
    out = torch.ops._C_ascend.npu_apply_top_k_top_p(logits, **given)
    kept = [row.isfinite().nonzero()[:, 0].tolist() for row in out]
    rows = zip(logits.tolist(), k or [None] * len(logits), p or [None] * len(logits), strict=True)
    return {
        "kept": kept,
        "loop": [kept_by_loop(*row) for row in rows],
        "values": bool(torch.equal(out[out.isfinite()], logits[out.isfinite()])) and torch.equal(before, logits),
        "dtype": str(out.dtype),
    }


torch.manual_seed(0)
random = torch.randn(4, 9)
cases = {
    "k": case(random, k=[1, 3, 9, 5]),
    "p": case(random, p=[0.01, 0.5, 0.95, 1.0]),
    "both": case(random, k=[4, 6, 9, 2], p=[0.5, 0.9, 0.7, 0.99]),
    "bf16": case(random.bfloat16(), k=[4, 6, 9, 2]),
    "equal logits": case(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), k=[1]),
}
print(json.dumps(cases))
