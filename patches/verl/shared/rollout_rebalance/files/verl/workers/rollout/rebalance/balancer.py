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
"""In verl's load balancer: asks the servers what they run, plans, and has sessions follow their requests."""

import asyncio
import logging
import math
import time

from verl.workers.rollout.llm_server import GlobalRequestLoadBalancer

from .planner import Policy, Server, Speeds, plan

logger = logging.getLogger(__name__)

# A server that has not answered by then is left out of the plan.
ANSWER_S = 10.0
# No request is on its way for so long: what is in flight and not running all that time was never released.
LOST_S = 60.0


class _OnTheWay:
    """How many requests come to a server, or go back from it: those that are in flight, do not run, and are not lost."""

    def __init__(self):
        self._lost, self._least, self._until = 0, math.inf, time.monotonic() + LOST_S

    def of(self, number: int) -> int:
        """`number` is in flight and does not run now; what is the least in all of LOST_S is lost."""
        self._lost, self._least = min(self._lost, number), min(self._least, number)
        if time.monotonic() > self._until:
            self._lost, self._least, self._until = self._least, number, time.monotonic() + LOST_S
        return number - self._lost


class RebalancingLoadBalancer(GlobalRequestLoadBalancer):
    """Verl's own, which every `interval` seconds moves running requests of crowded servers to idle ones.

    As an actor it runs on one event loop, since it has a method that is awaited: methods of verl's are whole steps on it.
    """

    def __init__(self, settings: dict, **kwargs):
        """`settings` has the fields of RolloutRebalanceConfig."""
        super().__init__(**kwargs)
        self._settings = settings
        self._policy = Policy(settings["horizon"], settings["min_gain"])
        self._task: asyncio.Task | None = None
        self._moved = 0
        self._on_the_way: dict[str, _OnTheWay] = {}
        self._silent: set[str] = set()  # servers that did not answer

    def acquire_server(self, request_id: str):
        """As verl's; while requests are in flight, plans are made."""
        acquired = super().acquire_server(request_id)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._while_in_flight())
        return acquired

    def move_session(self, request_id: str, destination: str) -> None:
        """The session's next `acquire_server` is at the destination, and so are later turns; where that was removed, verl chooses."""
        self._request_id_to_server[request_id] = destination

    def get_status(self) -> dict:
        """As verl's, and how many requests were moved."""
        return super().get_status() | {"moved_requests": self._moved}

    async def rebalance(self) -> int:
        """Moves what a plan of this moment says; returns the number of requests that leave."""
        handles = dict(self._servers)
        told = await self._answers({name: one.rebalance_loads.remote() for name, one in handles.items()})
        # Of a server to which requests are on their way, or back from it, nobody knows what it runs: there will be another plan.
        servers = {name: one.server for name, one in told.items() if not self._in_motion(name, one.server)}
        speeds = self._speeds(told.values())
        moves = plan(servers, speeds, self._policy) if speeds else []
        if not moves:
            return 0
        destinations: dict[str, dict[str, str]] = {}
        for move in moves:
            destinations.setdefault(move.source, {})[move.request_id] = move.destination
        left = await self._answers(
            {name: handles[name].rebalance_move.remote(there) for name, there in destinations.items()}
        )
        number = sum(map(len, left.values()))
        self._moved += number
        counts = ", ".join(f"{name}: {len(one.requests)}" for name, one in servers.items())
        print(f"rollout_rebalance: {number} requests go on at another server; of those there were {counts}")
        return number

    async def _answers(self, asked: dict) -> dict:
        """What servers answer; one that fails, or takes too long, is left out."""
        calls = (asyncio.wait_for(one, ANSWER_S) for one in asked.values())
        answers = dict(zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        silent = {name: one for name, one in answers.items() if isinstance(one, Exception)}
        for name in silent.keys() - self._silent:
            logger.warning(f"rollout_rebalance: {name} does not answer, gives and takes nothing: {silent[name]!r}")
        self._silent = (self._silent - answers.keys()) | silent.keys()
        return {name: one for name, one in answers.items() if name not in silent}

    def _in_motion(self, name: str, server: Server) -> bool:
        more = max(self._inflight_requests.get(name, 0) - len(server.requests), 0)
        return self._on_the_way.setdefault(name, _OnTheWay()).of(more) > 0

    async def _while_in_flight(self) -> None:
        self._on_the_way.clear()
        while self.get_total_inflight():
            await asyncio.sleep(self._settings["interval"])
            try:
                await self.rebalance()
            except Exception:
                # A server that fails tells the callers of its requests itself; the others go on.
                logger.exception("rollout_rebalance: no plan was made")

    def _speeds(self, loads) -> Speeds | None:
        """What the settings say; else the mean of what servers saw, None where none has seen a prompt yet."""
        token, prompts = dict(self._settings["token_seconds"]), [one.prompt for one in loads if one.prompt]
        if not token:
            seen: dict[int, list[float]] = {}
            for one in loads:
                for number, seconds in one.token.items():
                    seen.setdefault(number, []).append(seconds)
            token = {number: sum(all_) / len(all_) for number, all_ in seen.items()}
        prompt = self._settings["prompt_tokens_per_second"] or (prompts and sum(prompts) / len(prompts))
        return Speeds(token, prompt) if prompt else None
