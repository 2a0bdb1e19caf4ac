"""Probe: data_rebalance's generate_spread on random batches, through verl's own dispatch and DataProto, beside the call without it.

Usage: probe_reorderings.py COUNT SEED. A batch has tensors of two shapes and dtypes, objects, and two rows alike here and there; engines
answer each row by what it is and by how many rows of its prompt they had before in the call, of any engine.
"""

import json
import random
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import torch
from rebalance_engines import _group
from verl import DataProto
from verl.single_controller.base import decorator
from verl.utils.rollout_order import generate_spread

COUNT, SEED = int(sys.argv[1]), int(sys.argv[2])


def batch_of(rng, prompts, samples):
    """Grouped; `row` numbers the rows, `prompt` the prompts, and prompts may have the same text."""
    rows = torch.arange(prompts * samples)
    texts = [rng.randrange(1, 4) for _ in range(prompts)]
    return DataProto.from_dict(
        tensors={
            "prompt": rows // samples,
            "row": rows,
            "input_ids": torch.tensor(texts)[rows // samples].view(-1, 1).expand(-1, 3).contiguous(),
            "weights": rows.to(torch.float64).view(-1, 1, 1).expand(-1, 2, 2) / 3,
        },
        non_tensors={"uid": np.array([{"of": int(row)} for row in rows], dtype=object)},
        meta_info={"global_steps": rng.randrange(9)},
    )


def engines_of(number, ranks):
    group = _group(number, ranks)
    sent = []

    def generate_sequences(batch):
        (shards,), _ = decorator.dispatch_lazy_compute_data_proto("rollout", group, batch)
        sent.extend(shard.batch["prompt"].tolist() for shard in shards[::ranks])
        answered = [answer(shard) for shard in shards]
        return decorator.collect_lazy_compute_data_proto("rollout", group, answered)

    return SimpleNamespace(generate_sequences=generate_sequences, sent=sent)


def answer(shard):
    made = DataProto.from_dict(
        tensors={**dict(shard.batch.items()), "responses": shard.batch["row"].view(-1, 1) * 7 + torch.arange(2)},
        non_tensors={
            **shard.non_tensor_batch,
            "label": np.array([str(r) for r in shard.batch["row"].tolist()], object),
        },
    )
    made.meta_info = {"metrics": {"seconds": 1.0}}
    return made


def seen(batch):
    """Everything of a batch, to compare."""
    tensors = {name: (str(value.dtype), value.tolist()) for name, value in sorted(batch.batch.items())}
    return tensors, {name: value.tolist() for name, value in sorted(batch.non_tensor_batch.items())}, batch.meta_info


def wrong_of(rng):
    engines, ranks = rng.choice([1, 2, 3, 4, 5, 8]), rng.choice([1, 1, 2])
    prompts, samples = rng.randint(1, 24), rng.randint(1, 12)
    while prompts * samples % engines:
        prompts += 1
    batch = batch_of(rng, prompts, samples)
    before, workers, plain = seen(batch), engines_of(engines, ranks), engines_of(engines, ranks)
    made, expected = generate_spread(workers, batch, samples), plain.generate_sequences(batch)
    counts = {engine[prompt] for engine in map(Counter, workers.sent) for prompt in range(prompts)}
    held = {
        "as upstream's": seen(made) == seen(expected),
        "left as it was": seen(batch) == before,
        "each row once": sum(map(Counter, workers.sent), Counter()) == dict.fromkeys(range(prompts), samples),
        "evenly": samples == 1 or counts <= {samples // engines, -(-samples // engines)},
    }
    told = {"prompts": prompts, "samples": samples, "engines": engines, "ranks": ranks}
    return [told | {"not": what} for what, holds in held.items() if not holds]


rng = random.Random(SEED)
print(json.dumps([one for _ in range(COUNT) for one in wrong_of(rng)][:20]))
