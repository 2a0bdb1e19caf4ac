"""Probe: a rollout is made and updated with default settings. Needs no engine, so that it runs on the unpatched tree too."""

import asyncio
import json
import sys

from rollout_config import compose_config
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import RolloutConfig
from verl.workers.rollout.base import BaseRollout


class Rollout(BaseRollout):
    async def resume(self, tags):
        return tags

    async def update_weights(self, weights, **kwargs):
        return list(weights)

    async def release(self):
        pass


node = compose_config("model").actor_rollout_ref.rollout
rollout = Rollout(omega_conf_to_dataclass(node, dataclass_type=RolloutConfig), "model", "mesh")
updated = asyncio.run(rollout.update_weights(iter([1, 2])))
print(json.dumps({"updated": updated, "imported": [name for name in sys.modules if name.endswith("mla_weights")]}))
