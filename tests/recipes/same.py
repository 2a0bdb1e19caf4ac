"""Probe: whether training gave the engine the same weights in two runs. Usage: same.py WATCHED WATCHED SECOND

Prints {"weights": all updates are the very same, "direction": the cosine between what the first step changed in the one run and
in the other, None where a run has no update SECOND, the first one after it}. The weights of all ranks together are compared, which may be split over
other ranks in the other run.
"""

import json
import sys
from pathlib import Path

import torch
from answers import weights_of


def updates(folder):
    return {int(file.name.split(".")[1]) for file in folder.glob("weights.*.safetensors")}


def change(first, second):
    return torch.cat([(second[name].float() - first[name].float()).flatten() for name in sorted(first)])


def main():
    folders, second = [Path(folder) for folder in sys.argv[1:3]], int(sys.argv[3])
    both = sorted(updates(folders[0]) & updates(folders[1]))
    runs = [{update: weights_of(folder, update)[0] for update in both} for folder in folders]
    same = all(
        one[update].keys() == other[update].keys()
        and all(torch.equal(one[update][name], other[update][name]) for name in one[update])
        for one, other in [runs]
        for update in both
    )
    direction = None
    if {1, second} <= set(both) and all(run[1].keys() == run[second].keys() == runs[0][1].keys() for run in runs):
        changes = [change(run[1], run[second]).double() for run in runs]
        direction = float(torch.nn.functional.cosine_similarity(*changes, dim=0))
    print(json.dumps({"weights": bool(both) and same, "direction": direction}))


if __name__ == "__main__":
    main()
