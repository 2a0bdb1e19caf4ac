"""Probe: verl's Megatron workers take Hugging Face weights with use_mbridge, and give them back.

Usage: probe_mbridge.py JOBS   (with several processes: the ranks of each job's parallel sizes)
JOBS is JSON, each {"model": folder}, and when wanted "parallel" ({"ep", "tp", "pp"}), "overlap" (MindSpeed's all-to-all
overlap, which groups the experts), "in_parts" (the weights in several files with an index, as large models are published)
and "only_made" (nothing is exported). Prints for each "config" (fields of Megatron's configuration that differ from those
which verl's own way gives) and "refused" (the error of loading, or null); unless "only_made" or refused also "exported"
(what `grouped_worker.compared` finds of the tensors for the rollout), "saved" (of the files of a checkpoint), "loaded" (of
the tensors after that checkpoint was loaded into a spoilt model), and "log_probs" ([largest difference from Hugging Face's
in float32, range of those]).
"""

import grouped_worker as gw  # first: it makes torch and verl run on a CPU

# isort: split
import json
import os
import sys

import torch
import torch.distributed as dist
from actor_log_probs import log_probs, use_reference_operators
from transformers import AutoModelForCausalLM, AutoTokenizer

ACTOR = gw.SECTIONS["actor"]
OVERRIDES = [
    f"{ACTOR}.megatron.use_mbridge=True",
    f"{ACTOR}.megatron.use_dist_checkpointing=False",
    f"+{ACTOR}.megatron.override_transformer_config.use_flash_attn=True",
    # Not `extra`: the stand-in has no CUDA generators whose states it would hold.
    f"{ACTOR}.checkpoint.save_contents=[model,optimizer]",
    f"{ACTOR}.checkpoint.load_contents=[model,optimizer]",
]


def made_worker(job):
    """The worker with its model; raises what loading raises."""
    gw.use_parallel(job.get("parallel", {}))
    model = in_parts(job["model"]) if job.get("in_parts") else job["model"]
    config = gw.configured({**job, "model": model, "checkpoint": "none", "overrides": OVERRIDES})
    worker = gw.megatron_workers.ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    try:
        worker.init_model()
    except NotImplementedError as refusal:
        return worker, str(refusal)
    return worker, None


def in_parts(folder):
    """A copy of the model in files of at most 20 KB."""
    copy = gw.shared_folder("parts")
    if dist.get_rank() == 0:
        AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained(copy, max_shard_size="20KB")
        AutoTokenizer.from_pretrained(folder).save_pretrained(copy)
        assert os.path.exists(os.path.join(copy, "model.safetensors.index.json"))
    dist.barrier()
    return copy


def differing_config(worker):
    """Fields of Megatron's configuration that the worker sets otherwise with the bridge than without."""
    overrides, found = dict(worker.config.actor.megatron.override_transformer_config), []
    for bridged in (False, True):
        worker._init_hf_config_and_tf_config(
            worker.local_path, worker.local_path, worker.dtype, {}, dict(overrides), use_mbridge=bridged
        )
        found.append(dict(vars(worker.tf_config)))
    own, bridged = found
    return sorted(name for name in {*own, *bridged} if shown(own.get(name)) != shown(bridged.get(name)))


def shown(value):
    """A partial function is another object each time; what it calls is the same."""
    return str((value.func, value.keywords)) if hasattr(value, "func") else str(value)


def saved_and_loaded(worker, model):
    """What the files of a checkpoint hold, and what the model gives out after it was spoilt and loaded."""
    folder = gw.shared_folder("saved")
    worker.save_checkpoint(folder)
    dist.barrier()
    saved = gw.compared(list(gw.hugging_face_weights(os.path.join(folder, "huggingface")).items()), model)
    with torch.no_grad():
        for chunk in worker.actor_module:
            for parameter in chunk.parameters():
                parameter.zero_()
    worker.load_checkpoint(folder, del_local_after_load=False)
    return saved, gw.compared(list(worker.bridge.export_weights(worker.actor_module)), model)


def result(job):
    worker, refused = made_worker(job)
    found = {"refused": refused}
    if not refused and not job.get("only_made"):
        found["log_probs"] = log_probs(worker, job["model"])
        found["exported"] = gw.compared(list(worker.bridge.export_weights(worker.actor_module)), job["model"])
        found["saved"], found["loaded"] = saved_and_loaded(worker, job["model"])
    return found | {"config": differing_config(worker)}


def main():
    use_reference_operators()
    results = [result(job) for job in json.loads(sys.argv[1])]
    dist.destroy_process_group()
    print(json.dumps(results))


main()
