"""settings_checks_dapo: DAPO's entry module refuses settings before it starts Ray."""

from __future__ import annotations

import pytest
from entry_process import CAME_TO_RAY, start
from harness import Upstream

MODULE = "recipe.dapo.main_dapo"
ROLLOUT = "actor_rollout_ref.rollout"
# Of a boolean, and of a check that DAPO's trainer does not call: upstream's validate_config is main_ppo's alone.
REFUSED = {
    f"{ROLLOUT}.eplb_lifecycle=Off": f"{ROLLOUT}.eplb_lifecycle='Off' is neither True nor False",
    f"{ROLLOUT}.rollout_rebalance.enable=True": f"there is nothing to balance with {ROLLOUT}.data_parallel_size=1",
}


@pytest.mark.on
@pytest.mark.parametrize("override", REFUSED)
def test_the_driver_refuses_before_it_starts_ray(upstream: Upstream, override: str) -> None:
    status, output = start(upstream, MODULE, override)
    assert status == 1
    assert REFUSED[override] in output
    assert CAME_TO_RAY not in output


@pytest.mark.off
def test_what_is_right_comes_to_ray(upstream: Upstream) -> None:
    status, output = start(upstream, MODULE)
    assert (status, CAME_TO_RAY in output) == (1, True)
