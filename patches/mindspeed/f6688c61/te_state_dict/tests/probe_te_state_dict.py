"""Probe: what state_dict and distributed checkpoints of verl's Megatron models hold, with MindSpeed's layers.

Usage: probe_te_state_dict.py MODEL...   (folders)
Prints for each "lacking" (parameters that state_dict has not), "second_names" (of state_dict: those of the parts of a fused
layer), and "saved_and_loaded" (whether verl's checkpoint gives every
parameter back).
"""

import grouped_worker as gw  # first: it makes torch and verl run on a CPU

# isort: split
import json
import sys

import torch
import torch.distributed as dist


def result(folder):
    gw.use_parallel({})
    own_weights = ["actor_rollout_ref.actor.load_weight=False"]
    worker, module, _ = gw.loaded_worker({"model": folder, "checkpoint": "none", "overrides": own_weights})
    model = gw.unwrap_model(module[0])
    names = [name for name in model.state_dict() if not name.endswith("_extra_state")]
    return {
        "lacking": sorted(set(dict(model.named_parameters())) - set(names)),
        "second_names": sorted(name for name in names if "._layernorm." in name or "._linear." in name),
        "saved_and_loaded": saved_and_loaded(worker, model),
    }


def saved_and_loaded(worker, model):
    """verl's own checkpoint of the model: saved, spoilt in memory, loaded."""
    folder = gw.shared_folder("saved")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        before = [parameter.clone() for parameter in model.parameters()]
        worker.save_checkpoint(folder)
        for parameter in model.parameters():
            parameter.zero_()
    worker.load_checkpoint(folder)
    return all(map(torch.equal, before, model.parameters()))


def main():
    results = [result(folder) for folder in sys.argv[1:]]
    dist.destroy_process_group()
    print(json.dumps(results))


main()
