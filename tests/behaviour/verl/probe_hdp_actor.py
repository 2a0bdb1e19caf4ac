"""Probe: log-probabilities, entropies, losses and gradients of verl's Megatron actor, with and without the switch.

Usage: probe_hdp_actor.py FOLDER JOBS   (JOBS is a JSON object: name -> job)

A job: `lengths` of the sequences, or a list of them for each data parallel rank; `tp`, `cp`, `pp`; `hdp`; `tokens` a
rank of dynamic micro-batches, or `rows` of fixed ones; `bf16`; `recompute`; `overlap` for a second group; `global` keeps
the groups of the micro-batch in a global of the module, as a reference of what must not be done. Results of a job are
saved in FOLDER/NAME.STAGE.pt; printed are the layouts of each job's micro-batches, how often attention took which way,
and what was sent to gather results.
"""

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


def run(job):
    """What a job gives: tensors to be compared, and what was seen on the way."""
    tiny.use_parallel(*(job.get(size, 1) for size in ("tp", "cp", "pp")), job.get("overlap", False))
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
    for chunk in actor.actor_module:
        chunk.train()
    log_probs, entropies = actor.compute_log_prob(data, calculate_entropy=True)
    noise = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(5))
    data.batch["old_log_probs"] = torch.zeros_like(log_probs) - 6 + 0.1 * noise
    metrics = actor.update_policy(dataloader=actor.make_minibatch_iterator(data))
    found = {
        "log_probs": log_probs,
        "entropies": entropies,
        "losses": torch.tensor(metrics.get("actor/pg_loss", [])),
        **{f"gradient of {name}": grad for name, grad in actor.actor_optimizer.gradients.items()},
    }
    return found, {"layouts": seen["layouts"], "ways": dict(seen["ways"])}


def watch(job):
    """Counts attention's ways, and notes each micro-batch's layout; patches nothing that computes."""
    seen = {"layouts": [], "ways": Counter()}
    if not job.get("hdp"):
        return seen
    from mindspeed.core.context_parallel import packed_group
    from verl.utils.hybrid_data_parallel import groups, micro_batches

    counted(packed_group, "_alone", "alone", seen["ways"])
    counted(packed_group, "ringattn_context_parallel", "part of the ring", seen["ways"])
    counted(groups, "_groups_of", "groups made", seen["ways"])
    counted(dist, "all_to_all_single", "values sent", seen["ways"], lambda received, sent, **sizes: sent.numel())
    made = getattr(micro_batches.PackedMicroBatch, "made", micro_batches.PackedMicroBatch.__init__)
    micro_batches.PackedMicroBatch.made = made

    def noted(self, ranks, *args):
        made(self, ranks, *args)
        seen["layouts"].append(ranks.tolist())

    micro_batches.PackedMicroBatch.__init__ = noted
    if job.get("global"):
        keep_in_a_global(micro_batches)
    return seen


def counted(module, name, way, ways, count=lambda *args, **kwargs: 1):
    function = getattr(module, name)
    function = getattr(function, "counts", function)

    def counting(*args, **kwargs):
        ways[way] += count(*args, **kwargs)
        return function(*args, **kwargs)

    counting.counts = function
    setattr(module, name, counting)


def keep_in_a_global(micro_batches):
    """The published way: whoever asks for the group gets that of the micro-batch that was packed last."""

    class Current(PackedSeqParams):
        groups = (None, None)

        @property
        def cp_group(self):
            return Current.groups[0]

        @property
        def cp_overlap_group(self):
            return Current.groups[1]

        @cp_group.setter
        def cp_group(self, value):
            pass

        @cp_overlap_group.setter
        def cp_overlap_group(self, value):
            pass

    make = micro_batches.PackedMicroBatch._packed_seq_params

    def remembered(self):
        Current.groups = self.groups or (None, None)
        return make(self)

    micro_batches.PackedSeqParams = Current
    micro_batches.PackedMicroBatch._packed_seq_params = remembered


def main():
    tiny.use_reference_operators()
    reports = {}
    for name, job in JOBS.items():
        found, reports[name] = run(job)
        if mpu.get_tensor_model_parallel_rank() == 0 == mpu.get_data_parallel_rank(with_context_parallel=True):
            torch.save(found, FOLDER / f"{name}.{mpu.get_pipeline_model_parallel_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
    return reports


print(json.dumps(main()))
