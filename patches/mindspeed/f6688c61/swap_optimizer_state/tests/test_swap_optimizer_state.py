"""swap_optimizer_state: optimizer states that lie on the host are saved, and a load puts them there."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_swap_optimizer_state.py"
TREES: dict[str, Any] = {
    "need": ["megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu"],
    "timeout": 200,
}


@pytest.mark.on
def test_states_on_the_host_are_saved_and_loaded(upstream: Upstream) -> None:
    found = upstream.run(PROBE, "on", **TREES)
    assert found == {"on the host": True, "error": None, "still": True, "different": 0}


@pytest.mark.off
def test_without_swap_optimizer_the_states_are_the_devices(upstream: Upstream) -> None:
    found = upstream.run(PROBE, "off", **TREES)
    assert found == {"on the host": False, "error": None, "still": False, "different": 0}
