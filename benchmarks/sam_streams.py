"""Token streams for bench_sam.py: text and code that the machine has, and long outputs of a very small model."""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 32000
TRAINING_CHARACTERS = 4_000_000
SHORT, LONG = 1500, 32768
FILES, LONG_STREAMS, MADE = 16, 3, 8
PACKAGES = ("asyncio", "email", "http", "importlib", "json", "logging", "multiprocessing", "tkinter", "unittest", "xml")
# The model: trained for a minute or so, then asked for several long samples of each of some prompts.
LAYERS, WIDTH, HEADS, WINDOW = 2, 128, 4, 256
MODEL_VOCABULARY = 1500
STEPS, BATCH, SEGMENT, RATE = 500, 16, 256, 2e-3
PROMPTS, SAMPLES, SAMPLE_TOKENS, TEMPERATURE = 4, 8, 2000, 0.8


def trained_tokenizer(texts: Iterable[str], size: int):
    """A byte-level BPE tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    )
    return tokenizer


def read(files: Iterable[Path], characters: int) -> list[str]:
    """Texts of files, in order, until there are that many characters; what is no UTF-8 is left out."""
    texts, total = [], 0
    for file in files:
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, OSError):
            continue
        total += len(texts[-1])
        if total >= characters:
            break
    return texts


def recorded(trees: Path) -> dict[str, list[np.ndarray]]:
    """`code` and `prose`: one file a stream; `code 32K`: files one after another, as a long context holds them.

    Code is modules of Python's standard library and the trees' vllm, prose the documentation in the trees; then the texts of
    `untuned`. The tokenizer is trained on other text: packages of this environment and /usr/share/doc.
    """
    order = random.Random(7)
    packages = Path(sysconfig.get_path("purelib"))
    other = [f for name in ("transformers", "numpy", "ray", "pandas") for f in (packages / name).rglob("*.py")]
    documents = sorted(Path("/usr/share/doc").rglob("*README*"))
    for files in (other, documents):
        files.sort()
        order.shuffle(files)
    texts = read(other, TRAINING_CHARACTERS) + read(documents, TRAINING_CHARACTERS // 2)
    tokenizer = trained_tokenizer(texts, VOCABULARY)
    code = [*Path(sysconfig.get_path("stdlib")).glob("*.py"), *(trees / "vllm" / "vllm").rglob("*.py")]
    prose = [f for kind in ("*.md", "*.rst") for f in trees.rglob(kind)]
    streams = {}
    for name, files in (("code", code), ("prose", prose)):
        files.sort()
        order.shuffle(files)
        ids = [np.array(tokenizer.encode(text).ids, np.int32) for text in read(files, 3_000_000)]
        streams[name] = [one[:LONG] for one in ids if len(one) >= SHORT][:FILES]
        if name == "code":
            joined = np.concatenate(ids)
            streams["code 32K"] = [
                joined[i * LONG : (i + 1) * LONG] for i in range(min(LONG_STREAMS, len(joined) // LONG))
            ]
    for name, texts in untuned().items():
        ids = [np.array(tokenizer.encode(text).ids, np.int32)[:LONG] for text in texts]
        streams[name] = [one for one in ids if len(one) >= SHORT][:FILES]
    return streams


def untuned() -> dict[str, list[str]]:
    """Texts by which nothing was ever chosen: packages of the standard library, this project's Chinese pages, two made by rule."""
    packages = Path(sysconfig.get_path("stdlib"))
    modules = [f for name in PACKAGES for f in sorted((packages / name).rglob("*.py"))]
    random.Random(13).shuffle(modules)
    pages = sorted((Path(__file__).resolve().parent.parent / "docs/zh-CN").glob("*.md"))
    return {
        "JSON logs": [json_log(random.Random(f"log {i}")) for i in range(MADE)],
        "library packages": read(modules, 1_000_000),
        "Chinese": read(pages, 1_000_000),
        "reasoning": [reasoning_trace(random.Random(f"trace {i}")) for i in range(MADE)],
    }


def json_log(order: random.Random, lines: int = 100) -> str:
    """A service's log, a JSON object a line: requests with their ids, some with a failure and its retries, and jobs."""
    at = datetime(2026, 3, 14, 9, 26, 53, tzinfo=timezone.utc)
    hosts = [f"api-{order.choice('abc')}{i}-{order.getrandbits(20):05x}" for i in range(4)]
    users = [f"u_{order.getrandbits(32):08x}" for _ in range(12)]
    routes = ["/v1/orders", "/v1/orders/{}", "/v1/users/{}/cart", "/v1/search", "/healthz", "/v1/payments/{}/capture"]
    failures = ["connection reset by peer", "deadline exceeded", "row lock timeout", "upstream returned 503"]
    found: list[str] = []

    def log(level: str, logger: str, message: str, **fields: Any) -> None:
        stamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = {"ts": stamp, "level": level, "logger": logger, "msg": message, "host": order.choice(hosts)}
        found.append(json.dumps(said | fields))

    while len(found) < lines:
        at += timedelta(milliseconds=order.expovariate(1 / 180))
        if order.random() < 0.1:
            log("DEBUG", "jobs.queue", "polled", queue=order.choice(["mail", "billing"]), depth=order.randint(0, 40))
            continue
        route, trace = order.choice(routes), f"{order.getrandbits(64):016x}"
        about = {"trace_id": trace, "user": order.choice(users), "path": route.format(order.randint(1000, 99999))}
        attempt = 1
        while route != "/healthz" and attempt < 4 and order.random() < 0.15:
            error = order.choice(failures)
            log(
                "WARN",
                "http.client",
                "attempt failed",
                **about,
                attempt=attempt,
                error=error,
                backoff_ms=100 * 2**attempt,
            )
            at += timedelta(milliseconds=100 * 2**attempt)
            attempt += 1
        status = order.choices([200, 201, 304, 404, 500], [80, 8, 6, 4, 2])[0]
        level, took = "ERROR" if status == 500 else "INFO", round(order.lognormvariate(3, 0.8), 1)
        size = order.randint(80, 20000)
        log(level, "http.access", "request done", **about, method="GET", status=status, bytes=size, duration_ms=took)
    return "\n".join(found) + "\n"


def reasoning_trace(order: random.Random, problems: int = 12) -> str:
    """Long multiplications thought through: by parts, with slips that a re-check finds, by another way, to an answer."""
    said: list[str] = []
    for _ in range(problems):
        a, b = order.randint(103, 989), order.randint(12, 97)
        tens, ones = b // 10 * 10, b % 10
        said.append(f"Question: a shop sells {a} boxes with {b} pens each. How many pens is that?\n<think>\n")
        said.append(
            order.choice(["Okay, so I need", "Let me see. I need", "Alright, I have"]) + f" to compute {a} * {b}. "
        )
        parts = [part for part in (tens, ones) if part]
        said.append(f"I can split {b} into {' + '.join(map(str, parts))}.\n")
        slip = order.choice([0, 0, 10, -10, 100])
        for i, part in enumerate(parts):
            hundreds, rest = a // 100 * 100, a % 100
            wrong = slip if i == 0 else 0
            said.append(
                f"{a} * {part}: {hundreds} * {part} = {hundreds * part}, {rest} * {part} = {rest * part + wrong}, "
            )
            said.append(f"so {a} * {part} = {hundreds * part} + {rest * part + wrong} = {a * part + wrong}.\n")
        total = a * b + slip
        terms = [a * part + (slip if i == 0 else 0) for i, part in enumerate(parts)]
        said.append(f"Adding up, {' + '.join(map(str, terms))} = {total}.\n")
        for check in order.sample(["digits", "round", "again"], order.randint(1, 3)) + ["again"] * bool(slip):
            said.append(
                order.choice(["Wait, let me double-check. ", "Hmm, let me verify that. ", "But is that right? "])
            )
            if check == "digits":
                said.append(f"The last digit of {a} * {b} is that of {a % 10} * {b % 10} = {a % 10 * (b % 10)}, ")
                said.append(f"which is {a * b % 10}. {total} ends in {total % 10}. That is consistent.\n")
            elif check == "round":
                up = (a + 99) // 100 * 100
                said.append(f"{a} = {up} - {up - a}, so {a} * {b} = {up} * {b} - {up - a} * {b} = ")
                said.append(f"{up * b} - {(up - a) * b} = {a * b}. ")
            else:
                for part in parts:
                    said.append(f"{a} * {part} = {a * part}. ")
                said.append(f"Adding up, {' + '.join(str(a * part) for part in parts)} = {a * b}. ")
            if check != "digits":
                same = f"That is the same as before, {total}.\n"
                said.append(same if total == a * b else f"I had {total} before, so there was a slip. It is {a * b}.\n")
                total = a * b
        said.append(f"</think>\n{a} boxes with {b} pens each are {a} * {b} = **{a * b}** pens.\n\n")
    return "".join(said)


def worked_problem(order: random.Random) -> str:
    """A problem with its solution as reasoning has it: steps, doubts, the same again, a check. Made by rule."""
    a, b, x = order.randint(2, 12), order.randint(1, 40), order.randint(-9, 15)
    c = a * x + b
    steps = (
        f"we subtract {b} from both sides: {a}x = {c} - {b} = {c - b}. Then we divide by {a}: x = {c - b}/{a} = {x}."
    )
    doubts = [
        "Wait, let me check that again.",
        "Hmm, is that right?",
        "Let me verify.",
        "But wait, I should double check.",
    ]
    text = f"Problem: solve {a}x + {b} = {c}.\n" + order.choice(["First, ", "So, ", "Okay, to solve this "]) + steps
    for _ in range(order.randint(0, 3)):
        text += f" {order.choice(doubts)} " + order.choice([f"The equation is {a}x + {b} = {c}, so {steps}", steps])
        text += f" Putting it back: {a} * {x} + {b} = {a * x} + {b} = {c}. " + order.choice(["That is right.", "Yes."])
    return text + f"\nThe answer is x = {x}.\n\n"


def sampled() -> list[list[np.ndarray]]:
    """Samples, by prompt, of a transformer that was trained briefly on worked problems: real sampling, a toy subject."""
    import torch

    torch.manual_seed(0)
    order = random.Random(11)
    text = [worked_problem(order) for _ in range(12000)]
    tokenizer = trained_tokenizer(text[:3000], MODEL_VOCABULARY)
    ids = torch.tensor([token for one in tokenizer.encode_batch(text) for token in one.ids])
    model = small_model(tokenizer.get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        at = torch.randint(0, len(ids) - SEGMENT - 1, (BATCH,))
        segment = torch.stack([ids[i : i + SEGMENT + 1] for i in at])
        loss = torch.nn.functional.cross_entropy(model(segment[:, :-1]).flatten(0, 1), segment[:, 1:].flatten())
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    prompts = []
    for _ in range(PROMPTS):
        example = "".join(worked_problem(order) for _ in range(3)) + worked_problem(order).split("\n")[0] + "\n"
        prompts.append(tokenizer.encode(example).ids)
    shortest = min(map(len, prompts))
    together = torch.tensor([one[-shortest:] for one in prompts]).repeat_interleave(SAMPLES, 0)
    streams = model.sample(together).numpy().astype(np.int32)
    return [list(streams[i : i + SAMPLES]) for i in range(0, len(streams), SAMPLES)]


def small_model(vocabulary: int, layers: int = LAYERS, width: int = WIDTH, window: int = WINDOW):
    """A decoder with rotary positions and a window, so that it can be sampled for longer than it was trained on."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, hidden, start, past):
            """`past` are keys and values from before position `start`, at most `window`; returns them with the new ones."""
            batch, length, _ = hidden.shape
            q, k, v = self.qkv(self.first(hidden)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            q, k = rotated(q, start), rotated(k, start)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            mask = torch.ones(length, k.shape[2], dtype=torch.bool).tril(k.shape[2] - length)
            attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
            return hidden + self.mlp(self.second(hidden)), (k[:, :, -window:], v[:, :, -window:])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            return self.step(ids, 0, [None] * layers)[0]

        def step(self, ids, start, past):
            hidden = self.embedding(ids)
            kept = []
            for block, before in zip(self.blocks, past, strict=True):
                hidden, now = block(hidden, start, before)
                kept.append(now)
            return self.head(self.norm(hidden)), kept

        @torch.no_grad()
        def sample(self, prompts, tokens=SAMPLE_TOKENS, temperature=TEMPERATURE, end=-1):
            """`tokens` more for every row, or fewer when all have had the token `end`."""
            ids, new, past = prompts, prompts, [None] * layers
            for _ in range(tokens):
                logits, past = self.step(new, ids.shape[1] - new.shape[1], past)
                new = torch.multinomial((logits[:, -1] / temperature).softmax(-1), 1)
                ids = torch.cat([ids, new], 1)
                if (ids == end).any(1).all():
                    break
            return ids

    return Model()


def rotated(x, start):
    """Rotary positions over the second-to-last axis, from `start` on."""
    import torch

    length, width = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(start, start + length)[:, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def total(streams: Sequence[np.ndarray]) -> int:
    return sum(map(len, streams))
