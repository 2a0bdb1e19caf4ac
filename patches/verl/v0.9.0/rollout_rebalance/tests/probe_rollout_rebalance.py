"""Probe: answers of requests that move between two of verl's vllm servers, and of those that stay.

Usage: probe_rollout_rebalance.py MODEL on|off. Real: verl's vLLMHttpServer, load balancer, manager and clients, engines of vllm 0.23 with
vllm-ascend's worker; see rebalance_servers.py for what is not. Plans are made when they are asked for, by times that the settings give,
but for the last part. Prints what each part of `main` found.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import rebalance_servers as rs
from rebalance_servers import GREEDY, ROLLOUT, llm_server, until
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

LONG, SHORT, SEEN = 160, 4, 20
ENDLESS = 450  # is still at work when it is ended, whatever else the machine does
FIRST, SECOND = "server_0", "server_1"
OURS = f"{ROLLOUT}.rollout_rebalance"
# A step takes ten milliseconds for each request, and prompts next to nothing.
TIMES = [f"{OURS}.token_seconds=[[1,0.01],[8,0.08]]", f"{OURS}.prompt_tokens_per_second=1000000.0"]
BY_HAND = f"{OURS}.interval=1000000.0"
PARAMS = {
    "plain": {},
    "all that is carried": {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [7]},
    "seed": {"seed": 1},
    "stop strings": {"stop": ["never"]},
    "presence penalty": {"presence_penalty": 0.5},
    "least tokens": {"min_tokens": 5},
    "bad words": {"bad_words": ["never"]},
}


class Two:
    """Two servers, and their manager for one configuration."""

    def __init__(self, made, manager):
        self.made, self.manager = made, manager
        self.balancer, self.client = manager.global_load_balancer, manager.get_client()
        self.number = 0

    def running(self, name):
        return self.made[name]._rebalance.loads().server.requests

    def here(self, name, tokens=SEEN, number=1):
        """Whether so many requests run there, each with so many tokens."""
        running = self.running(name)
        return len(running) >= number and all(one.context >= 12 + tokens for one in running)

    def session(self, number):
        return f"session {self.number} {number}"

    def tail(self, client=None, long=LONG):
        """Eight requests, of which every second one is short: the sessions of the long ones are at the first server."""
        self.number += 1
        for at in range(8):
            self.balancer.of._request_id_to_server[self.session(at)] = SECOND if at % 2 else FIRST
        ask = (client or self.client).generate
        asked = [
            ask(
                self.session(at),
                prompt_ids=rs.prompt(at),
                sampling_params=GREEDY | {"max_tokens": SHORT if at % 2 else long},
            )
            for at in range(8)
        ]
        return [asyncio.ensure_future(one) for one in asked]

    async def long_ones(self, client=None):
        """As `tail`, when only the long ones are left, all on the first server."""
        tasks = self.tail(client)
        await until(lambda: self.here(FIRST, number=4) and len(self.running(FIRST)) == 4 and not self.running(SECOND))
        return tasks

    async def moved(self, client=None):
        """As `long_ones`, and as many moved as a plan says; the number of those."""
        tasks = await self.long_ones(client)
        return tasks, await self.balancer.rebalance.remote()

    async def direct(self, number, **params):
        """So many long requests at the first server, past the balancer."""
        self.number += 1
        server = rs.Actor(self.made[FIRST])
        asked = [
            asyncio.ensure_future(
                server.generate.remote(
                    prompt_ids=rs.prompt(at), sampling_params=GREEDY | {"max_tokens": LONG} | params, request_id=self.session(at)
                )
            )
            for at in range(number)
        ]  # fmt: skip
        slots = min(number, 8)
        await until(lambda: sum(not one.waiting for one in self.running(FIRST)) == slots)
        return asked

    async def stop(self, tasks, *names):
        """What the trainer does before it sends weights, and after."""
        for name in names or self.made:
            await self.made[name].abort_all_requests()
        outputs = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        for name in names or self.made:
            await self.made[name].resume_generation()
        return [rs.shown(one) for one in outputs]


async def answers(tasks):
    return [rs.shown(one) for one in await asyncio.wait_for(asyncio.gather(*tasks), 120)]


async def moving(two):
    """The same requests with a move and without; then the next turns of a session that has moved and of one that has not."""
    stayed = await answers(two.tail())
    tasks, number = await two.moved()
    await until(lambda: two.here(SECOND, 1, number))
    again = [one.movable for one in two.running(SECOND)]
    left = [one.movable for one in two.running(FIRST)]
    outputs = await answers(tasks)
    sessions = {at: two.balancer.of._request_id_to_server[two.session(at)] for at in range(0, 8, 2)}
    turns = {}
    for at, name in sessions.items():
        prompt = rs.prompt(at) + outputs[at]["tokens"] + [5, 6, 7]
        turn = asyncio.ensure_future(
            two.client.generate(two.session(at), prompt_ids=prompt, sampling_params=GREEDY | {"max_tokens": 40})
        )
        await until(lambda: any(map(two.running, two.made)))
        turns[at] = [name, [one for one in two.made if two.running(one)]]
        await turn
    loads = two.made[FIRST]._rebalance.loads()
    return {
        "stayed": stayed,
        "moved": outputs,
        "number": number,
        "sessions": sessions,
        "turns": turns,
        "movable": {"moved": again, "left": left},
        "in flight": two.balancer.of.get_status()["servers"],
        "moved_requests": two.balancer.of.get_status()["moved_requests"],
        "times": [sorted(loads.token), min(loads.token.values()), loads.prompt],
    }


async def carried(two):
    """Which settings a request may move with, and whether one with an image may."""
    found, server = {}, two.made[FIRST]
    for name, params in PARAMS.items():
        tasks = await two.direct(1, **params)
        (one,) = two.running(FIRST)
        found[name] = one.movable
        await two.stop(tasks, FIRST)
    for name, data in (("an image", {"image": ["pixels"]}), ("no image", {})):
        prompt = TokensPrompt(prompt_token_ids=rs.prompt(1), multi_modal_data=data)
        engine = server.engine.generate(TokensPrompt(prompt_token_ids=rs.prompt(1)), SamplingParams(max_tokens=3), name)
        async for _ in server._rebalance.watch(engine, name, SamplingParams(max_tokens=3), prompt, 0):
            found[name] = two.running(FIRST)[0].movable
    return found


async def held_back(two):
    """How many requests a plan moves off a crowded server: when all run; when two wait there; while one is on its way; with other weights on
    the idle one. And how many of the server's wait by its own account, when one gets no tokens."""
    found = {}
    for name, number in (("all run", 8), ("two wait", 10)):
        tasks = await two.direct(number)
        found[name] = await two.balancer.rebalance.remote()
        await two.stop(tasks)
    tasks = await two.direct(8)
    await two.balancer.move_session.remote("on its way", SECOND)
    server_id, _ = await two.balancer.acquire_server.remote(request_id="on its way")
    found["on its way"] = await two.balancer.rebalance.remote()
    two.balancer.of.release_server(server_id)
    one = next(iter(two.made[FIRST]._rebalance._requests.values()))
    one.last -= 10  # as if it had been preempted, while the others went on
    found["preempted"] = sum(one.waiting for one in two.running(FIRST))
    await until(lambda: not any(one.waiting for one in two.running(FIRST)))
    await two.made[SECOND].set_global_steps(7)
    found["other weights"] = await two.balancer.rebalance.remote()
    await two.made[SECOND].set_global_steps(None)
    found["the same weights"] = await two.balancer.rebalance.remote()
    await two.stop(tasks)
    return found


async def stopped(two):
    """The trainer ends all requests: while some are about to leave, and when one comes to a server that is paused or has other weights."""
    tasks = await two.long_ones()
    leaving = {one.request_id: SECOND for one in two.running(FIRST)[:2]}
    handle = rs.Actor(two.made[FIRST])
    left, _ = await asyncio.gather(handle.rebalance_move.remote(leaving), handle.abort_all_requests.remote())
    found = {"about to leave": await answers(tasks), "left": len(left)}
    await two.made[FIRST].resume_generation()

    request = {"prompt_ids": rs.prompt(1), "sampling_params": GREEDY | {"max_tokens": 3}, "request_id": "came late"}
    other = rs.Actor(two.made[SECOND])
    await two.made[SECOND].abort_all_requests()
    found["paused"] = rs.shown(await asyncio.wait_for(other.generate_moved.remote(1, None, **request), 30))
    await two.made[SECOND].resume_generation()
    found["other weights"] = rs.shown(await asyncio.wait_for(other.generate_moved.remote(1, 3, **request), 30))
    found["the same weights"] = rs.shown(await asyncio.wait_for(other.generate_moved.remote(1, None, **request), 30))
    return found


async def resumed(two):
    """The client of the asynchronous trainers, which goes on with what was ended: after a move, all requests are ended and go on."""
    client = two.manager.get_client(client_cls=llm_server.FullyAsyncLLMServerClient)
    tasks, number = await two.moved(client)
    await until(lambda: two.here(SECOND, 3, number))
    for server in two.made.values():
        await server.abort_all_requests()
    for server in two.made.values():
        await server.resume_generation()
    return {"number": number, "answers": await answers(tasks)}


async def by_itself(two):
    """Plans every fiftieth of a second, while requests are in flight."""
    found = {"answers": await answers(two.tail()), "moved": two.balancer.of.get_status()["moved_requests"]}
    await until(lambda: two.balancer.of._task.done())
    return found


async def failing(two):
    """The process of the second engine is killed, with requests that have come to it; then nothing goes there any more."""
    tasks, number = await two.moved()
    await until(lambda: two.here(SECOND, 1, number))
    engine = two.made[SECOND].engine
    for process in engine.engine_core.resources.engine_manager.processes:
        os.kill(process.pid, signal.SIGKILL)
    outputs = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)
    await until(lambda: engine.errored)
    tasks = await two.direct(8)
    plan = await two.balancer.rebalance.remote()
    await two.stop(tasks, FIRST)
    return {
        "number": number,
        "outputs": [type(one).__name__ if isinstance(one, Exception) else len(one.token_ids) for one in outputs],
        "plan": plan,
        "in flight": two.balancer.of.get_status()["servers"],
    }


async def on(model):
    recorded = [f"{ROLLOUT}.enable_rollout_routing_replay=True", f"{OURS}.enable=True", *TIMES]
    config = rs.configuration(model, *recorded, BY_HAND)
    made = await rs.servers(config)
    two = Two(made, await rs.manager(config, made))
    parts = {part.__name__: await part(two) for part in (moving, carried, held_back, stopped, resumed)}
    soon = Two(made, await rs.manager(rs.configuration(model, *recorded, f"{OURS}.interval=0.02"), made))
    parts["by_itself"] = await by_itself(soon)
    parts["failing"] = await failing(two)
    rs.end(made)
    return parts


async def off(model):
    """The same requests, as long as the first server has the long ones and the second none."""
    config = rs.configuration(model, f"{ROLLOUT}.enable_rollout_routing_replay=True")
    made = await rs.servers(config)
    manager = await rs.manager(config, made)
    two = Two(made, manager)
    tasks = two.tail()
    states = [server.engine.output_processor.request_states for server in made.values()]
    await until(lambda: len(states[0]) == 4 and not states[1])
    second = set()
    while states[0]:
        second.add(len(states[1]))
        await asyncio.sleep(0.005)
    found = {
        "balancer": type(two.balancer.of).__name__,
        "modules": rs.modules_of_the_patch(),
        "second": sorted(second),
        "answers": await answers(tasks),
        "status": sorted(two.balancer.of.get_status()),
    }
    tasks = two.tail(long=ENDLESS)
    await until(lambda: len(states[0]) == 4 and not states[1])
    found["ended"] = await two.stop(tasks)
    rs.end(made)
    return found


def main():
    model = rs.not_square(sys.argv[1], Path("model").absolute())
    print(json.dumps(asyncio.run({"on": on, "off": off}[sys.argv[2]](model))))


main()
