"""Probe: verl v0.9.0's Megatron engine with a bridge and without one, as far as its constructor's first check."""

import json

import megatron_cpu  # noqa: F401  (first: it makes Megatron-LM importable without a device)
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron.transformer_impl import MegatronEngine


def refused(config):
    """What the constructor says: behind its first check it wants Megatron-LM's groups, which are not made here."""
    try:
        MegatronEngine(None, config, None, None)
    except AssertionError as refusal:
        return str(refusal)
    raise RuntimeError("an engine without groups was made")


default = McoreEngineConfig()
print(
    json.dumps(
        {
            "default": {"bridge": default.use_mbridge, "checkpoint": default.use_dist_checkpointing},
            "refused": {str(bridge): refused(McoreEngineConfig(use_mbridge=bridge)) for bridge in (True, False)},
        }
    )
)
