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
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams


def _output(token_ids, finish_reason=None):
    output = SimpleNamespace(token_ids=token_ids, finish_reason=finish_reason)
    return SimpleNamespace(outputs=[output], num_cached_tokens=0)


class _FakeEngine:
    errored = False
    vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=1),
        cache_config=SimpleNamespace(num_gpu_blocks=64, block_size=16),
    )

    def __init__(self):
        self.aborted, self.paused = asyncio.Event(), False

    async def generate(self):
        yield _output([5])
        yield _output([5, 6])
        await asyncio.wait_for(self.aborted.wait(), timeout=1)
        yield _output([5, 6], finish_reason="abort")

    async def abort(self, request_ids):
        self.aborted.set()

    async def is_paused(self):
        return self.paused


def _running():
    from verl.workers.rollout.rebalance.running import RunningRequests

    config = SimpleNamespace(max_num_seqs=4, rollout_rebalance=SimpleNamespace(max_moves=1))
    server = SimpleNamespace(config=config, engine=_FakeEngine(), global_steps=3, _submission_paused=False)
    return RunningRequests(server), server


def _move(stay=False, moves=0, **sampling_params):
    """What the server reports of a request with two tokens, and what `leaving` returns once it was asked to move."""

    async def run():
        requests, server = _running()
        params = SamplingParams(max_tokens=8, **sampling_params)
        prompt = {"prompt_token_ids": [1, 2, 3]}
        told = None
        async for output in requests.watch(server.engine.generate(), "r", params, prompt, moves):
            if output.outputs[0].token_ids == [5, 6] and told is None:
                told = requests.loads()
                assert await requests.move({"r": "b", "unknown": "b"}) == ["r"]
                if stay:
                    requests.stay()
        assert not requests.loads().server.requests
        return told.server, requests.leaving("r")

    return asyncio.run(run())


def test_request_leaves_with_what_it_may_still_generate():
    server, left = _move()
    (request,) = server.requests
    assert (request.context, request.remaining, request.movable, request.waiting) == (5, 6, True, False)
    assert (server.version, server.slots, server.cache) == (3, 4, 1024)
    assert left == {"rebalance": {"to": "b", "max_tokens": 6}}


def test_request_that_the_trainer_aborts_goes_nowhere():
    assert _move(stay=True)[1] == {}


@pytest.mark.parametrize("params", [{"seed": 1}, {"stop": ["x"]}, {"presence_penalty": 0.5}, {"moves": 1}])
def test_request_that_would_not_continue_alike_is_not_movable(params):
    assert not _move(**params)[0].requests[0].movable


@pytest.mark.parametrize(
    ("global_steps", "paused", "closed", "refused"),
    [(3, False, False, False), (2, False, False, True), (3, True, False, True), (3, False, True, True)],
    ids=["same-weights", "other-weights", "paused-engine", "closed-gate"],
)
def test_moved_request_is_refused_by_a_server_with_other_weights_or_paused(global_steps, paused, closed, refused):
    async def run():
        requests, server = _running()
        server.engine.paused, server._submission_paused = paused, closed
        return await requests.refuses(global_steps)

    output = asyncio.run(run())
    assert (output is not None) == refused
    assert output is None or output.stop_reason == "aborted"
