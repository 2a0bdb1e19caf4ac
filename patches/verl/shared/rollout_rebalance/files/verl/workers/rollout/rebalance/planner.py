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
"""Which running requests go to which server: a pure function that imports nothing but the standard library.

A step of a server takes longer the more requests it runs, so that two servers with four requests each are done before one
with eight. A request that moves takes no cache along: the other server computes prompt and answer so far anew. `plan` moves
where the fuller server of a pair gains more by it than that costs.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Request(NamedTuple):
    """One request of a server. Lengths are in tokens."""

    request_id: str
    context: int
    """prompt and answer so far, which another server would have to compute"""
    remaining: int
    """how many more it may make, 1 or more"""
    movable: bool
    waiting: bool
    """it has no token yet, or gets none although others do"""


class Server(NamedTuple):
    """What one server runs."""

    requests: tuple[Request, ...]
    version: int | None
    """of the weights; requests move between servers with the same one"""
    slots: int
    """how many requests it runs at once"""
    cache: int
    """how many tokens its KV cache has room for"""


class Policy(NamedTuple):
    """`horizon`: tokens that a request is taken to make still, where it may; `gain`: the least share of a server's time."""

    horizon: int
    gain: float


class Speeds(NamedTuple):
    """Seconds that a token takes by the number of requests that a server runs, and tokens of a prompt a second."""

    token: Mapping[int, float]
    prompt: float

    def seconds(self, requests: int) -> float:
        """Between two numbers in line; outside of them what the nearest one takes, so that nobody hopes for what was not seen.

        More requests never take less: what was seen is raised to what fewer took.
        """
        below, above, most = None, None, 0.0
        for number in sorted(self.token):
            most = max(most, self.token[number])
            if number <= requests:
                below = number, most
            if number >= requests:
                above = number, most
                break
        if below is None or above is None:
            return (below or above)[1]
        width = above[0] - below[0]
        return below[1] + (above[1] - below[1]) * ((requests - below[0]) / width if width else 0.0)


class Move(NamedTuple):
    request_id: str
    source: str
    destination: str


def plan(servers: Mapping[str, Server], speeds: Speeds, policy: Policy) -> list[Move]:
    """Moves after which a server that gives, and those that it gave to, are done sooner than it would have been; [] if there are none.

    Pairs of the fullest and the emptiest server, until none gains `policy.gain` of the fuller one's time. A server with a
    request that waits takes none, since it is full or behind with its prompts; it gives of those that run.

    Args:
        servers: by name. None of their requests is given twice.
        speeds: of any of them; without a time of tokens there is no plan.

    Raises:
        ValueError: impossible numbers.
    """
    if not speeds.token:
        return []
    if speeds.prompt <= 0 or min(speeds.token.values()) < 0 or policy.horizon < 1:
        raise ValueError(f"impossible numbers: {speeds} {policy}")
    made: list[Move] = []
    for version in {server.version for server in servers.values()}:
        rooms = [_Room(name, one) for name, one in sorted(servers.items()) if one.version == version]
        pairs = [(source, to) for source in rooms for to in rooms if not to.waiting]
        while pairs:
            # The widest pair gains most; where its requests cannot move or do not fit, the next one is tried.
            source, to = max(pairs, key=lambda pair: pair[0].count - pair[1].count)
            if source.count - to.count < 2:
                break
            if chosen := _chosen(source, to, speeds, policy):
                made += [Move(one.request_id, source.name, to.name) for one in chosen]
                source.give(chosen)
                to.take(chosen)
                # Who gives takes nothing, and who takes gives nothing.
                pairs = [pair for pair in pairs if pair[0] is not to and pair[1] is not source]
            else:
                pairs.remove((source, to))
    return made


class _Room:
    """A server while a plan is made: what would be on it, and which of its own may still leave."""

    def __init__(self, name: str, server: Server):
        self.name, self.slots, self.cache = name, server.slots, server.cache
        self.count = len(server.requests)
        self.used = sum(one.context for one in server.requests)
        self.prompts = 0  # tokens that it has to compute anew
        self.waiting = any(one.waiting for one in server.requests)
        # The cheapest first.
        running = (one for one in server.requests if one.movable and not one.waiting)
        self.movable = sorted(running, key=lambda one: one[1::-1])

    def give(self, requests) -> None:
        self.count -= len(requests)
        self.used -= sum(one.context for one in requests)
        self.movable = self.movable[len(requests) :]

    def take(self, requests) -> None:
        context = sum(one.context for one in requests)
        self.count, self.used, self.prompts = self.count + len(requests), self.used + context, self.prompts + context


def _chosen(source: _Room, to: _Room, speeds: Speeds, policy: Policy) -> list[Request]:
    """The cheapest requests of `source`, as many as gain most; [] where none gain enough."""
    best, chosen = 0.0, []
    for number in range(1, (source.count - to.count) // 2 + 1):
        leaving = source.movable[:number]
        tokens = min([policy.horizon, *(one.remaining for one in leaving)])
        context = sum(one.context for one in leaving)
        full = to.used + context + tokens * (to.count + number) > to.cache
        if len(leaving) < number or to.count + number > to.slots or full:
            break
        before = tokens * speeds.seconds(source.count)
        prefill = (to.prompts + context) / speeds.prompt
        after = max(
            tokens * speeds.seconds(source.count - number), prefill + tokens * speeds.seconds(to.count + number)
        )
        if (won := before - after) > best and won >= policy.gain * before:
            best, chosen = won, leaving
    return chosen
