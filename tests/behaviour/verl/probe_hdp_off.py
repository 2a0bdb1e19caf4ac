"""Probe: verl's Megatron code without MindSpeed and with the switch off; what is imported, and how a batch is cut.

On a patched tree also: what the switch says without MindSpeed.
"""

import json
import os
import sys

import megatron_cpu  # noqa: F401  (before megatron)
import torch
import verl
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from verl.utils.seqlen_balancing import rearrange_micro_batches

LENGTHS = [60, 12, 9, 14, 8, 30, 7, 10]


def cut():
    """Indices of the micro-batches of LENGTHS with 80 tokens at most."""
    mask = (torch.arange(64) < torch.tensor(LENGTHS)[:, None]).long()
    batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=len(LENGTHS))
    micro_batches, indices = rearrange_micro_batches(batch=batch, max_token_len=80)
    return indices, sorted(micro_batches[0].keys())


def config(*overrides):
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer/config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_megatron_trainer", overrides=["actor_rollout_ref.model.path=none", *overrides])


def main():
    import verl.workers.megatron_workers  # noqa: F401  (as a worker does; it imports MindSpeed where there is one)

    indices, keys = cut()
    names = [name for name in sys.modules if name.split(".")[0] == "mindspeed"]
    result = {"indices": indices, "keys": keys, "mindspeed": names, "refused": None}
    try:
        from verl.utils.hybrid_data_parallel.setup import check_config
    except ModuleNotFoundError:
        return result
    check_config(config().actor_rollout_ref, mindspeed_is_there=False)
    megatron = "actor_rollout_ref.actor.megatron"
    on = config(f"{megatron}.hybrid_data_parallel=True", f"{megatron}.context_parallel_size=2")
    try:
        check_config(on.actor_rollout_ref, mindspeed_is_there=False)
    except ValueError as error:
        result["refused"] = str(error)
    packing = "verl.utils.hybrid_data_parallel.packing"
    return result | {"packing": packing in sys.modules, "torch": torch.__version__}


print(json.dumps(main()))
