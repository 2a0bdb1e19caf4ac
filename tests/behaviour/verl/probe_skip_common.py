"""What the probes of skip_old_log_prob share: uneven responses, counted forward passes, recorded gradients.

A run is described by what a user sees (calls, figures logged) and by what it must share with the run that has the
forward pass: gradients and weights. Not a probe itself.
"""

from collections import Counter

import torch
import trainer_in_process as tip

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SKIP = f"{ACTOR}.skip_old_log_prob=True"
EOS = 2
# A temperature far from 1: logits that are not divided by it give other gradients, and entropies differ by token.
COMMON = [f"{ROLLOUT}.temperature=0.2", f"{ACTOR}.kl_loss_coef=0.1"]
# Settings under which FSDP's and Megatron's actor are both run.
BOTH_ACTORS = {
    "plain": [],
    "entropy_and_kl_loss": [f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=True"],
    "dynamic_micro_batches": [
        f"{ACTOR}.use_dynamic_bsz=True",
        f"{ACTOR}.ppo_max_token_len_per_gpu=64",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=64",
    ],
}
# What a run logs that is a time, or follows from one.
TIMES = ("timing", "perf/")


class UnevenWorkers(tip.Workers):
    """Responses of 2 to 8 tokens, so that the mean over tokens, over sequences and over micro-batches all differ."""

    def __init__(self, config, engines=1):
        super().__init__(config, engines)
        self.forwards = Counter()
        self.gradients = []
        self.entropy_needs_grad = set()
        self.trained_model().register_forward_pre_hook(self._count)
        self._watch_update()

    def trained_model(self):
        return self.model

    def _count(self, *args):
        self.forwards[self.calls[-1]] += 1

    def _watch_update(self):
        actor, forward = self.worker.actor, self.worker.actor._forward_micro_batch

        def recorded(*args, **kwargs):
            entropy, log_probs = forward(*args, **kwargs)
            if torch.is_grad_enabled() and entropy is not None:
                self.entropy_needs_grad.add(entropy.requires_grad)
            return entropy, log_probs

        actor._forward_micro_batch = recorded
        actor.actor_optimizer.register_step_pre_hook(lambda *_: self.gradients.append(self._gradients()))

    def _gradients(self):
        return [weight.grad.clone() for weight in self.model.parameters()]

    def weights(self):
        return [weight.detach().clone() for weight in self.trained_model().parameters()]

    def generate(self, shard, rank):
        output = super().generate(shard, rank)
        batch, width = output.batch, output.batch["responses"].shape[1]
        lengths = 2 + batch["responses"].sum(-1) % (width - 1)
        position = torch.arange(width)
        last, after = position == lengths[:, None] - 1, position >= lengths[:, None]
        batch["responses"][last], batch["responses"][after] = EOS, 0
        batch["input_ids"][:, -width:] = batch["responses"]
        batch["attention_mask"][:, -width:] = (~after).long()
        return output


def run(make_config, make_workers, overrides, trainer=None):
    """One run of `fit`: the workers, and what can be reported as JSON."""
    config = make_config(*COMMON, *overrides)
    workers = make_workers(config)
    start = workers.weights()
    steps = tip.fit(config, workers, trainer=trainer)
    return workers, {
        "calls": workers.calls,
        "forwards": dict(workers.forwards),
        "old_log_probs_sent": [{"old_log_probs"} <= set(batch.batch.keys()) for batch in workers.trained],
        "entropy": [step["actor/entropy"] for step in steps],
        "entropy_needs_grad": sorted(workers.entropy_needs_grad),
        "logged": [{key: float(value) for key, value in step.items() if not key.startswith(TIMES)} for step in steps],
        "timed_old_log_prob": ["timing_s/old_log_prob" in step for step in steps],
        "moved": _largest_difference([start], [workers.weights()]),
    }


def compare(make_config, make_workers, overrides, trainer=None):
    """The same run with the forward pass and without it."""
    with_pass, off = run(make_config, make_workers, overrides, trainer)
    without, on = run(make_config, make_workers, [*overrides, SKIP], trainer)
    return {
        "off": off,
        "on": on,
        "gradients_differ_by": _largest_difference(with_pass.gradients, without.gradients),
        "weights_differ_by": _largest_difference([with_pass.weights()], [without.weights()]),
        "largest_gradient": max(float(one.abs().max()) for step in with_pass.gradients for one in step),
    }


def _largest_difference(left, right):
    pairs = [pair for one, other in zip(left, right, strict=True) for pair in zip(one, other, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


def refusal(call):
    """The message of the ValueError that `call` raises; None when it raises none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None
