"""Holds a run of a variant against the recipe's own run: training with the same answers, and the engine with its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from runs import HERE, Place, finished, paths, train
from seen import BEHIND, chosen, steps_of, update_seen, updates_of, why
from shrunk import shrunk
from variants import Variant

from patchctl.training.recipes.read import Key, Recipes

# What "close" is, of one training step in bf16 from the same weights and answers: losses and the gradient norm may differ by
# this, and the angle between what the two runs make of the weights has at least this cosine.
LIMITS = {"loss": 0.01, "grad_norm": 0.05, "direction": 0.9}
# A mean in bf16 of what the other run has in float32.
ROUNDED = 2**-7
GRADIENT, SCORE = "actor/grad_norm", "critic/score/mean"
NO_LOSS = {GRADIENT, SCORE, "actor/lr"}
SENT = "checkpoint_engine/"  # how much an update sent, which is no part of training


def compared(
    place: Place, known: Recipes, key: Key, variant: Variant, timeout: float, other: dict[str, str]
) -> dict[str, Any]:
    """Runs the variant; what it is held to, what was found, and whether it `held`."""
    folder = place.folder / "-".join(key)
    shutil.rmtree(folder / variant.name, ignore_errors=True)
    files = paths(place, shrunk(known, key, {}).recipe) | {"checkpoints": str(folder / variant.name / "checkpoints")}
    one = variant.made(known, key, files, other)
    ended = train(place, one, known, variant.name, timeout, samples=folder / "on/watched")
    steps = steps_of(folder / variant.name)
    found: dict[str, Any] = {
        "off": sorted(variant.off),
        "held to": {"training": variant.training, "engine": variant.engine},
        "beside": variant.beside,
        "ranks": one.ranks,
        "steps": len(steps),
        "metrics": {step: chosen(values) for step, values in steps.items()},
        "seconds": round(ended.seconds),
        "peak": ended.peak_bytes,
        "why": "" if ended.code == 0 else why(ended),
    }
    if ended.code == 0:
        found |= _held(place, folder, variant, found["metrics"])
    return found | {"held": not found["why"] and not found.get("faults")}


def _held(place: Place, folder: Path, variant: Variant, metrics: dict[str, dict[str, float]]) -> dict[str, Any]:
    before = steps_of(folder / variant.beside)
    beside = {step: chosen(values) for step, values in before.items()}
    watched = [folder / name / "watched" for name in (variant.beside, variant.name)]
    updates = updates_of(watched[0])
    if len(updates) < 2:
        return {"faults": [f"{variant.beside} has no second step"]}
    same = [str(HERE / "same.py"), *map(str, watched), str(updates[1])]
    weights = json.loads(finished(place, same, folder / "same.log", 200))
    tokens = [{file.name: file.read_text() for file in one.glob("tokens.*.0.json")} for one in watched]
    found = {"weights": weights["weights"], "direction": weights["direction"]}
    found |= {"metrics equal": alike(beside, metrics, variant.elsewhere), "tokens": tokens[0] == tokens[1]}
    found |= differences(_but(beside, variant.elsewhere), _but(metrics, variant.elsewhere))
    if not (
        found["weights"] and found["tokens"]
    ):  # otherwise they are as near to Hugging Face's as those of the other run
        engine = update_seen(place, folder, variant.name)
        found |= {name: engine[name] for name in ("behind", "rounded", "turned")}
    # one-by-one is only what one-rank is held against: other micro-batches, with the engine as it was.
    return found | {"faults": faults(found, variant) if variant.name != "one-by-one" else []}


def alike(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]], elsewhere: frozenset[str]) -> bool:
    """Whether two runs logged the very same; of what is computed `elsewhere`, but for a rounding."""
    near = all(
        name in other.get(step, {}) and abs(other[step][name] - value) <= ROUNDED * abs(value)
        for step, values in one.items()
        for name, value in values.items()
        if name in elsewhere
    )
    return near and _but(one, elsewhere) == _but(other, elsewhere)


def _but(metrics: dict[str, dict[str, float]], left_out: frozenset[str]) -> dict[str, dict[str, float]]:
    return {step: {k: v for k, v in values.items() if k not in left_out} for step, values in metrics.items()}


def differences(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Of the first step, which begins with the same weights; None where a run does not tell."""
    first, second = one.get("1", {}), other.get("1", {})
    named = [name for name in first.keys() & second.keys() - NO_LOSS if not name.startswith(SENT)]
    losses = [abs(first[name] - second[name]) for name in named]
    norm = None
    if first.get(GRADIENT) and GRADIENT in second:
        norm = abs(second[GRADIENT] / first[GRADIENT] - 1)
    score = abs(first[SCORE] - second[SCORE]) if SCORE in first and SCORE in second else None
    return {"loss": max(losses, default=None), "grad_norm": norm, "score": score}


def faults(found: dict[str, Any], variant: Variant) -> list[str]:
    """What is not as the table of switches promises."""
    wrong = [] if found["score"] == 0 else ["other answers were scored"]
    if variant.training == "equal":
        wrong += [name for name in ("weights", "metrics equal") if not found[name]]
    else:
        wrong += [name for name in ("loss", "grad_norm") if not _within(found[name], LIMITS[name])]
        wrong += [] if found["direction"] is not None and found["direction"] >= LIMITS["direction"] else ["direction"]
    if variant.training == variant.engine == "equal":
        return wrong + ([] if found["tokens"] else ["tokens"])
    return wrong + ([] if found.get("rounded", 0.0) <= BEHIND else ["behind"])


def _within(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit
