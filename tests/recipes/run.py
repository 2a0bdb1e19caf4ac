"""Every shipped recipe, shrunk, through verl's own entry module on CPUs: two training steps, updates of the engine, a
checkpoint, and its load. Writes one JSON file a recipe, and the table of docs/evidence/recipes.md.

Usage: run.py --trees DIR [--only PROFILE/RECIPE ...] [--out build/recipes] [--table docs/evidence/recipes.md] [--timeout S]
The interpreter with torch is PATCHCTL_TORCH_PYTHON. A recipe that has a result already is not run again (--again).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import HERE, REPO, Ended, Place, finished, paths, train
from shrunk import Shrunk, recipes, shipped, shrunk
from table import write_table

from patchctl.training.recipes.read import Recipes

STEP = re.compile(r"step:(\d+) - (.*)")
VALUE = re.compile(r"([\w./]+):(?:np\.float64\()?(-?[\d.]+(?:e-?\d+)?|nan|inf)\)?")
# Engine in bf16, Hugging Face in float32: how far the engine's token may be below the best one, in logits of this model.
BEHIND = 0.25


def main() -> int:
    asked = _arguments()
    place = Place(asked.trees.resolve(), Path(os.environ["PATCHCTL_TORCH_PYTHON"]).absolute(), asked.out.resolve())
    known = recipes()
    results: dict[str, dict[str, Any]] = {}
    for key in shipped(known):
        title, file = "/".join(key), place.folder / f"{'-'.join(key)}.json"
        if (not asked.only or title in asked.only) and (asked.again or not file.is_file()):
            found = look_at(place, known, key, asked.timeout, dict(one.split("=") for one in asked.size))
            file.write_text(json.dumps(found, indent=1))
            print(title, json.dumps(found), flush=True)
        if file.is_file():
            results[title] = json.loads(file.read_text())
    if asked.table:
        write_table(asked.table, results, ["/".join(key) for key in shipped(known)])
    return 0 if all(good(found) for title, found in results.items() if not asked.only or title in asked.only) else 1


def good(found: dict[str, Any]) -> bool:
    """Two steps, the engine renewed in both, and the same after a load."""
    update = found["update"] or {}
    seen = all(update.get(name) for name in ("whole", "ranks agree", "changed"))
    return found["steps"] == 2 and seen and update["behind"] <= BEHIND and found["resumed"] is True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=REPO / "build/recipes")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument(
        "--size", nargs="*", default=[], metavar="NAME=N", help="in place of the table's, to look closer"
    )
    return parser.parse_args()


def look_at(
    place: Place, known: Recipes, key: tuple[str, str], timeout: float, other: dict[str, str]
) -> dict[str, Any]:
    """The result of one recipe; what could not be done is said in `why`, and what comes after it is not tried."""
    found: dict[str, Any] = {"composed": False, "steps": 0, "update": None, "resumed": None, "why": ""}
    folder = place.folder / "-".join(key)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in ("on", "resumed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    try:
        one = shrunk(known, key, paths(place, shrunk(known, key, {}).recipe), other)
    except RuntimeError as failure:
        return found | {"why": str(failure).strip().splitlines()[-1][:300]}
    ended = train(place, one, known, "on", timeout)
    log = ended.log.read_text(errors="replace")
    metrics = steps_of(log)
    found |= {
        "composed": "TaskRunner hostname" in log,
        "ranks": one.ranks,
        "other sizes": other,
        "seconds": round(ended.seconds),
    }
    found |= {"steps": len(metrics), "metrics": {step: chosen(values) for step, values in metrics.items()}}
    found["why"] = "" if ended.code == 0 else why(ended)
    if updates := sorted(len(f.name.split(".")) and int(f.name.split(".")[1]) for f in watched(folder, "on")):
        found["update"] = update_seen(place, one, folder, sorted(set(updates)))
    if ended.code == 0 and (folder / "checkpoints/global_step_1").is_dir():
        found |= resumed(place, one, known, folder, timeout)
    return found


def watched(folder: Path, name: str) -> list[Path]:
    return sorted((folder / name / "watched").glob("tokens.*.0.json"))


def why(ended: Ended) -> str:
    return ended.last_error() if ended.code is not None else f"not at its end after {ended.seconds:.0f} s"


def steps_of(log: str) -> dict[str, dict[str, float]]:
    """What verl's console logger says of each step."""
    return {step: {k: float(v) for k, v in VALUE.findall(rest)} for step, rest in STEP.findall(log)}


def chosen(values: dict[str, float]) -> dict[str, float]:
    names = ("actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "actor/entropy", "actor/lr", "critic/score/mean")
    return {name: values[name] for name in names if name in values}


def update_seen(place: Place, one: Shrunk, folder: Path, updates: list[int]) -> dict[str, Any]:
    """Of each update: whether the engine has the whole model, answers as Hugging Face does, and other than before."""
    model, seen = str(folder / "made/model"), folder / "on/watched"
    answers = finished(
        place, [str(HERE / "answers.py"), model, str(seen), json.dumps(updates)], folder / "answers.log", 200
    )
    by_update = json.loads(answers)
    engine = {n: [json.loads(f.read_text()) for f in sorted(seen.glob(f"tokens.{n}.*.json"))] for n in updates}
    return {
        "updates": len(updates),
        "whole": all(not (v["missing"] or v["unexpected"] or v["disagreeing"]) for v in by_update.values()),
        "ranks agree": all(all(tokens == ranks[0] for tokens in ranks) for ranks in engine.values()),
        "as Hugging Face": all(v["tokens"] == engine[int(n)][0] for n, v in by_update.items()),
        "behind": max(v["behind"] for v in by_update.values()),
        "changed": len({json.dumps(ranks[0]) for ranks in engine.values()}) == len(updates),
    }


def resumed(place: Place, one: Shrunk, known: Recipes, folder: Path, timeout: float) -> dict[str, Any]:
    """Begins again after the first step; the engine must be given what it was given in the second step before."""
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_2", ignore_errors=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    ended = train(place, one, known, "resumed", timeout)
    again = steps_of(ended.log.read_text(errors="replace"))
    if ended.code != 0 or list(again) != ["2"]:
        return {"resumed": False, "why": f"resuming: {why(ended)}"}
    same = [
        file.read_bytes() == (folder / "on/watched" / file.name.replace(".1.", ".2.", 1)).read_bytes()
        for file in sorted((folder / "resumed/watched").glob("*.1.*"))
        if (folder / "on/watched" / file.name.replace(".1.", ".2.", 1)).is_file()
    ]
    return {"resumed": bool(same) and all(same), "seconds resumed": round(ended.seconds)}


if __name__ == "__main__":
    sys.exit(main())
