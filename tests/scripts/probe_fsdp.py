"""Probe: an FSDP checkpoint as verl writes it, by several processes, and what became of it.

Usage, in WORLD_SIZE processes: probe_fsdp.py save MODEL FOLDER
       in one: probe_fsdp.py compare MODEL MERGED

Real: verl's FSDPCheckpointManager and PyTorch's FSDP2. The processes talk over gloo, and the shards are on the CPU.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer


def save(model_folder, folder):
    from omegaconf import OmegaConf
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    contents = OmegaConf.create({"save_contents": ["model"], "load_contents": ["model"]})
    manager = FSDPCheckpointManager(
        model, processing_class=AutoTokenizer.from_pretrained(model_folder), checkpoint_config=contents
    )
    manager.save_checkpoint(folder, global_step=1)
    dist.destroy_process_group()
    return sorted(os.listdir(folder))


def compare(model_folder, merged_folder):
    original = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).state_dict()
    merged = AutoModelForCausalLM.from_pretrained(merged_folder, dtype="auto").state_dict()
    tokens = [
        AutoTokenizer.from_pretrained(folder)("a b", add_special_tokens=False).input_ids
        for folder in (model_folder, merged_folder)
    ]
    return {
        "same_names": sorted(original) == sorted(merged),
        "different": [name for name, tensor in original.items() if not torch.equal(tensor, merged[name])],
        "types": sorted({str(tensor.dtype) for tensor in merged.values()}),
        "same_tokens": tokens[0] == tokens[1],
    }


print(json.dumps({"save": save, "compare": compare}[sys.argv[1]](*sys.argv[2:])))
