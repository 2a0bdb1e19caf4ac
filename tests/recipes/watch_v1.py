"""As `watch`, for verl's v1 trainer: its workers send weights to a server, whose engine has processes of its own, and its batches
are in a transfer queue. Changes nothing that is computed, but for the answers of a run that is compared.

In the folder RECIPE_WATCHED, by the names that `watch` gives: what each rank sent in an update; what each server answers greedily to
PROMPTS after it, before it generates for training, by the server's number; what a step trains on, and how many different answers that
is; metrics. With RECIPE_SAMPLES, such a folder of another run, a step trains on what that run's did, group by group.
Where an update sends what has changed (delta_in_place), the weights are those that the changes make of the update before, put together
here, by no code of the patch's; `changed.UPDATE.RANK.json` says how many numbers came.
"""

import asyncio
import json
import os
from pathlib import Path

from watch import LENGTH, PROMPTS, _file, _watched, same_prompts

BEGINS = "__delta_in_place__"  # before an update's weights: whether they are whole
LENGTHS = ("prompt_len", "response_len", "seq_len")  # of a row's tag


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
        import torch

        fields = module.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        own = {name: value.clone() for name, value in fields.items() if isinstance(value, torch.Tensor)}
        name = f"samples.{self.global_steps}.pt"
        lengths = [{name: tag[name] for name in LENGTHS} for tag in batch.tags]
        torch.save({"groups": _groups(batch.keys), "lengths": lengths, "fields": own}, _watched() / name)
        rows = zip(own["prompts"].unbind(), own["responses"].unbind(), strict=True)
        answers = [(*prompt.tolist(), *response.tolist()) for prompt, response in rows]
        count = {"answers": len(answers), "different": len(set(answers))}
        (_watched() / name).with_suffix(".json").write_text(json.dumps(count))
        if "RECIPE_SAMPLES" in os.environ:
            other = torch.load(Path(os.environ["RECIPE_SAMPLES"]) / name, weights_only=False)
            _train_on(module, batch, other)
        return balance(self, batch, *more, **settings)

    module.PPOTrainer._balance_batch = balanced


def _groups(keys):
    """Of each row the number of its group: the first part of a key is its prompt's."""
    numbers = {}
    return [numbers.setdefault(key.partition("_")[0], len(numbers)) for key in keys]


def _train_on(module, batch, other):
    """Rows as the other run had them, in its order; what is in the queue for them becomes what it was there."""
    from tensordict import TensorDict

    batch.reorder(same_prompts([[n] for n in other["groups"]], [[n] for n in _groups(batch.keys)]))
    for tag, lengths in zip(batch.tags, other["lengths"], strict=True):
        tag.update(lengths)
    fields = TensorDict(other["fields"], batch_size=len(batch))
    module.tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields, tags=batch.tags)
