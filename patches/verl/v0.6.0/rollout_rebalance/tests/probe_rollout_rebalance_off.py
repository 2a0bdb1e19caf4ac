"""Probe: the rollout's default settings, and what of rebalancing verl loads with them. Needs no engine, so that it runs unpatched too."""

import json
import sys

import verl.workers.rollout.base  # noqa: F401
from rollout_config import compose_config
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import RolloutConfig

node = compose_config("model").actor_rollout_ref.rollout
config = omega_conf_to_dataclass(node, dataclass_type=RolloutConfig)
declared, held = node.get("rollout_rebalance", {}), config.get("rollout_rebalance", {})
print(
    json.dumps(
        {
            "enabled": [bool(declared.get("enable", False)), bool(held.get("enable", False))],
            "imported": [name for name in sys.modules if "rebalance" in name and "vllm_rollout" in name],
        }
    )
)
