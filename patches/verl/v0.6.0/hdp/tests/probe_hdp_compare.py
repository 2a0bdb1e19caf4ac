"""Probe: how far results of probe_hdp_actor.py are apart.

Usage: probe_hdp_compare.py FOLDER PAIRS   (PAIRS is a JSON list of [name, name of the reference])

Prints for each pair and kind of tensor the largest difference, in units of the largest value of that kind in the
reference (gradients: of that parameter; the mean of the losses, which may cancel out: of the losses), and how many
tensors there were; null for the difference where there are more or fewer values, as of losses in another number of
micro-batches.
"""

import json
import math
import sys
from pathlib import Path

import torch

FOLDER, PAIRS = Path(sys.argv[1]), json.loads(sys.argv[2])


def results(name):
    """All ranks' tensors; what several have (all of them the losses, for instance) must be the same."""
    found = {}
    for path in sorted(FOLDER.glob(f"{name}.*.pt")):
        for key, tensor in torch.load(path).items():
            if key in found and tensor.numel() and found[key].numel():
                assert torch.equal(found[key], tensor), f"{name}: ranks differ in {key}"
            if tensor.numel():
                found[key] = tensor
    return found


def apart(key, tensor, reference, unit):
    assert tensor.isfinite().all() and reference.isfinite().all(), f"{key} is not finite"
    assert unit.any(), f"{key} is all zero, so that nothing is compared"
    if tensor.shape != reference.shape:
        return math.inf
    return float((tensor - reference).abs().max() / unit.abs().max())


def compared(name, reference):
    mine, theirs = results(name), results(reference)
    assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
    kinds = {}
    for key, tensor in mine.items():
        kind = "gradients" if key.startswith("gradient of") else key
        difference = apart(key, tensor, theirs[key], theirs["losses" if key == "loss" else key])
        largest, count = kinds.get(kind, (0.0, 0))
        kinds[kind] = (max(largest, difference), count + 1)
    return {kind: (None if math.isinf(largest) else largest, count) for kind, (largest, count) in kinds.items()}


print(json.dumps({f"{name} / {reference}": compared(name, reference) for name, reference in PAIRS}))
