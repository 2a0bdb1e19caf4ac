"""Probe: what ranks with attention and ranks without do at the start, as stages of a pipeline have it.

Usage: probe_hdp_stages.py CONTEXT:PIPELINE...   Sizes of the two, for each of which there is a report: how many
attentions this rank has, what is refused, or what was sent over each of the groups that were made, and over one of all,
and over which the first messages went.
"""

import json
import sys
from contextlib import contextmanager
from datetime import timedelta

import probe_hdp_model as tiny  # first: it imports MindSpeed's adaptor
import torch
import torch.distributed as dist
from hdp_settings import said
from verl.utils.hybrid_data_parallel import groups, setup

# For a rank that waits for one that has gone on: sooner than the limit of the test, so that it says where it waits.
LIMIT = timedelta(seconds=60)


def stage(pipeline):
    """This rank's part of a model of one layer, whose last stage has no layer: there the loss counts for one.

    Without stages the second rank stands for a rank of such a stage, with a model of no layer.
    """
    config = tiny.transformer_config()
    config.account_for_loss_in_pipeline_split = pipeline > 1
    config.num_layers = 0 if pipeline == 1 == dist.get_rank() else 1
    return tiny.model(config, one_process=False), config


def counts(overlap):
    """How many ranks there are in each block's group and in its second one, and in a group that is made after them."""
    found = {}
    for (first, size), block in groups.make_groups(overlap).items():
        for kind, group in block._asdict().items():
            if group is not None:
                found[f"{kind} {first} {size}"] = count(group)
    # PyTorch names groups by their number: ranks that have made more of them than others do not find those in the next.
    return found | {"all": count(dist.new_group(timeout=LIMIT))}


def count(group):
    """How many ranks the group's messages come from."""
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return int(one)


def report(context, pipeline):
    tiny.use_parallel(cp=context, pp=pipeline, overlap=True)
    module, config = stage(pipeline)
    result = {"attentions": sum(hasattr(part, "core_attention") for part in module.modules())}
    result["said"] = said(lambda: setup.prepare([module], config))
    if result["said"] is not None:
        return result
    sent = []
    with sending(sent):
        overlap = setup.prepare([module], config)
    return result | {"overlap": overlap, "counts": counts(overlap), "warmed up": sorted(sent)}


@contextmanager
def sending(sent):
    """Notes the size of the group that each message of a ring takes."""
    isend = dist.isend
    dist.isend = lambda tensor, dst, group: sent.append(dist.get_world_size(group)) or isend(tensor, dst, group)
    yield
    dist.isend = isend


def main():
    tiny.use_reference_operators()
    dist.init_process_group("gloo", timeout=LIMIT)
    # No barrier at the end: a rank that another one waits for has to be seen to have ended.
    return [report(*map(int, sizes.split(":"))) for sizes in sys.argv[1:]]


print(json.dumps(main()))
