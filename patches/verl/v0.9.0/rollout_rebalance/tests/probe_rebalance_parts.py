"""Probe: each part of rollout_rebalance by itself, without an engine.

Usage: probe_rebalance_parts.py MODEL CASE...   (of CASES). Real: verl's load balancer, client and vllm server with the patch's parts in them.
What they talk to is played: servers that say what they run (`Played`), and an engine that makes tokens (`Engine`). Prints what each case found.
"""

import asyncio
import dataclasses
import json
import logging
import sys
import time
from types import SimpleNamespace

import numpy as np
import ray
import rebalance_servers as rs
from omegaconf import OmegaConf
from rebalance_servers import ROLLOUT, llm_server, vllm_async_server
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from vllm import SamplingParams

SETTINGS = {
    "interval": 1e6, "horizon": 512, "min_gain": 0.1, "token_seconds": [[1, 0.01], [8, 0.08]], "prompt_tokens_per_second": 1e6,
}  # fmt: skip
ROOM = 1 << 20


def handle(**methods):
    """Of an actor with these methods, which are awaited."""

    def remote(method):
        async def call(args, kwargs):
            result = method(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        return SimpleNamespace(remote=lambda *args, **kwargs: asyncio.ensure_future(call(args, kwargs)))

    return SimpleNamespace(**{name: remote(method) for name, method in methods.items()})


class Played:
    """A server by what it says to the balancer: so many running requests, or what is raised or awaited instead."""

    def __init__(self, number, instead=None, move=None):
        self.number, self.instead, self.gone, self.refuses = number, instead, {}, move
        self.times = {}
        self.handle = handle(rebalance_loads=self.loads, rebalance_move=self.move)

    async def loads(self):
        from verl.workers.rollout.rebalance.planner import Request, Server
        from verl.workers.rollout.rebalance.running import Loads

        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead:
            await asyncio.sleep(self.instead)
        requests = tuple(Request(f"{id(self)} {at}", 100, 1000, True, False) for at in range(self.number))
        return Loads(Server(requests, None, 64, ROOM), self.times, None)

    async def move(self, destinations):
        if self.refuses:
            raise self.refuses
        self.gone |= destinations
        return list(destinations)

    @property
    def to(self):
        return sorted(set(self.gone.values()))


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def balancer(played, **settings):
    from verl.workers.rollout.rebalance import balancer as module

    made = module.RebalancingLoadBalancer(
        SETTINGS | settings, servers={name: one.handle for name, one in played.items()}
    )
    return module, made


def dead():
    return ray.exceptions.ActorDiedError()


async def of_a_dead_server(_):
    """Two plans with a server whose actor is dead, one with a server that dies when it is to give, and one with a server that hangs."""
    told, found = Told(), {}
    full, idle, gone = Played(8), Played(0), Played(0, dead())
    module, made = balancer({"full": full, "gone": gone, "idle": idle})
    module.logger.addHandler(told)
    module.logger.setLevel(logging.WARNING)
    found["plans"] = [await made.rebalance(), await made.rebalance()]
    found["to"] = full.to
    found["said"] = len(told.messages)
    gone.instead = None
    await made.rebalance()
    found["back"] = full.to
    first, second = Played(8), Played(8, move=dead())
    _, made = balancer({"a": first, "b": second, "c": Played(0), "d": Played(0)})
    found["dies when it is to give"] = [await made.rebalance(), len(first.gone), made.get_status()["moved_requests"]]
    full = Played(8)
    module, made = balancer({"full": full, "hangs": Played(0, 1e6), "idle": Played(0)})
    module.ANSWER_S = 0.2
    found["hangs"] = [await asyncio.wait_for(made.rebalance(), 30), full.to]
    return found


async def on_the_way(_):
    """One request is in flight at the second server and does not run: never released, or on its way."""
    full, idle, third = Played(8), Played(0), Played(0)
    module, made = balancer({"full": full, "idle": idle})
    clock = SimpleNamespace(now=100.0)
    module.time = SimpleNamespace(monotonic=lambda: clock.now)
    made.move_session("a session", "idle")
    made.acquire_server("a session")
    found = {"before": await made.rebalance()}
    made.add_servers({"third": third.handle})
    await made.rebalance()
    found["to, meanwhile"] = full.to
    made.remove_servers(["third"])
    clock.now += module.LOST_S / 2
    found["for half the time"] = await made.rebalance()
    clock.now += module.LOST_S
    found["after it"] = await made.rebalance()
    made.acquire_server("a session")
    found["another on its way"] = await made.rebalance()
    made.release_server("idle")
    found["which has come"] = await made.rebalance()
    module.time = time
    return found


async def after_an_error(_):
    """The first plan fails, by times that cannot be; plans go on."""
    full = Played(8)
    full.times = {1: -1.0}
    _, made = balancer({"full": full, "idle": Played(0)}, interval=0.01, token_seconds=[])
    made.move_session("a session", "full")
    made.acquire_server("a session")  # one of the eight
    await asyncio.sleep(0.2)
    found = {"with impossible times": made.get_status()["moved_requests"]}
    full.times = {1: 0.01, 8: 0.08}
    await rs.until(lambda: full.gone, 30)
    made.release_server("full")
    found["then"] = full.to
    return found


class Engine:
    """Makes the outputs that it is given; `aborted` are the requests that were ended."""

    def __init__(self, ranks=2):
        parallel, cache = SimpleNamespace(data_parallel_size=ranks), SimpleNamespace(num_gpu_blocks=8, block_size=16)
        self.vllm_config = SimpleNamespace(parallel_config=parallel, cache_config=cache)
        self.errored, self.paused, self.aborted, self.output_processor = False, False, [], None

    async def outputs(self, *made):
        for tokens, reason in made:
            yield SimpleNamespace(
                outputs=[SimpleNamespace(token_ids=[1] * tokens, finish_reason=reason)], num_cached_tokens=0
            )

    async def abort(self, requests):
        self.aborted += requests

    async def is_paused(self):
        return self.paused

    async def pause_generation(self, **settings):
        self.paused = True


def running():
    from verl.workers.rollout.rebalance.running import RunningRequests

    config = SimpleNamespace(max_num_seqs=8, rollout_rebalance=SimpleNamespace(max_moves=1))
    server = SimpleNamespace(engine=Engine(), config=config, global_steps=3, _submission_paused=False)
    return server, RunningRequests(server)


async def watched(requests, server, name, *made, params=None, moves=0, **prompt):
    """The request's account after its first output; then the rest is taken."""
    params = params or SamplingParams(max_tokens=100)
    ids = {"prompt_token_ids": [1] * 12} | prompt
    outputs = requests.watch(server.engine.outputs(*made), name, params, ids, moves)
    await anext(outputs)
    return outputs


async def account(_):
    server, requests = running()
    found = {"slots": requests.loads().server.slots, "cache": requests.loads().server.cache}
    server.engine.errored = True
    found["slots of one that failed"] = requests.loads().server.slots
    server.engine.errored = False
    kept = {}
    for name, more in {
        "plain": {}, "moved": {"moves": 1}, "an image": {"multi_modal_data": {"image": [1]}},
        "a seed": {"params": SamplingParams(max_tokens=100, seed=1)},
    }.items():  # fmt: skip
        kept[name] = await watched(requests, server, name, (5, None), (6, "length"), **more)
    found["movable"] = {one.request_id: one.movable for one in requests.loads().server.requests}
    requests._requests["plain"].last -= 10  # as if it had been preempted, while the others went on
    found["waiting"] = [one.request_id for one in requests.loads().server.requests if one.waiting]
    for one in kept.values():
        await one.aclose()
    return found


async def leaving(_):
    """A request is to go on elsewhere; the trainer ends all requests before its `generate` has said so."""
    found = {}
    for name in ("goes", "stays"):
        server, requests = running()
        outputs = await watched(requests, server, name, (5, None), (5, "abort"))
        found[f"{name}, ended"] = await requests.move({name: "there", "unknown": "there"}), server.engine.aborted
        async for _ in outputs:
            pass
        if name == "stays":
            requests.stay()
        found[name] = requests.leaving(name)
    return found


async def refusing(_):
    server, requests = running()
    found = {}
    for name, steps, paused in (("as here", 3, False), ("paused", 3, True), ("other weights", 2, False)):
        server.engine.paused = paused
        answer = await requests.refuses(steps)
        found[name] = answer and [answer.stop_reason, answer.extra_fields["global_steps"]]
    return found


async def behind_the_gate(_):
    """The trainer has closed verl's gate, and has not paused the engine yet."""
    server, requests = running()
    server._submission_paused = True
    return (await requests.refuses(3)).stop_reason


async def the_trainers_abort(_):
    """Verl's own method of a server, with nothing but the account of rollout_rebalance."""
    server, requests = running()
    outputs = await watched(requests, server, "a", (5, None), (6, None))
    await requests.move({"a": "there"})
    real = vllm_async_server.vLLMHttpServer.__new__(vllm_async_server.vLLMHttpServer)
    real._rebalance, real.engine, real.node_rank = requests, server.engine, 0
    real._admitting, real._resume_event = 0, asyncio.Event()
    server.engine.output_processor = SimpleNamespace(request_states={})
    await real.abort_all_requests()
    found = [(one.leaves_for, one.movable) for one in requests._requests.values()]
    await outputs.aclose()
    return found


def output(tokens, routes, fields, preempted=None):
    return TokenOutput(
        token_ids=tokens,
        log_probs=[-0.5 * one for one in tokens],
        routed_experts=np.arange(routes).reshape(routes, 1, 1),
        num_preempted=preempted,
        stop_reason="completed",
        extra_fields=fields,
    )


async def both_parts(_):
    """One answer of two: three tokens of a prompt, then two and four of the answer."""
    from verl.workers.rollout.rebalance.moved import joined

    first = output([1, 2], 4, {"global_steps": 3, "spec_num_draft_tokens": 5, "spec_num_accepted_tokens": 2}, 1)
    second = output([3, 4, 5, 6], 8, {"global_steps": 3, "spec_num_draft_tokens": 7}, 2)
    one = joined(first, second)
    first.num_preempted = second.num_preempted = None
    return {
        "tokens": one.token_ids,
        "log_probs": one.log_probs,
        "routes": one.routed_experts.flatten().tolist(),
        "fields": one.extra_fields,
        "preempted": [one.num_preempted, joined(first, second).num_preempted],
    }


async def cached(_):
    """How many tokens of the prompt were in a cache, of an answer whose second part had them and the first part's."""
    from verl.workers.rollout.rebalance.moved import joined

    first = output([1, 2], 4, {"global_steps": 3, "num_cached_tokens": 2})
    return joined(first, output([3], 5, {"global_steps": 3, "num_cached_tokens": 4})).extra_fields["num_cached_tokens"]


async def a_client(_):
    """Verl's client asks for an answer, which leaves the first server for the second, and that for the first again."""
    asked, released = [], []
    answers = [
        output([1, 2], 4, {"global_steps": 3, "rebalance": {"to": "b", "max_tokens": 98}}),
        output([3], 5, {"global_steps": 3, "rebalance": {"to": "a", "max_tokens": 97}}),
        output([4, 5], 7, {"global_steps": 3}),
    ]

    def server(name):
        def generate(**given):
            asked.append([name, 0, len(given["prompt_ids"]), given["sampling_params"].get("max_tokens")])
            return answers.pop(0)

        def moved(moves, steps, **given):
            asked.append([name, moves, len(given["prompt_ids"]), given["sampling_params"]["max_tokens"], steps])
            return answers.pop(0)

        return handle(generate=generate, generate_moved=moved)

    _, made = balancer({})
    made.add_servers({name: server(name) for name in "ab"})
    made.move_session("a session", "a")
    balancing = handle(
        acquire_server=made.acquire_server,
        move_session=made.move_session,
        release_server=lambda server_id: (released.append(server_id), made.release_server(server_id)),
        require_acquire_fields=lambda: [],
        require_release_fields=lambda: [],
    )
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm", "full_determinism": False}}})
    client = llm_server.LLMServerClient(config, balancing)
    one = await client.generate(
        "a session", prompt_ids=[7, 8, 9], sampling_params={"max_tokens": 100, "max_new_tokens": 100}
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return {
        "asked": asked,
        "tokens": one.token_ids,
        "released": released,
        "in flight": made.get_status()["servers"],
        "session": made._request_id_to_server["a session"],
    }


def of_class(config, another):
    """Verl's own server, not started; with `another` configuration class than verl's, which has nothing of ours."""

    class Server(vllm_async_server.vLLMHttpServer):
        def _init_config(self, config):
            made = super()._init_config(config)
            if not another:
                return made
            names = [one.name for one in dataclasses.fields(made) if one.name != "rollout_rebalance"]
            return SimpleNamespace(**{name: getattr(made, name) for name in names})

    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "01000000")
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    return Server(rollout, model, RolloutMode.HYBRID, [None], 0, 0, 1, 1, "0")


async def another_class(model):
    server = of_class(rs.configuration(model), another=True)
    server.engine = Engine()
    server.engine.output_processor = SimpleNamespace(request_states={})
    ended = await server.abort_all_requests()
    return {"length": server.config.max_model_len, "ended": ended["aborted_count"]}


async def classes(model):
    on = rs.configuration(model, f"{ROLLOUT}.rollout_rebalance.enable=True")
    made = {
        "on": of_class(on, another=False),
        "off": of_class(rs.configuration(model), another=False),
        "another class": of_class(on, another=True),
    }
    return {name: one._rebalance is not None for name, one in made.items()}


CASES = {
    one.__name__: one
    for one in (
        of_a_dead_server, on_the_way, after_an_error, account, leaving, refusing, behind_the_gate, the_trainers_abort,
        both_parts, cached, a_client, another_class, classes,
    )
}  # fmt: skip


def main():
    print(json.dumps({name: asyncio.run(CASES[name](sys.argv[1])) for name in sys.argv[2:]}))


main()
