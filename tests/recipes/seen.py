"""What a run left behind: its metrics, what training gave the engine, and what the engine answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runs import HERE, Ended, Place, finished

# Engine in bf16, Hugging Face in float32: how far the engine's token may be below the best one, in logits of this model. Of the
# figures of answers.py it is "rounded" that is held to it: with near ties turned.
BEHIND = 0.25
# What is nearly as good to a router, in its logits. bf16 moves one of these models' by up to 0.024 (Hugging Face's in bf16 beside
# float32: four prompts, two updates of deepseek-r1/grpo and qwen3-235b/grpo), and two that move apart by twice that.
TIE = 0.05
# What has to be so of the updates of a run; the last of those that send what has changed.
SEEN = ("whole", "ranks agree", "changed", "by changes")


def why(ended: Ended) -> str:
    return ended.last_error() if ended.code is not None else f"not at its end after {ended.seconds:.0f} s"


def steps_of(run: Path) -> dict[str, dict[str, float]]:
    """What verl's trainer logged of each step of a run."""
    file = run / "watched/metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return {str(line["step"]): line["data"] for line in lines}


def chosen(values: dict[str, float]) -> dict[str, float]:
    names = ("actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "actor/entropy", "actor/lr", "critic/score/mean")
    names += ("checkpoint_engine/changed_ratio", "checkpoint_engine/payload_mbytes")
    return {name: values[name] for name in names if name in values}


def updates_of(watched: Path) -> list[int]:
    """The updates after which an engine was asked, the first of each that gave it the same weights: DAPO generates as often in a
    step as it takes until enough groups are left, each time after an update."""
    found: list[int] = []
    for update in sorted({int(file.name.split(".")[1]) for file in watched.glob("tokens.*.0.json")}):
        if not found or _given(watched, update) != _given(watched, found[-1]):
            found.append(update)
    return found


def _given(watched: Path, update: int) -> list[bytes]:
    return [file.read_bytes() for file in sorted(watched.glob(f"weights.{update}.*.safetensors"))]


def answers_of(watched: Path) -> list[dict[str, int]]:
    """Of each call that generated for training: answers, and how many of them are different with their prompts."""
    return [json.loads(file.read_text()) for file in sorted(watched.glob("samples.*.json"))]


def same_again(watched: Path, update: int, again: Path) -> bool:
    """Whether a run that was resumed gave its engine at first what the run before gave it in `update`, and it answers the same."""
    tokens = [[f.read_bytes() for f in sorted(one.glob(f"tokens.{n}.*"))] for one, n in ((watched, update), (again, 1))]
    return bool(given := _given(again, 1)) and given == _given(watched, update) and tokens[0] == tokens[1] != []


def by_changes(watched: Path, updates: list[int]) -> bool:
    """Whether the first of these updates sent all weights, and every later one, to each rank, what had changed."""
    sent = {int(file.name.split(".")[1]) for file in watched.glob("changed.*.json")}
    ranks = {n: len(list(watched.glob(f"weights.{n}.*"))) for n in updates}
    every = all(len(list(watched.glob(f"changed.{n}.*"))) == ranks[n] > 0 for n in updates[1:])
    return len(updates) > 1 and updates[0] not in sent and every


def update_seen(place: Place, folder: Path, name: str, changes: bool = False) -> dict[str, Any]:
    """Of each update: whether the engine has the whole model, answers as Hugging Face does, and other than before; and, where
    `changes` are what is sent, whether they were."""
    model, seen = str(folder / "made/model"), folder / name / "watched"
    updates = updates_of(seen)
    asked = [str(HERE / "answers.py"), model, str(seen), json.dumps(updates), str(BEHIND), str(TIE)]
    answers = finished(place, asked, folder / "answers.log", 200)
    by_update = json.loads(answers)
    engine = {n: [json.loads(f.read_text()) for f in sorted(seen.glob(f"tokens.{n}.*.json"))] for n in updates}
    return {
        "updates": len(updates),
        "whole": all(not (v["missing"] or v["unexpected"] or v["disagreeing"]) for v in by_update.values()),
        "ranks agree": all(all(tokens == ranks[0] for tokens in ranks) for ranks in engine.values()),
        "as Hugging Face": all(v["tokens"] == engine[int(n)][0] for n, v in by_update.items()),
        "behind": max(v["behind"] for v in by_update.values()),
        "rounded": max(v["rounded"] for v in by_update.values()),
        "turned": [margin for v in by_update.values() for margin in v["turned"]],
        "changed": len({json.dumps(ranks[0]) for ranks in engine.values()}) == len(updates) > 1,
    } | ({"by changes": by_changes(seen, updates)} if changes else {})
