"""rollout_rebalance between Ray's actors: verl's manager, servers and load balancer as a trainer has them."""

from __future__ import annotations

import pytest
from harness import Upstream
from models import TinyModels
from test_rollout_rebalance import ENGINE


@pytest.mark.on
def test_answers_of_moved_requests_through_ray(upstream: Upstream, tiny_models: TinyModels) -> None:
    for_ray = ["npu_attention", "npu_training", "npu_training_0_9", "patchctl_standins"]
    settings = {**ENGINE, "standins": [*ENGINE["standins"], *for_ray], "timeout": 400}
    made = upstream.run("probe_rebalance_ray.py", tiny_models.qwen3_moe, **settings)
    moved, stayed = made["True"], made["False"]
    assert moved["status"]["moved_requests"] >= 1
    assert [one["tokens"] for one in moved["answers"]] == [one["tokens"] for one in stayed["answers"]]
    assert [len(one["tokens"]) for one in moved["answers"]] == [200, 4] * 4
    assert list(moved["status"]["servers"].values()) == [0, 0]
