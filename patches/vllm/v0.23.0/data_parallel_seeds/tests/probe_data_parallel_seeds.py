"""Probe: what the data parallel ranks of vllm's own engine draw, each a process with a worker of its own.

Usage: probe_data_parallel_seeds.py CASE RANKS MODEL, where CASE is dense or experts; or actor RANKS SEED, the seeds of Ray's actors.

Prints the workers' seeds by rank; of a prompt asked of each rank in turn, how many answers of each turn are different; and the same of requests
that have a seed of their own.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = (
    "fork"  # what is prepared here is prepared in engines and workers too
)
case, ranks, model = sys.argv[1:]
if case == "experts":
    import npu_experts_0_23

    npu_experts_0_23.prepare(device="A2")
else:
    import npu_engine_0_23

    npu_engine_0_23.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.v1.engine import core  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

PROMPT, TURNS, LENGTH, SEED = [10, 11, 12, 13], 3, 8, 3
SEEDS = Path("seeds").resolve()


class NotesSeed:
    """What is added to each worker."""

    def note_seed(self):
        (SEEDS / str(self.parallel_config.data_parallel_index)).write_text(str(torch.initial_seed()))


class Actor(core.EngineCoreActorMixin):
    """One of Ray's, without devices to choose from."""

    def _set_visible_devices(self, vllm_config, local_dp_rank):
        pass

    def _set_nixl_side_channel_host(self):
        pass


def actors():
    found = []
    for rank in range(int(ranks)):
        config = SimpleNamespace(model_config=SimpleNamespace(seed=int(model)), parallel_config=SimpleNamespace())
        Actor(config, None, dp_rank=rank)
        found.append(config.model_config.seed)
    return found


async def answer(engine, rank, name, **settings):
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True, **settings)
    prompt, name = {"prompt_token_ids": PROMPT}, f"{name} {rank}"
    outputs = [one async for one in engine.generate(prompt, params, request_id=name, data_parallel_rank=rank)]
    return tuple(outputs[-1].outputs[0].token_ids)


async def different(engine, name, **settings):
    return len({await answer(engine, rank, name, **settings) for rank in range(int(ranks))})


async def drawn():
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            dtype="float32",
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            enforce_eager=True,
            async_scheduling=False,
            enable_prefix_caching=False,
            enable_expert_parallel=case == "experts",
            data_parallel_size=int(ranks),
            distributed_executor_backend="mp",
            worker_extension_cls=f"{NotesSeed.__module__}.NotesSeed",
            seed=SEED,
        )
    )
    SEEDS.mkdir()
    await engine.collective_rpc("note_seed")
    found = {
        "seeds": [int((SEEDS / str(rank)).read_text()) for rank in range(int(ranks))],
        "different": [await different(engine, turn) for turn in range(TURNS)],
        "own seed": await different(engine, "own", seed=5),
    }
    engine.shutdown()
    return found


print(json.dumps(actors() if case == "actor" else asyncio.run(drawn())))
