"""Answers of small models to the same prompts before and after weight updates, for bench_drafts_from_others.py.

Two subjects. `problems`: five equations to solve, told by rule; the model is trained on worked ones, answers end by
themselves, and between the two epochs lie GRPO updates on other problems, rewarded by right answers. `code`: Python
sources of the upstream trees; the prompts are beginnings of files that were held out, and between the epochs lies the
last eighth of the training.
"""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import sam_streams

PROMPTS, SAMPLES = 8, 8
TEMPERATURES = (0.6, 1.0)
EQUATIONS, END = 3, "#"
PROBLEM_STEPS, PROBLEM_TOKENS = 300, 400  # training steps; the most tokens of an answer
UPDATES, UPDATE_PROMPTS, UPDATE_RATE = 8, 8, 3e-4
CODE_CHARACTERS, CODE_VOCABULARY = 2_000_000, 1500
CODE_STEPS, CODE_PROMPT, CODE_TOKENS = 320, 96, 384
SEGMENT, BATCH = 512, 4


def problems() -> dict:
    """By temperature: the epoch before and the present one, as `sampled_twice` returns them."""
    import torch

    torch.manual_seed(1)
    order = random.Random(1)
    text = [problem(order) for _ in range(1200)]
    tokenizer = sam_streams.trained_tokenizer([question + answer for question, answer in text[:300]], 600)
    ids = [one.ids for one in tokenizer.encode_batch([question + answer for question, answer in text])]
    model = sam_streams.small_model(tokenizer.get_vocab_size(), window=SEGMENT)
    train(model, torch.tensor([token for one in ids for token in one]), PROBLEM_STEPS, PROBLEM_STEPS)
    _, prompts = questions(tokenizer, order, PROMPTS)
    end = tokenizer.token_to_id(END)
    before = samples_of(model, prompts, PROBLEM_TOKENS, end)
    reinforce(model, tokenizer, order, end)
    return paired(before, samples_of(model, prompts, PROBLEM_TOKENS, end))


def problem(order: random.Random) -> tuple[str, str]:
    """Equations, and their solutions one after another."""
    worked = [sam_streams.worked_problem(order).strip().split("\n", 1) for _ in range(EQUATIONS)]
    return "\n".join(one for one, _ in worked) + "\n\n", "\n".join(
        f"{one}\n{rest}" for one, rest in worked
    ) + f"\n{END}"


def questions(tokenizer, order: random.Random, count: int) -> tuple[list[str], list[list[int]]]:
    """So many, and their tokens, all of one length, so that they make one batch."""
    by_length: dict[int, list[tuple[str, list[int]]]] = {}
    while True:
        question = problem(order)[0]
        tokens = tokenizer.encode(question).ids
        found = by_length.setdefault(len(tokens), [])
        found.append((question, tokens))
        if len(found) == count:
            return [one for one, _ in found], [tokens for _, tokens in found]


def right(question: str, answer: str) -> float:
    """The share of the equations that were solved."""
    found = re.findall(r"answer is x = (-?\d+)\.", answer)
    asked = re.findall(r"solve (\d+)x \+ (\d+) = (-?\d+)\.", question)
    pairs = zip(asked, found, strict=False)
    return sum(int(a) * int(x) + int(b) == int(c) for (a, b, c), x in pairs) / len(asked)


def reinforce(model, tokenizer, order: random.Random, end: int) -> None:
    """GRPO on new problems: the advantage of an answer is its reward in its group's mean and deviation."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=UPDATE_RATE, weight_decay=0.0)
    for update in range(UPDATES):
        asked, prompts = questions(tokenizer, order, UPDATE_PROMPTS)
        groups = sampled(model, prompts, PROBLEM_TOKENS, 1.0, end)
        length = len(prompts[0])
        rewards = torch.tensor(
            [
                [right(one, tokenizer.decode(answer[length:])) for answer in group]
                for one, group in zip(asked, groups, strict=True)
            ]
        )
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
        policy_loss(model, [one for group in groups for one in group], length, advantages.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {update}: reward {rewards.mean():.3f}", file=sys.stderr, flush=True)


def policy_loss(model, answers, prompt: int, advantages):
    """The mean over the tokens of the answers."""
    import torch

    longest = max(map(len, answers))
    ids = torch.zeros(len(answers), longest, dtype=torch.long)
    mask = torch.zeros(len(answers), longest)
    for row, mine, one in zip(ids, mask, answers, strict=True):
        row[: len(one)] = torch.from_numpy(one.astype(np.int64))
        mine[prompt : len(one)] = 1
    chosen = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return -(chosen * mask[:, 1:] * advantages[:, None]).sum() / mask.sum()


def code(trees: Path) -> dict:
    """As `problems`."""
    import torch

    torch.manual_seed(2)
    order = random.Random(2)
    files = sorted((trees / "verl" / "verl").rglob("*.py")) + sorted((trees / "vllm" / "vllm").rglob("*.py"))
    order.shuffle(files)
    texts = [one for one in sam_streams.read(files, CODE_CHARACTERS) if len(one) > 4000]
    held_out, texts = texts[:PROMPTS], texts[PROMPTS:]
    tokenizer = sam_streams.trained_tokenizer(texts[:60], CODE_VOCABULARY)
    ids = torch.tensor([token for one in tokenizer.encode_batch(texts) for token in one.ids])
    prompts = [tokenizer.encode(one).ids[200 : 200 + CODE_PROMPT] for one in held_out]
    model = sam_streams.small_model(tokenizer.get_vocab_size(), window=SEGMENT)
    first = CODE_STEPS * 7 // 8
    optimizer = train(model, ids, first, CODE_STEPS)
    before = samples_of(model, prompts, CODE_TOKENS)
    train(model, ids, CODE_STEPS, CODE_STEPS, optimizer, first)
    return paired(before, samples_of(model, prompts, CODE_TOKENS))


def train(model, ids, until: int, steps: int, optimizer=None, first: int = 0):
    """Steps `first` to `until` of `steps`, at a rate that falls to zero; returns the optimizer."""
    import torch

    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=sam_streams.RATE)
    start = time.process_time()
    for step in range(first, until):
        at = torch.randint(0, len(ids) - SEGMENT - 1, (BATCH,))
        batch = torch.stack([ids[i : i + SEGMENT + 1] for i in at])
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.param_groups[0]["lr"] = sam_streams.RATE * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == until - 1:
            print(f"step {step}: {loss:.3f}, {time.process_time() - start:.0f} s", file=sys.stderr, flush=True)
    return optimizer


def samples_of(model, prompts, tokens: int, end: int = -1) -> dict:
    """By temperature, for each prompt its samples, prompt and all."""
    return {heat: sampled(model, prompts, tokens, heat, end) for heat in TEMPERATURES}


def sampled(model, prompts, tokens: int, temperature: float, end: int) -> list[list[np.ndarray]]:
    """For each prompt SAMPLES answers, each up to its `end`."""
    import torch

    rows = model.sample(torch.tensor(prompts).repeat_interleave(SAMPLES, 0), tokens, temperature, end)
    streams = []
    for row in rows.numpy().astype(np.int32):
        ends = np.flatnonzero(row == end)
        streams.append(row[: ends[0] + 1] if len(ends) else row)
    return [streams[i : i + SAMPLES] for i in range(0, len(streams), SAMPLES)]


def paired(before: dict, now: dict) -> dict:
    return {heat: {"before": before[heat], "now": now[heat]} for heat in TEMPERATURES}
