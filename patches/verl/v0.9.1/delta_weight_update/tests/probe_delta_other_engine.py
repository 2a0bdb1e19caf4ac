"""Probe: an update over a checkpoint engine of upstream's kind, by a worker that has what its method reads and no more, as upstream's tests make it.

Prints what the worker answers, and the step and names that its engine and its adapter are given.
"""

import npu_engine_0_23

npu_engine_0_23.prepare()

import asyncio  # noqa: E402  (the platform must be prepared first)
import json  # noqa: E402

from verl.checkpoint_engine.base import CheckpointEngineWorker  # noqa: E402


class Engine:
    async def receive_weights(self, global_steps=None):
        yield f"weight of step {global_steps}", None


class Adapter:
    async def update_weights(self, weights, global_steps=None, **given):
        self.taken = [global_steps, [name async for name, _ in weights], given]


worker = object.__new__(CheckpointEngineWorker)
worker.checkpoint_engine, worker.server_adapter = Engine(), Adapter()
answer = asyncio.run(CheckpointEngineWorker.update_weights.__wrapped__(worker, global_steps=17))
print(json.dumps([answer, *worker.server_adapter.taken]))
