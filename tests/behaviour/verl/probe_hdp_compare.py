"""Probe: how far results of probe_hdp_actor.py are apart.

Usage: probe_hdp_compare.py FOLDER PAIRS   (PAIRS is a JSON list of [name, name of the reference])

Prints for each pair and kind of tensor the largest difference, in units of the largest value of that kind in the
reference (gradients: of that parameter), and how many tensors there were.
"""

import json
import sys
from pathlib import Path

import torch

FOLDER, PAIRS = Path(sys.argv[1]), json.loads(sys.argv[2])


def results(name):
    """All stages' tensors; what every stage has must be the same."""
    found = {}
    for path in sorted(FOLDER.glob(f"{name}.*.pt")):
        for key, tensor in torch.load(path).items():
            if key in found and tensor.numel() and found[key].numel():
                assert torch.equal(found[key], tensor), f"{name}: stages differ in {key}"
            if tensor.numel():
                found[key] = tensor
    return found


def apart(tensor, reference):
    assert tensor.shape == reference.shape, (tensor.shape, reference.shape)
    return float((tensor - reference).abs().max() / reference.abs().max())


def compared(name, reference):
    mine, theirs = results(name), results(reference)
    assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
    kinds = {}
    for key, tensor in mine.items():
        kind = "gradients" if key.startswith("gradient of") else key
        difference = apart(tensor, theirs[key])
        largest, count = kinds.get(kind, (0.0, 0))
        kinds[kind] = (max(largest, difference), count + 1)
    return kinds


print(json.dumps({f"{name} / {reference}": compared(name, reference) for name, reference in PAIRS}))
