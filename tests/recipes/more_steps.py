"""A recipe run with more steps than its record has, each update looked into. No record is made of it, and none is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from runs import HERE, Place, finished, paths, train
from seen import BEHIND, TIE, chosen, steps_of, updates_of, why
from shrunk import shrunk

from patchctl.atomic import replace_file
from patchctl.training.recipes.read import Key, Recipes


def more_steps(place: Place, known: Recipes, key: Key, steps: int, timeout: float, page: Path | None) -> bool:
    """Whether all steps were made, and every update gave the engine what it had to. Prints what was found."""
    folder, name = place.folder / "-".join(key), f"steps-{steps}"
    shutil.rmtree(folder / name, ignore_errors=True)
    files = paths(place, shrunk(known, key, {}).recipe) | {"checkpoints": str(folder / name / "checkpoints")}
    one = shrunk(known, key, files, more={"trainer.total_training_steps": str(steps)})
    ended = train(place, one, known, name, timeout, looked_into=True)
    metrics = {step: chosen(values) for step, values in steps_of(folder / name).items()}
    if ended.code != 0 or len(metrics) != steps:
        print("/".join(key), why(ended), metrics, flush=True)
        return False
    found = {"ranks": one.ranks, "seconds": round(ended.seconds), "peak": ended.peak_bytes, "steps": metrics}
    found["updates"] = _updates(place, folder, folder / name / "watched")
    print("/".join(key), json.dumps(found), flush=True)
    if page:
        replace_file(page, page_of("/".join(key), page.name, found).encode())
    return all(map(_exact, found["updates"].values()))


def _updates(place: Place, folder: Path, watched: Path) -> dict[str, Any]:
    """By its number, what an update gave the engine, and what that answers beside Hugging Face's model."""
    model, numbers = str(folder / "made/model"), updates_of(watched)
    asked = [model, str(watched), json.dumps(numbers)]
    weights = json.loads(finished(place, [str(HERE / "updates.py"), *asked], folder / "updates.log", 200))
    limits = [str(BEHIND), str(TIE)]
    answers = json.loads(finished(place, [str(HERE / "answers.py"), *asked, *limits], folder / "answers.log", 200))
    found = {}
    for number in map(str, numbers):
        engine = [json.loads(file.read_text()) for file in sorted(watched.glob(f"tokens.{number}.*.json"))]
        found[number] = weights[number] | answers[number] | {"engine": engine}
    return found


def _exact(update: dict[str, Any]) -> bool:
    """Every rank holds, where it did before, what the weights say, and of all the weights."""
    agree = all(tokens == update["engine"][0] for tokens in update["engine"])
    whole = not (update["missing"] or update["unexpected"] or update["disagreeing"])
    kept = all(rank["addresses kept"] for rank in update["ranks"])
    held = all(group["differs"] == 0 for group in update["groups"].values())
    return agree and whole and kept and held and update["rounded"] <= BEHIND


HEAD = """\
# {title}, {steps} steps: what each update gave the engine

Written on {today} by `run.py --steps` of `tests/recipes`, in one run of verl's own entry module on {ranks} ranks, {seconds} s:

    python tests/recipes/run.py --trees build/trees/patched --only {title} --steps {steps} --page docs/evidence/{page}

The shrunk recipe ([recipes-sizes.md](recipes-sizes.md)) with all its switches: {steps} times an update of the engine, generation, reward,
and a training step. Update 1 has the converted checkpoint's weights, each later one those of the step before.

- **given**: tensors under Hugging Face's names that the ranks got from training, all together; two ranks never gave different values.
- **held**: tensors of all ranks of the engine, in vllm's layers as its kernels read them, and what is derived of them.
- **beside Hugging Face's**: the largest difference between what is held and what the weights given say, laid out anew from Hugging
  Face's names by `tests/recipes/updates.py`, with no code of the engine's: merged, divided, transposed, W_UV and W_UK_T computed.
- **changed**: the largest difference to the update before; for update 1, to the model's file.
"""

MEMORY = """
## Memory of an update

Bytes of CPU tensors that operators made between the first and the last tensor of an update, the exchange of experts, the gathering of the
other weights and the loading included; what gloo makes inside is not seen. **Most** is what there was at a time, beyond the weights of
trainer and engine, which have their memory before and keep it: no address of a held tensor changed in any update. It was {times:.2f}
times the largest tensor at most: a gathered tensor, and the parts that it is made of. In a larger model the rounds of the experts'
exchange come beside that, which are smaller here: 64 MiB to send and to receive (`ROUND_BYTES` of ep_reshard_exchange.py), or one expert.

| update | rank | given, bytes | largest tensor given | made in all | most at a time | of the given | engine's weights |
|---|---|---|---|---|---|---|---|"""


def page_of(title: str, page: str, found: dict[str, Any]) -> str:
    numbers = {"steps": len(found["steps"]), "ranks": found["ranks"], "seconds": found["seconds"]}
    head = HEAD.format(title=title, page=page, today=date.today(), **numbers)
    ranks = [rank for update in found["updates"].values() for rank in update["ranks"]]
    memory = MEMORY.format(times=max(rank["most"] / rank["largest"] for rank in ranks))
    return "\n".join([head, *_tensors(found), *_answers(found), memory, *_memory(found), ""])


def _tensors(found: dict[str, Any]) -> Iterator[str]:
    yield "| update | tensors | given | numbers | held | beside Hugging Face's | changed |"
    yield "|---|---|---|---|---|---|---|"
    for number, update in found["updates"].items():
        for name, one in update["groups"].items():
            given = [f"{one['given']}", f"{one['numbers']:,}"] if one["given"] else ["derived", ""]
            changed = f"{one['changed']:.3g}" if one["given"] else ""
            cells = [number, name, *given, f"{one['held']}", f"{one['differs']:.3g}", changed]
            yield f"| {' | '.join(cells)} |"


def _answers(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "| update | greedy tokens of the engine that are Hugging Face's | furthest below the best, logits | step's loss | gradient norm |"
    yield "|---|---|---|---|---|"
    for number, update in found["updates"].items():
        pairs = [
            pair for rows in zip(update["engine"][0], update["tokens"], strict=True) for pair in zip(*rows, strict=True)
        ]
        same, step = sum(one == other for one, other in pairs), found["steps"][number]
        turned = (
            f" ({update['rounded']:.2g} with experts turned that are {max(update['turned'])} apart)"
            if update["turned"]
            else ""
        )
        yield (
            f"| {number} | {same} of {len(pairs)} | {update['behind']:.2g}{turned} | {step['actor/pg_loss']:.4g} "
            f"| {step['actor/grad_norm']:.4g} |"
        )


def _memory(found: dict[str, Any]) -> Iterator[str]:
    for number, update in found["updates"].items():
        for rank, one in enumerate(update["ranks"]):
            numbers = " | ".join(f"{one[name]:,}" for name in ("given", "largest", "made", "most"))
            yield f"| {number} | {rank} | {numbers} | {one['most'] / one['given']:.0%} | {one['held']:,} |"
