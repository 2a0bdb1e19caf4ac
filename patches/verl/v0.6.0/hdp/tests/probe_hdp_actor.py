"""Probe: log-probabilities, entropies, losses and gradients of verl's Megatron actor, with and without the switch.

Usage: probe_hdp_actor.py FOLDER JOBS   (JOBS is a JSON object: name -> job)

A job: `lengths` of the sequences, or a list of them for each data parallel rank; sizes `tp`, `cp`, `pp`, `vpp`, `ep`;
`hdp`, `by_time` and `costs` of its settings; `tokens` a rank of dynamic micro-batches, or `rows` of fixed ones; `bf16`;
`recompute`; `overlap` for a second group and `window` for inner rings of so many ranks; `experts`; `mean`, the way a
micro-batch's loss is averaged; `kl` for a loss with a reference policy, `unclipped` for one that is smooth. `global`
keeps `groups` or `all` of the micro-batch in a global of the module, as a reference of what must not be done. Results
of a job are saved in FOLDER/NAME.RANK.pt by the ranks that have the same sequences; printed are the layouts of each
job's micro-batches, how often attention took which way, and what was sent to gather results.
"""

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

import probe_hdp_model as tiny  # first: it imports MindSpeed's adaptor
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.packed_seq_params import PackedSeqParams
from verl import DataProto

FOLDER, JOBS = Path(sys.argv[1]), json.loads(sys.argv[2])
PROMPT = 4


def batch_of(lengths):
    """Sequences of these lengths with a prompt of up to PROMPT tokens, padded to the left, and a response."""
    generator = torch.Generator().manual_seed(11)
    prompts = [min(PROMPT, length - 1) for length in lengths]
    width = max(length - prompt for length, prompt in zip(lengths, prompts, strict=True))
    ids = torch.randint(4, 500, (len(lengths), PROMPT + width), generator=generator)
    column = torch.arange(PROMPT + width)
    mask = torch.stack(
        [
            ((column >= PROMPT - prompt) & (column < PROMPT - prompt + length)).long()
            for length, prompt in zip(lengths, prompts, strict=True)
        ]
    )
    rows = {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "responses": (ids * mask)[:, PROMPT:],
        "response_mask": mask[:, PROMPT:],
        "advantages": torch.randn(len(lengths), width, generator=generator),
    }
    return DataProto.from_dict(rows)


SIZES = ("tp", "cp", "pp", "vpp", "ep", "overlap", "window")


def run(job):
    """What a job gives: tensors to be compared, and what was seen on the way."""
    tiny.use_parallel(**{name: job[name] for name in SIZES if name in job})
    lengths = job["lengths"]
    data = batch_of(lengths[mpu.get_data_parallel_rank()] if isinstance(lengths[0], list) else lengths)
    seen = watch(job)
    actor = tiny.make_actor(job, len(data))
    data.meta_info |= {
        "temperature": 0.7,
        "use_dynamic_bsz": bool(job.get("tokens")),
        "micro_batch_size": job.get("rows", len(data)),
        "max_token_len": job.get("tokens"),
    }
    found = of_the_reference(job, data) if job.get("kl") else {}
    for chunk in actor.actor_module:
        chunk.train()
    log_probs, entropies = actor.compute_log_prob(data, calculate_entropy=True)
    noise = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(5))
    data.batch["old_log_probs"] = torch.zeros_like(log_probs) - 6 + 0.1 * noise
    metrics = actor.update_policy(dataloader=actor.make_minibatch_iterator(data))
    found |= {"log_probs": log_probs, "entropies": entropies}
    names = {"losses": "actor/pg_loss"} | ({"kl_losses": "actor/kl_loss"} if job.get("kl") else {})
    found |= {name: torch.tensor(metrics.get(key, [])) for name, key in names.items()}
    found["loss"] = found["losses"].mean(0, keepdim=True) if len(found["losses"]) else found["losses"]
    found |= {f"gradient of {name}": grad for name, grad in actor.actor_optimizer.gradients.items()}
    return found, {"layouts": seen["layouts"], "ways": dict(seen["ways"])}


def of_the_reference(job, data):
    """Adds the log-probabilities of a reference policy to the batch, as the worker does."""
    log_probs, _ = tiny.make_reference(job, len(data)).compute_log_prob(data, calculate_entropy=False)
    data.batch["ref_log_prob"] = log_probs
    return {"ref_log_probs": log_probs}


def watch(job):
    """Counts attention's ways, and notes each micro-batch's layout; patches nothing that computes."""
    seen = {"layouts": [], "ways": Counter()}
    if not job.get("hdp"):
        return seen
    from mindspeed.core.context_parallel import dot_product_attention, packed_group
    from verl.utils.hybrid_data_parallel import groups, micro_batches

    micro_batches.PackedSeqParams = PackedSeqParams
    counted(packed_group, "_alone", "alone", seen["ways"])
    counted(packed_group, "ringattn_context_parallel", "part of the ring", seen["ways"])
    counted(dot_product_attention, "ringattn_context_parallel", "double ring", seen["ways"], has_windows)
    counted(groups, "_groups_of", "groups made", seen["ways"])
    counted(dist, "all_to_all_single", "values sent", seen["ways"], lambda received, sent, **sizes: sent.numel())
    made = getattr(micro_batches.PackedMicroBatch, "made", micro_batches.PackedMicroBatch.__init__)
    micro_batches.PackedMicroBatch.made = made

    def noted(self, ranks, *args):
        made(self, ranks, *args)
        seen["layouts"].append(ranks.tolist())

    micro_batches.PackedMicroBatch.__init__ = noted
    if job.get("global"):
        keep_in_a_global(micro_batches, GLOBALS[job["global"]])
    return seen


def has_windows(query, key, value, heads, ranks, *rest):
    return len(ranks["cp_inner_ranks"]) > 1


def counted(module, name, way, ways, count=lambda *args, **kwargs: 1):
    function = getattr(module, name)
    function = getattr(function, "counts", function)

    def counting(*args, **kwargs):
        ways[way] += count(*args, **kwargs)
        return function(*args, **kwargs)

    counting.counts = function
    setattr(module, name, counting)


GLOBALS = {
    "groups": ["cp_group", "cp_overlap_group"],
    "all": [field.name for field in dataclasses.fields(PackedSeqParams)],
}


def keep_in_a_global(micro_batches, names):
    """The published way: whoever asks for one of these gets that of the micro-batch that was packed last."""
    last = {}

    def in_the_global(name):
        return property(lambda self: last[name], lambda self, value: last.update({name: value}))

    micro_batches.PackedSeqParams = type("Current", (PackedSeqParams,), {name: in_the_global(name) for name in names})


def main():
    tiny.use_reference_operators()
    reports = {}
    for name, job in JOBS.items():
        found, reports[name] = run(job)
        if mpu.get_data_parallel_rank() == 0:
            torch.save(found, FOLDER / f"{name}.{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
    return reports


print(json.dumps(main()))
