"""What the probes of rollout_rebalance share: a rollout on each rank, uneven loads, and what they are measured by."""

import asyncio
import dataclasses
import datetime
import itertools
import os
import random
import time
from contextlib import contextmanager, nullcontext

import rollout_config
import torch.distributed as dist

SETTINGS = {
    "data_parallel_size": 2,
    "expert_parallel_size": 2,
    "prompt_length": 280,
    "response_length": 60,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
    "free_cache_engine": False,  # waking up a mixture of experts would need moe_update_weights as well
    "rollout_rebalance.enable": True,
    "rollout_rebalance.interval": 4,
    "rollout_rebalance.graph_sizes": "[1,2,4,8]",
}
SEED = 12345
# A block of one tensor has 16 KiB: with this limit blocks go in many rounds.
SMALL_BUFFER = 40_000
# Seconds a token of a dummy step
SLOWER = 0.02


def prompt(rank, index, length=9):
    """Prompts of which no two begin alike, so nothing is shared by accident."""
    return [10 + 97 * rank + 7 * index, *(30 + (11 * index + 5 * step + rank) % 200 for step in range(length - 1))]


def greedy(rank):
    """Rank 0 has more than it can run at once, the others a short answer or few; prompts of one block and of two."""
    lengths = [30, 34, 26, 38, 22, 40, 36, 28, 33] if rank == 0 else [5] * rank
    sizes = [9, 250, 120, 128, 100, 127, 9, 9, 9]
    return [(prompt(rank, i, sizes[i]), {"temperature": 0, "max_tokens": n}) for i, n in enumerate(lengths)]


def sampled(rank):
    """All that the sampler remembers of a request: a seed, penalties, least tokens, and log-probabilities."""
    kinds = [
        {"temperature": 1.0, "seed": 7},
        {"temperature": 1.3, "seed": 8, "min_p": 0.02},
        {"temperature": 0.7, "seed": 9, "repetition_penalty": 1.3},
        {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"temperature": 0, "repetition_penalty": 1.4, "logprobs": 3},
        {"temperature": 1.0, "seed": 10, "min_tokens": 25, "stop_token_ids": list(range(100, 400))},
        {"temperature": 1.0, "seed": 11, "stop_token_ids": list(range(3, 9))},
        {"temperature": 1.0, "seed": 12, "logit_bias": {40: 4.0, 41: 4.0}},
    ]
    if rank:
        kinds = [{"temperature": 0, "seed": 3, "max_tokens": 4}]
    return [(prompt(rank, index), {"max_tokens": 36} | kind) for index, kind in enumerate(kinds)]


def shared(rank):
    """Eight samples of a long prompt on rank 0, and one of the same prompt on the others: the prefix cache has it."""
    kinds = [{"temperature": 1.0, "seed": seed, "max_tokens": 20 + seed} for seed in range(8 if rank == 0 else 1)]
    return [(prompt(4, 1, 260), kind) for kind in kinds]


def crowded(rank):
    """Prompts that all need a second block soon, on both ranks; with seeds, for a generator must survive as well."""
    kinds = [{"temperature": 1.0, "seed": index} if index % 2 else {"temperature": 0} for index in range(6 - 2 * rank)]
    return [(prompt(rank, i, 112), {"max_tokens": 30 + 3 * i} | kind) for i, kind in enumerate(kinds)]


LOADS = {"greedy": greedy, "aborted": greedy, "shuffled": greedy} | {
    "sampled": sampled,
    "sampled_shuffled": sampled,
    "shared": shared,
    "crowded": crowded,
}
# What else is done in a load: moves by chance instead of the planner's, few KV blocks or few tokens a step, aborts.
BY_CHANCE = ("shuffled", "sampled_shuffled", "crowded")
FREE_BLOCKS = {"crowded": 9}
TOKENS_A_STEP = {"shuffled": 64}
ABORTED = {"aborted": {"after_step": 10, "rank": 0, "indices": [1, 7]}}


def make_rollout(model, settings):
    os.environ.setdefault("VLLM_DP_MASTER_IP", "127.0.0.1")
    dist.init_process_group("gloo")
    from verl.workers.rollout.base import get_rollout_class

    quiet_padding()
    note_order()
    config = rollout_config.rollout_config(model, **plain(SETTINGS | settings))
    return get_rollout_class("vllm", "sync")(config, rollout_config.model_config(model), device_mesh=None)


ORDER = []


def note_order():
    """Notes in ORDER when the engine sizes its KV cache, and when something is sent between the devices."""
    from verl.workers.rollout.vllm_rollout.rebalance.channel import Column
    from vllm_ascend.worker.worker import NPUWorker

    size, send = NPUWorker.determine_available_memory, Column.exchange_elements
    NPUWorker.determine_available_memory = lambda self: ORDER.append("cache is sized") or size(self)
    Column.exchange_elements = lambda self, *args: ORDER.append("sent") or send(self, *args)


def plain(settings):
    """The settings with a + before those that the configuration does not declare."""
    return {f"+{key}" if key.startswith("engine_kwargs.vllm.") else key: value for key, value in settings.items()}


def quiet_padding():
    """Gives rows that pad a rank to the longest one a defined content, zero; see probe_rollout_dp.quiet_padding."""
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    forward = AscendAttentionBackendImpl.forward

    def forward_into_zeros(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *args, **kwargs):
        return forward(self, layer, query, key, value, kv_cache, attn_metadata, output.zero_(), *args, **kwargs)

    AscendAttentionBackendImpl.forward = forward_into_zeros


class Recorder:
    """What the engine of this rank does in each step: requests that run, and tokens that are computed."""

    def __init__(self, rollout):
        self.llm = rollout.inference_engine
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.hook = rollout.rebalance_hook
        parallel = self.engine.vllm_config.parallel_config
        self.rank, self.tensor_parallel = parallel.data_parallel_rank, parallel.tensor_parallel_size
        # This vllm-ascend returns no log-probabilities with speculation.
        asked = None if self.engine.vllm_config.speculative_config else 0
        self.defaults = {"logprobs": asked, "ignore_eos": True, "detokenize": False}
        self.taken, self.plans = 0, []
        self.restart()
        self.note_plans()
        schedule, preempt = self.scheduler.schedule, self.scheduler._preempt_request
        dummy = self.core.execute_dummy_batch

        def scheduled():
            output = schedule()
            self.running.append(len(output.num_scheduled_tokens))
            self.tokens += output.total_num_scheduled_tokens
            return output

        def counted_dummy():
            self.running.append(0)
            slots = self.engine.model_executor.driver_worker.worker.model_runner.input_batch.block_table[0].slot_mapping
            self.dummies_would_write.append(bool((slots.gpu >= 0).any()))
            return dummy()

        def counted_preempt(*args):
            self.preemptions += 1
            return preempt(*args)

        self.scheduler.schedule, self.core.execute_dummy_batch = scheduled, counted_dummy
        self.scheduler._preempt_request = counted_preempt

    def note_plans(self):
        """What each plan counts: whether drafts are used, tokens a request and step, and room in tokens."""
        import verl.workers.rollout.vllm_rollout.rebalance.executor as executor

        plan, runner = executor.plan, self.engine.model_executor.driver_worker.worker.model_runner

        def noted(states, policy):
            threshold = getattr(runner, "batch_threshold", None)
            drafting = threshold is None or threshold.drafting
            self.plans.append([drafting, policy.tokens_per_request, policy.growth_tokens])
            return plan(states, policy)

        executor.plan = noted

    def restart(self):
        self.running, self.tokens, self.preemptions = [], 0, 0
        self.dummies_would_write = []


def rebalancing(hook, on):
    """Installs the hook, or takes it off again: without it the engine has only upstream's methods."""
    if on:
        hook.install()
        return
    del hook._engine.has_unfinished_requests, hook._engine.step
    del hook._client.get_output, hook._client.abort_requests


def generate(recorder, load, aborted=()):
    """Tokens, log-probabilities and how each request ended, in the order of the load; and what the engine did."""
    from vllm import SamplingParams

    recorder.restart()
    before = dataclasses.asdict(recorder.hook.counts)
    recorder.plans = []
    params = [SamplingParams(**(recorder.defaults | one)) for _, one in load]
    outputs = recorder.llm.generate([{"prompt_token_ids": ids} for ids, _ in load], params, use_tqdm=False)
    after = dataclasses.asdict(recorder.hook.counts)
    left = [ids for index, (ids, _) in enumerate(load) if index not in aborted]
    return {
        "in_order": [list(one.prompt_token_ids) for one in outputs] == left,
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "logprobs": [log_probs(one.outputs[0]) for one in outputs],
        "ends": [[one.outputs[0].finish_reason, one.outputs[0].stop_reason] for one in outputs],
        "running": recorder.running,
        "dummies_would_write": recorder.dummies_would_write,
        "computed": recorder.tokens,
        "preemptions": recorder.preemptions,
        "counts": {name: after[name] - before[name] for name in after},
        "plans": recorder.plans,
        "clean": is_clean(recorder),
    }


def log_probs(output):
    """The sum over the chosen tokens, and over all that were asked for."""
    if output.logprobs is None:
        return [0.0, 0.0]
    chosen = [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
    return [round(sum(chosen), 4), round(sum(one.logprob for step in output.logprobs for one in step.values()), 4)]


def is_clean(recorder):
    """Whether nothing is left of the generation: no request, no KV block, no entry in the book of moves."""
    scheduler, ledger = recorder.scheduler, recorder.hook._ledger
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks() + recorder.taken == pool.num_gpu_blocks - 1  # the null block
    left = scheduler.requests or recorder.engine.output_processor.request_states or ledger.away or ledger.guests()
    return free and not left


def with_and_without(rollout, recorder, name):
    """Generates a load twice on the same engine, first with upstream's methods only and then with rebalancing."""
    load = LOADS[name](recorder.rank)
    found = {}
    for on in (False, True):
        rebalancing(recorder.hook, on)
        recorder.llm.reset_prefix_cache()
        with (
            circumstances(recorder, name),
            planned_by_chance(recorder.hook) if name in BY_CHANCE and on else nullcontext(),
        ):
            found["with" if on else "without"] = generate(recorder, load, aborting(recorder, name))
    return found


@contextmanager
def circumstances(recorder, name):
    """Few KV blocks or few tokens a step, for one load."""
    scheduler = recorder.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks() - FREE_BLOCKS[name]) if name in FREE_BLOCKS else []
    budget, recorder.taken = scheduler.max_num_scheduled_tokens, len(taken)
    scheduler.max_num_scheduled_tokens = TOKENS_A_STEP.get(name, budget)
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = budget
        pool.free_blocks(taken)
        recorder.taken = 0


@contextmanager
def planned_by_chance(hook):
    """Moves that no planner would make, the same on every rank, every second step: both ways at once, back and forth.

    The executor has to carry out any plan; where there is no room it refuses. Buffers are small.
    """
    import verl.workers.rollout.vllm_rollout.rebalance.executor as executor

    generator, planner = random.Random(SEED), executor.plan
    before = hook._interval, hook._rebalancer._staging_bytes
    hook._interval, hook._rebalancer._staging_bytes = 2, SMALL_BUFFER

    def plan(states, policy):
        found = [
            (state, one, waits) for state in states for waits in (0, 1) for one in (state.running, state.waiting)[waits]
        ]
        movable = [one for one in found if one[1].movable]
        moves = []
        for state, one, waits in generator.sample(movable, min(2, len(movable))):
            other = generator.choice([other.rank for other in states if other.rank != state.rank])
            moves.append(executor.Move(one.request_id, state.rank, other, bool(waits), one.blocks))
        return moves

    executor.plan = plan
    try:
        yield
    finally:
        executor.plan = planner
        hook._interval, hook._rebalancer._staging_bytes = before


def aborting(recorder, name):
    """Lets this rank abort some of its requests after a step; returns their indices."""
    what = ABORTED.get(name)
    if not what or what["rank"] != recorder.rank:
        return ()
    engine, first = recorder.engine, recorder.llm.request_counter.counter
    step, steps = engine.step, itertools.count(1)

    def step_and_abort():
        outputs = step()
        if next(steps) == what["after_step"]:
            engine.abort_request([str(first + index) for index in what["indices"]])
            engine.step = step
        return outputs

    engine.step = step_and_abort
    return what["indices"]


def as_verl_does(rollout, recorder):
    """Responses of generate_sequences, with and without, and how many outputs came from elsewhere."""
    rollout_config.PROMPTS = [prompt(recorder.rank, index) for index in range(8 if recorder.rank == 0 else 1)]
    found = {}
    for on in (False, True):
        rebalancing(recorder.hook, on)
        before = recorder.hook.counts.results_home
        output = rollout.generate_sequences(rollout_config.padded_prompts()).batch
        found[on] = output["responses"], output["rollout_log_probs"]
        found["results_home"] = recorder.hook.counts.results_home - before
        asyncio.run(rollout.release())
    (tokens, log_probs_with), (tokens_without, log_probs_without) = found[True], found[False]
    return {
        "same": bool((tokens == tokens_without).all()),
        "difference": float((log_probs_with - log_probs_without).abs().max()),
        "results_home": found["results_home"],
        "last": tokens[-1].tolist()[:4],
    }


def timed(rollout, recorder):
    """What is measured of an engine that says it has graphs, with rank 1 slower in each dummy step by its tokens; and what
    moves with these times, and with a pause that nothing pays for.

    The engine has no graphs here: a step of a size is one without.
    """
    from verl.workers.rollout.vllm_rollout.rebalance import setup

    runner = recorder.engine.model_executor.driver_worker.worker.model_runner
    dummy_run, first, tokens = runner._dummy_run, recorder.hook, []

    def slower(size, *args, **kwargs):
        tokens.append(size)
        time.sleep(recorder.rank * size * SLOWER)
        return dummy_run(size, *args, **kwargs)

    rebalancing(first, False)
    found = {"without graphs": first._rebalancer._policy.times is None}
    runner.use_aclgraph, runner._dummy_run = True, slower
    recorder.hook = setup.install(recorder.llm, rollout.config, first._column)
    runner.use_aclgraph, runner._dummy_run = False, dummy_run
    rebalancer = recorder.hook._rebalancer
    policy = rebalancer._policy
    found |= {"tokens": tokens, "times": dataclasses.asdict(policy.times)}
    for name, pause in (("free", 0.0), ("dear", 1e6)):
        rebalancer._policy = dataclasses.replace(policy, times=dataclasses.replace(policy.times, pause=pause))
        found[name] = generate(recorder, greedy(recorder.rank))
    rebalancing(recorder.hook, False)
    recorder.hook = first
    rebalancing(first, True)
    return found


def broken(rollout, recorder, where):
    """What each rank raises when the last one fails. Nothing can be generated afterwards."""
    from verl.workers.rollout.vllm_rollout.rebalance import channel, kv_blocks

    rebalancing(recorder.hook, True)
    channel.PATIENCE = datetime.timedelta(seconds=2 if where == "model" else 60)
    rebalancer = recorder.hook._rebalancer
    rebalancer._staging_bytes = SMALL_BUFFER
    failing = {
        "message": (rebalancer._engine, "receive"),
        "blocks": (kv_blocks, "_scatter"),
        "arrival": (rebalancer._engine, "insert"),
        "step": (recorder.scheduler, "update_from_output"),
        "outputs": (recorder.engine.output_processor, "process_outputs"),
        "model": (recorder.engine.model_executor.driver_worker.worker.model_runner, "execute_model"),
    }
    if dist.get_rank() == dist.get_world_size() - 1:

        def fails(*args, **kwargs):
            raise OSError("no memory is left")

        setattr(*failing[where], fails)
    try:
        generate(recorder, greedy(recorder.rank))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def leave():
    dist.barrier()
    dist.destroy_process_group()
