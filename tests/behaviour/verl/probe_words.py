"""Probe: the words that verl's own registers have once its modules are imported, by the key that names one. Usage: probe_words.py."""

import json

from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.workers.rollout.base import _ROLLOUT_REGISTRY

FOUND = {
    "actor_rollout_ref.actor.policy_loss.loss_mode": POLICY_LOSS_REGISTRY,
    "actor_rollout_ref.rollout.name": [name for name, _ in _ROLLOUT_REGISTRY],
    "algorithm.adv_estimator": ADV_ESTIMATOR_REGISTRY,
    "reward.reward_manager.name": REWARD_MANAGER,
}
print(json.dumps({key: sorted(words) for key, words in FOUND.items()}))
