# Copyright 2026 Bytedance Ltd. and/or its affiliates
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import asyncio
import os
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

ROLLOUT = "actor_rollout_ref.rollout"
TOKEN_SECONDS = {1: 0.01, 8: 0.08}  # by the number of running requests


def _server(running, version=1, waiting=False, prefix="r", cache=100_000):
    from verl.workers.rollout.rebalance.planner import Request, Server

    requests = (Request(f"{prefix}{i}", 10 * (i + 1), 500, True, waiting) for i in range(running))
    return Server(tuple(requests), version, 16, cache)


def _plan(**servers):
    from verl.workers.rollout.rebalance.planner import Policy, Speeds, plan

    moves = plan(servers, Speeds(TOKEN_SECONDS, prompt=1000), Policy(horizon=100, gain=0.1))
    return [tuple(move) for move in moves]


def test_plan_moves_the_shortest_requests_of_the_fullest_server_to_the_emptiest():
    assert _plan(a=_server(6), b=_server(3, prefix="s"), c=_server(2, prefix="t")) == [
        ("r0", "a", "c"),
        ("r1", "a", "c"),
    ]


@pytest.mark.parametrize(
    "idle",
    [{"version": 2}, {"running": 1, "waiting": True}, {"running": 5}, {"cache": 100}],
    ids=["other-weights", "waiting", "no-gain", "no-room"],
)
def test_plan_moves_nothing_to_a_server_that_cannot_take_it(idle):
    assert _plan(a=_server(6), b=_server(**{"running": 0, "prefix": "s", **idle})) == []


def test_load_balancer_moves_what_the_plan_says():
    from verl.workers.rollout.rebalance.balancer import RebalancingLoadBalancer

    servers = {name: MagicMock() for name in "ab"}
    for server, running in zip(servers.values(), (8, 0), strict=True):
        loads = SimpleNamespace(server=_server(running), token=TOKEN_SECONDS, prompt=1000.0)
        server.rebalance_loads.remote = AsyncMock(return_value=loads)
    servers["a"].rebalance_move.remote = AsyncMock(side_effect=list)
    settings = {"horizon": 100, "min_gain": 0.1, "token_seconds": [], "prompt_tokens_per_second": None}
    balancer = RebalancingLoadBalancer(settings, servers=servers)
    assert asyncio.run(balancer.rebalance()) == balancer.get_status()["moved_requests"] == 4
    servers["a"].rebalance_move.remote.assert_awaited_once_with({f"r{i}": "b" for i in range(4)})


def _generate(first, second=None):
    """The answer to a request whose server returns `first`, and the mocks of load balancer and servers."""
    server, balancer = MagicMock(), MagicMock()
    server.generate.remote = AsyncMock(return_value=first)
    server.generate_moved.remote = AsyncMock(return_value=second)
    balancer.require_acquire_fields.remote = balancer.require_release_fields.remote = AsyncMock(return_value=[])
    balancer.acquire_server.remote = AsyncMock(side_effect=[("a", server), ("b", server)])
    balancer.move_session.remote = AsyncMock()
    rollout = SimpleNamespace(name="vllm", full_determinism=False)
    client = LLMServerClient(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), balancer)
    params = {"temperature": 1.0, "max_tokens": 8}
    output = asyncio.run(client.generate("session", prompt_ids=[1, 2], sampling_params=params))
    released = [call.kwargs["server_id"] for call in balancer.release_server.remote.call_args_list]
    return output, server, balancer, released


def test_client_continues_a_moved_request_after_the_tokens_it_has():
    first = TokenOutput(
        token_ids=[5, 6],
        log_probs=[-0.5, -0.6],
        routed_experts=np.array([10, 11, 12]),
        extra_fields={"global_steps": 3, "rebalance": {"to": "b", "max_tokens": 6}},
    )
    second = TokenOutput(
        token_ids=[7], log_probs=[-0.7], routed_experts=np.array([20, 21, 22, 23]), extra_fields={"global_steps": 3}
    )
    output, server, balancer, released = _generate(first, second)
    (moves, global_steps), request = server.generate_moved.remote.call_args
    assert (moves, global_steps, request["prompt_ids"]) == (1, 3, [1, 2, 5, 6])
    assert request["sampling_params"] == {"temperature": 1.0, "max_tokens": 6}
    balancer.move_session.remote.assert_awaited_once_with("session", "b")
    assert (output.token_ids, output.log_probs) == ([5, 6, 7], [-0.5, -0.6, -0.7])
    assert output.routed_experts.tolist() == [10, 11, 12, 23]
    assert released == ["a", "b"] and "rebalance" not in output.extra_fields


def test_client_returns_other_answers_as_they_are():
    first = TokenOutput(token_ids=[5], extra_fields={"global_steps": 3})
    output, server, balancer, released = _generate(first)
    assert output is first and released == ["a"]
    server.generate_moved.remote.assert_not_called()
    balancer.move_session.remote.assert_not_called()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ROLLOUT}.name=sglang", "name=vllm"),
        (f"{ROLLOUT}.full_determinism=True", "full_determinism=False"),
        (f"{ROLLOUT}.tensor_model_parallel_size=8", "nowhere to move to"),
        (f"{ROLLOUT}.rollout_rebalance.min_gain=1.5", "from 0 to below 1"),
    ],
)
def test_unsupported_configs_are_rejected_before_ray_starts(monkeypatch, override, message):
    monkeypatch.setattr("ray.init", lambda *args, **kwargs: pytest.fail("Ray was started"))
    monkeypatch.setattr("os.environ", dict(os.environ))  # run_ppo adds to it
    enabled = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.rollout_rebalance.enable=True"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*enabled, override])
    with pytest.raises(ValueError, match=message):
        run_ppo(config, TaskRunnerV1)
