"""Probe: what verl's own files make of the reference policy's settings where the actor's are set."""

import json

from hdp_settings import ACCEPTED, MEGATRON, composed
from omegaconf import OmegaConf

REFERENCE = MEGATRON.replace(".actor.", ".ref.")
COSTS = {"ring_share": 0.05, "ring_step": 7.0, "quadratic_length": 9000.0}
SET = [f"{MEGATRON}.hybrid_data_parallel_by_time=True"]
SET += [f"{MEGATRON}.hybrid_data_parallel_costs.{name}={value}" for name, value in COSTS.items()]


def of_the_reference(*overrides):
    section = OmegaConf.to_container(composed(*ACCEPTED, *overrides).actor_rollout_ref.ref.megatron, resolve=True)
    return {name: value for name, value in section.items() if name.startswith("hybrid_data_parallel")}


print(
    json.dumps(
        {
            "left alone": of_the_reference(),
            "actor's": of_the_reference(*SET),
            "its own": of_the_reference(*SET, f"{REFERENCE}.hybrid_data_parallel=False"),
            "costs": COSTS,
        }
    )
)
