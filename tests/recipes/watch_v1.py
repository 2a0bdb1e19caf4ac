"""As `watch`, for verl's v1 trainer: its workers send weights to a server, whose engine has processes of its own, and its batches
are in a transfer queue. Changes nothing that is computed.

In the folder RECIPE_WATCHED, by the names that `watch` gives: what each rank sent in an update; what each server answers greedily to
PROMPTS after it, before it generates for training, by the server's number; how many different answers a step trains on; metrics.
Where an update sends what has changed (delta_in_place), the weights are those that the changes make of the update before, put together
here, by no code of the patch's; `changed.UPDATE.RANK.json` says how many numbers came.
"""

import asyncio
import json
from pathlib import Path

from watch import LENGTH, PROMPTS, _file, _watched

BEGINS = "__delta_in_place__"  # before an update's weights: whether they are whole


def watch_updates(module):
    """vllm_rollout: its ServerAdapter sends the weights of each update."""
    send = module.ServerAdapter.update_weights

    async def sent(self, weights, **settings):
        from safetensors.torch import save_file

        given, changed = {}, 0
        self.watched = getattr(self, "watched", 0) + 1

        def passed_on():
            nonlocal changed
            for name, weight in weights:
                if name.startswith("{"):
                    changed += _change(given, json.loads(name), weight.detach())
                elif name == BEGINS and not weight.item():
                    given.update({one: before.clone() for one, before in self.watched_weights.items()})
                elif name != BEGINS:
                    given[name] = weight.detach().clone().contiguous()
                yield name, weight

        taken = await send(self, passed_on(), **settings)
        self.watched_weights = given
        save_file(given, _file("weights", self.watched, "safetensors"))
        if changed:
            Path(_file("changed", self.watched, "json")).write_text(json.dumps(changed))
        return taken

    module.ServerAdapter.update_weights = sent


def _change(given, label, piece):
    """Writes a piece, int32 of positions and then of the values' bits, into the weight that it names; how many numbers these are."""
    import torch

    count, kind = label["count"], getattr(torch, label["dtype"])
    values = piece[count:].view(torch.uint8)[: count * kind.itemsize].view(kind)
    weight = given[label["name"]]
    if (list(weight.shape), weight.dtype) != (label["shape"], kind):
        raise ValueError(f"{label} is not of a weight of {tuple(weight.shape)}, {weight.dtype}")
    weight.view(-1)[piece[:count].long()] = values
    return count


def watch_server(module):
    """vllm_async_server: vLLMHttpServer hears of an update by `set_global_steps`, and is asked when it generates first after it."""
    server = module.vLLMHttpServer
    set_steps, generate = server.set_global_steps, server.generate

    async def updated(self, global_steps):
        self.watched, self.asked = getattr(self, "watched", 0) + 1, None
        return await set_steps(self, global_steps)

    async def generated(self, *prompt, **settings):
        if getattr(self, "asked", None) is None:
            self.asked = asyncio.ensure_future(_answers(module, self))
        await self.asked
        return await generate(self, *prompt, **settings)

    server.set_global_steps, server.generate = updated, generated


async def _answers(module, server):
    greedy = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
    found = [await _answer(module, server, number, prompt, greedy) for number, prompt in enumerate(PROMPTS)]
    name = f"tokens.{getattr(server, 'watched', 0)}.{server.replica_rank}.json"
    (_watched() / name).write_text(json.dumps(found))


async def _answer(module, server, number, prompt, greedy):
    asked = module.TokensPrompt(prompt_token_ids=prompt)
    async for output in server.engine.generate(asked, module.SamplingParams(**greedy), f"watched-{number}"):
        last = output
    return list(last.outputs[0].token_ids)


def watch_trainer(module):
    """trainer_base: what a step trains on is what its PPOTrainer balances over the ranks."""
    balance = module.PPOTrainer._balance_batch

    def balanced(self, batch, *more, **settings):
        fields = ["prompts", "responses"]
        found = module.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        rows = zip(*(found[name].unbind() for name in fields), strict=True)
        answers = [(*prompt.tolist(), *response.tolist()) for prompt, response in rows]
        count = {"answers": len(answers), "different": len(set(answers))}
        (_watched() / f"samples.{self.global_steps}.json").write_text(json.dumps(count))
        return balance(self, batch, *more, **settings)

    module.PPOTrainer._balance_batch = balanced
