"""Probe: how often verl v0.9.0's trainer looks for a step's answers, by default and as PATCHCTL_STANDINS_WATCH has it."""

import json

import patchctl_standins.start  # noqa: F401  (as patchctl_standins.pth has it)
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

settings = {"trainer_mode": "sync", "trainer_config": {}, "max_off_policy_threshold": 8}
made = ReplayBuffer(**settings, max_off_policy_strategy="drop", sampler_kwargs={})
print(json.dumps(made.poll_interval))
