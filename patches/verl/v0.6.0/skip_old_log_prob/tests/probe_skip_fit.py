"""Probe: RayPPOTrainer.fit over verl's FSDP worker and DataParallelPPOActor.

Usage: probe_skip_fit.py MODEL off | on
"""

import copy
import json
import sys

import trainer_in_process as tip
from probe_skip_common import ACTOR, BOTH_ACTORS, ROLLOUT, UnevenWorkers, compare, run

MODEL, MODE = sys.argv[1:]
CASES = {
    **BOTH_ACTORS,
    "sequence_ratio": [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
    # What fit reports is over the whole batch, so it does not depend on the size of the micro-batches.
    "other_micro_batches": [
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2",
    ],
    "remax": ["algorithm.adv_estimator=remax", f"{ROLLOUT}.n=1"],
}


class TwoRanks(UnevenWorkers):
    """Two data-parallel ranks, each with its half of the batch. They share no gradients, which nothing here is about:
    it is about the entropies of both, joined as verl joins the answers of ranks.
    """

    def __init__(self, config, engines=1):
        from transformers import AutoModelForCausalLM

        halved = copy.deepcopy(config)
        halved.actor_rollout_ref.actor.ppo_mini_batch_size //= 2
        super().__init__(halved, engines)
        second = AutoModelForCausalLM.from_pretrained(MODEL, dtype=self.model.dtype)
        self.ranks = [self.worker, tip._fsdp_worker(self.config, second)]

    def compute_log_prob(self, batch):
        return self._on_both(super().compute_log_prob, batch)

    def update_actor(self, batch):
        return self._on_both(super().update_actor, batch)

    def _on_both(self, method, batch):
        from verl import DataProto

        answers = []
        for rank, half in zip(self.ranks, batch.chunk(2), strict=True):
            self.worker = rank
            answers.append(method(half))
        return DataProto.concat(answers)


def make_config(*overrides):
    return tip.compose_config(MODEL, *overrides)


def make_workers(config):
    return UnevenWorkers(config, engines=2)


def main():
    if MODE == "on":
        results = {name: compare(make_config, make_workers, overrides) for name, overrides in CASES.items()}
        return results | {"two_ranks": compare(make_config, TwoRanks, [])}
    settings = {name: CASES[name] for name in ("plain", "dynamic_micro_batches")}
    settings["two_epochs_of_two_mini_batches"] = [f"{ACTOR}.ppo_mini_batch_size=2", f"{ACTOR}.ppo_epochs=2"]
    return {name: run(make_config, make_workers, overrides)[1] for name, overrides in settings.items()}


print(json.dumps(main()))
