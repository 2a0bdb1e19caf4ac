# Part of patchctl's patch rollout_rebalance; not in upstream verl.
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
"""In a server: the requests that it runs, how long that takes, and the end of one that is to go on elsewhere."""

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from vllm import SamplingParams

from verl.workers.rollout.replica import TokenOutput

from .planner import Request, Server

# Settings that a second request with more prompt and less to make obeys as the first would have. A seed would draw the
# same numbers again; stop strings, penalties, bad words and grammars look at the answer, of which a part becomes prompt.
CARRIED = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "logprobs", "ignore_eos", "stop_token_ids")
CARRIED += ("repetition_penalty", "allowed_token_ids", "logit_bias", "skip_special_tokens", "detokenize")
# A request that got no token for so long, while its server made some, was preempted and waits.
STALLED_S = 2.0
# Of a new time in a mean: about the last fifty.
SHARE = 0.02


class Loads(NamedTuple):
    """What a server tells the balancer: what it runs, and its times as in `Speeds`; `prompt` is None before the first one."""

    server: Server
    token: Mapping[int, float]
    prompt: float | None


def carried(params: SamplingParams) -> bool:
    """Whether a request with these settings may move: what is not in CARRIED is as vllm has it by default."""
    default, names = SamplingParams(), [name for name in params.__struct_fields__ if not name.startswith("_")]
    return all(name in CARRIED or getattr(params, name) == getattr(default, name) for name in names)


class _Watched:
    """A request that runs here. Times are of time.monotonic()."""

    def __init__(self, prompt: int, params: SamplingParams, movable: bool, computed: int):
        self.prompt, self.max_tokens, self.movable = prompt, params.max_tokens, movable
        self.tokens, self.last = 0, time.monotonic()
        self.computed = computed  # tokens of prompts that this server had computed when it came
        self.leaves_for: str | None = None


class RunningRequests:
    """The requests of one server that came through `generate`."""

    def __init__(self, server):
        """`server` is the vLLMHttpServer, whose engine need not be there yet."""
        self._server = server
        self._requests: dict[str, _Watched] = {}
        self._left: dict[str, dict[str, Any]] = {}  # what `leaving` is to say
        self._moves = server.config.rollout_rebalance.max_moves
        self._token: dict[int, float] = {}
        self._prompt: float | None = None
        self._computed = 0
        self._waiting, self._quiet = 0, 0.0  # requests without a token, and when one had its first

    async def watch(self, generator, request_id: str, params: SamplingParams, prompt: dict, moves: int):
        """The outputs of `generator`, of which account is kept; `prompt` is verl's TokensPrompt, `moves` how often it has moved.

        Requests with images, videos or audio do not move.
        """
        movable = moves < self._moves and not prompt.get("multi_modal_data") and carried(params)
        one = _Watched(len(prompt["prompt_token_ids"]), params, movable, self._computed)
        self._requests[request_id] = one
        self._waiting += 1
        try:
            async with aclosing(generator):
                async for output in generator:
                    self._seen(one, output)
                    # One that was done before it could leave is done.
                    if one.leaves_for and output.outputs and output.outputs[0].finish_reason == "abort":
                        left = {"to": one.leaves_for, "max_tokens": one.max_tokens - one.tokens}
                        self._left[request_id] = left
                    yield output
        finally:
            del self._requests[request_id]
            self._waiting -= not one.tokens

    def _seen(self, one: _Watched, output) -> None:
        now, tokens = time.monotonic(), len(output.outputs[0].token_ids) if output.outputs else 0
        made = tokens - one.tokens
        if made < 1:
            return
        if not one.tokens:
            self._computed += one.prompt - (output.num_cached_tokens or 0)
            self._prompt = _mean(self._prompt, (self._computed - one.computed) / max(now - one.last, 1e-9))
        elif one.last >= self._quiet and not self._waiting:
            number = len(self._requests)
            self._token[number] = _mean(self._token.get(number), (now - one.last) / made)
        if not one.tokens:
            self._waiting, self._quiet = self._waiting - 1, now
        one.tokens, one.last = tokens, now

    def loads(self) -> Loads:
        """What runs here now."""
        engine, config = self._server.engine, self._server.config
        parallel, cache = engine.vllm_config.parallel_config, engine.vllm_config.cache_config
        latest = max((one.last for one in self._requests.values()), default=0.0)
        requests = tuple(
            Request(
                request_id,
                one.prompt + one.tokens,
                one.max_tokens - one.tokens,
                one.movable and not one.leaves_for,
                not one.tokens or latest - one.last > STALLED_S,
            )
            for request_id, one in self._requests.items()
        )
        # vllm's client counts the blocks of all ranks, and max_num_seqs is of one.
        room = (cache.num_gpu_blocks or 0) * cache.block_size
        # One that has failed looks idle, and takes nothing.
        slots = 0 if engine.errored else parallel.data_parallel_size * config.max_num_seqs
        server = Server(requests, self._server.global_steps, slots, room)
        return Loads(server, dict(self._token), self._prompt)

    async def move(self, destinations: Mapping[str, str]) -> list[str]:
        """Ends requests that are to go on elsewhere, by the ids that `loads` gave; returns those that were still here.

        What their `generate` returns says where to, and has the tokens so far.
        """
        here = [request_id for request_id in destinations if request_id in self._requests]
        for request_id in here:
            self._requests[request_id].leaves_for = destinations[request_id]
        # The cache stays: the requests may have prefixes in common with others, and weights are what they were.
        await self._server.engine.abort(here)
        return here

    def stay(self) -> None:
        """The trainer ends all requests: none goes on elsewhere."""
        self._left.clear()
        for one in self._requests.values():
            one.leaves_for, one.movable = None, False

    def leaving(self, request_id: str) -> dict[str, Any]:
        """For the extra fields of an answer: where to go on with it, and how many tokens it may make there; {} if it stays."""
        left = self._left.pop(request_id, None)
        return {"rebalance": left} if left else {}

    async def refuses(self, global_steps: int | None) -> TokenOutput | None:
        """The answer to a request that comes from a server with the weights of that step, where this one has others or is paused.

        It says that the trainer ended the request, which is why it is so.
        """
        if self._server.global_steps == global_steps and not await self._server.engine.is_paused():
            # Behind verl's closed gate it would wait for other weights. Nothing is awaited from here to that gate.
            if not self._server._submission_paused:
                return None
        return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={"global_steps": global_steps})


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SHARE * (new - old)
