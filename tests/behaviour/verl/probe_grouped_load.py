"""Probe: verl's Megatron workers load distributed checkpoints and give their weights to the rollout.

Usage: probe_grouped_load.py JOBS   (with several processes: the ranks of each job's parallel sizes)
JOBS is JSON, each {"model": folder, "checkpoint": folder} and, when wanted, "overlap" (MindSpeed's all-to-all overlap,
which groups the experts), "grouped" (our field), "parallel" ({"ep", "tp", "pp"}), "role" (actor or critic), "overrides",
"refused" (an error is the result) and "also" (names of CHECKS). Prints for each "experts" (class of the expert layers),
"reference" (the reference policy's field), "wrong_experts" (parameters that do not hold the Hugging Face weights),
"warned" (of the missing field), "load_memory" (by which the process grew in loading, over the size of the experts), what
`grouped_worker.compared` finds of the tensors that the rollout gets, and the results of the checks.
"""

import json
import sys
import warnings

import grouped_worker as gw
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException


def expert_layers(module):
    return [layer for _, layer in gw.expert_layers(module)]


def saved_and_loaded(worker, job):
    """verl's own checkpoint of the model: saved, spoilt in memory, loaded."""
    folder = gw.shared_folder("saved")
    before = [parameter.detach().clone() for chunk in worker.actor_module for parameter in chunk.parameters()]
    worker.save_checkpoint(folder)
    with torch.no_grad():
        for chunk in worker.actor_module:
            for parameter in chunk.parameters():
                parameter.zero_()
    worker.load_checkpoint(folder)
    after = [parameter for chunk in worker.actor_module for parameter in chunk.parameters()]
    return all(map(torch.equal, before, after)) and any(tensor.any() for tensor in before)


def forward_error(worker, job):
    """The largest difference of MindSpeed's grouped forward pass from Hugging Face's experts, over the largest value."""
    original = gw.hugging_face_weights(job["model"])
    layer = expert_layers(worker.actor_module)[0]
    tokens = torch.tensor([3, 0, 5, 2])
    hidden = torch.randn(int(tokens.sum()), layer.config.hidden_size).bfloat16()
    output = gw.grouped_forward(layer, hidden, tokens)
    expected = []
    for expert, part in enumerate(hidden.split(tokens.tolist())):
        gate, up, down = (original[f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight"].T for name in gw.LINEARS)
        expected.append((torch.nn.functional.silu(part @ gate) * (part @ up)) @ down)
    return float((output - torch.cat(expected)).abs().max() / torch.cat(expected).abs().max())


def miscounted(worker, job):
    """The refusal of a grouped parameter that lacks the last expert."""
    from verl.models.mcore.grouped_experts_names import grouped_expert_tensors

    converter = gw.weight_converter(worker)
    weight = expert_layers(worker.actor_module)[0].weight1
    cut = weight[:, : -2 * converter.mcore_config.moe_ffn_hidden_size]
    try:
        list(grouped_expert_tensors("decoder.layers.0.mlp.experts.weight1", cut, converter))
    except ValueError as refusal:
        return str(refusal)
    return None


def lost_by_upstream(worker, job):
    """How many grouped parameters of its own checkpoint a model gets back without the field, of how many."""
    folder = gw.shared_folder("saved")
    worker.save_checkpoint(folder)
    weights = [parameter for layer in expert_layers(worker.actor_module) for parameter in layer.parameters()]
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
    gw.megatron_workers.load_mcore_dist_weights(worker.actor_module, gw.get_dist_checkpoint_path(folder))
    return [sum(bool(weight.any()) for weight in weights), len(weights)]


CHECKS = {
    "lost_by_upstream": lost_by_upstream,
    "saved_and_loaded": saved_and_loaded,
    "forward_error": forward_error,
    "miscounted": miscounted,
}


def to_rollout(worker, module, job):
    """What the rollout gets; upstream has no names for grouped experts, and says so by this error."""
    try:
        return gw.compared(gw.given_to_rollout(worker, module), job["model"])
    except NotImplementedError as error:
        return {"rollout_error": str(error)}


def result(job):
    gw.use_parallel(job.get("parallel", {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            worker, module, grown = gw.loaded_worker(job)
        except (Exception, CheckpointException) as refusal:  # the latter is no Exception
            if not job.get("refused"):
                raise
            return {"error": f"{type(refusal).__name__}: {refusal}"}
    layers = expert_layers(module)
    expert_bytes = sum(parameter.nbytes for layer in layers for parameter in layer.parameters())
    return {
        "error": None,
        "reference": job.get("role") != "critic" and worker.config.ref.megatron.get("grouped_experts", False),
        "experts": sorted({type(layer).__name__ for layer in layers}),
        "wrong_experts": gw.wrong_experts(module, job["model"]),
        "warned": any("grouped_experts is False" in str(warning.message) for warning in caught),
        "load_memory": grown / expert_bytes if expert_bytes else None,
        **to_rollout(worker, module, job),
        **{name: CHECKS[name](worker, job) for name in job.get("also", [])},
    }


def main():
    results = [result(job) for job in json.loads(sys.argv[1])]
    dist.destroy_process_group()
    print(json.dumps(results))


main()
