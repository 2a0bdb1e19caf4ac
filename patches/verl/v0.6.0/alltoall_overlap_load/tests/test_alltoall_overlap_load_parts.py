"""alltoall_overlap_load: which keys may be missing, by whole names; virtual pipeline stages, each with its own number."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream


@pytest.fixture(scope="module")
def parts(upstream: Upstream) -> Any:
    return upstream.run("probe_grouped_parts.py", need=["verl", "megatron-lm"], standins=["megatron_cpu"])


@pytest.mark.on
def test_keys_are_exempt_by_whole_names(parts: Any) -> None:
    said = parts["keys"]
    assert said.pop("head") is said.pop("extra state") is None
    faults = {
        "head of no value model": "the checkpoint lacks output_layer.weight",
        "like a head": "the checkpoint lacks decoder.my_output_layer_norm.weight",
        "stored like a head": "the model has no decoder.output_layers.weight",
        "like an extra state": "the checkpoint lacks decoder.layers.0.my_extra_state",
    }
    assert said == {name: f"checkpoint and model do not fit: {fault}" for name, fault in faults.items()}


@pytest.mark.on
def test_each_virtual_stage_is_current_while_its_shards_are_made(parts: Any) -> None:
    stages = parts["stages"]
    assert stages["seen"] == [[0, "a", 0], [1, "b", 1], [2, "c", 2]]
    assert stages["after"] == 1
    assert stages["alone"] == [[0, None]]
