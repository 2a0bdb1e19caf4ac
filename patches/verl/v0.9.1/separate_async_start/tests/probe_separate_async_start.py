"""Probe of separate_async_start: the set-up of verl's separate_async trainer, with and without engines on the training ranks.

What the set-up makes before and between its own lines (workers, servers and the sender of weights, on Ray) is put in its place.
"""

import json
import logging
import sys
from types import SimpleNamespace

from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_separate_async as upstream


def replicas(count):
    return SimpleNamespace(rollout_replicas=[None] * count, get_replicas=lambda: [None] * count, server_addresses=[])


def set_up(hybrid):
    lines = []
    upstream.logger.addHandler(
        SimpleNamespace(level=logging.INFO, handle=lambda record: lines.append(record.getMessage()))
    )
    trainer = object.__new__(upstream.PPOTrainerSeparateAsync)
    engine = {"_target_": "verl.workers.config.CheckpointEngineConfig"}
    rollout = {"prometheus": {"enable": False}, "checkpoint_engine": engine, "name": "vllm"}
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    trainer._enable_hybrid_replicas = hybrid
    trainer.actor_rollout_wg, trainer.llm_server_manager = None, replicas(2 if hybrid else 0)
    balanced = []
    trainer.add_replicas_to_balancer = lambda: balanced.append(trainer.current_mode.value)
    upstream.PPOTrainer._setup = lambda self: None
    upstream.LLMServerManager.create = lambda config, start_rank: replicas(3)
    upstream.CheckpointEngineManager = lambda **given: len(given["replicas"])
    trainer._setup()
    return {
        "mode": trainer.current_mode.value,
        "receivers": trainer.standalone_checkpoint_manager,
        "balanced": balanced,
        "logged": [line for line in lines if "hybrid" in line],
    }


print(json.dumps(set_up(sys.argv[1] == "hybrid")))
