"""Every shipped recipe, shrunk, through verl's own entry module on CPUs: two training steps, updates of the engine, a
checkpoint, and its load. Writes one JSON file a recipe, and the table of docs/evidence/recipes.md.

Usage: run.py --trees DIR [--only PROFILE/RECIPE ...] [--compare off,one-rank,minus-one,pairs] [--out build/recipes]
              [--table docs/evidence/recipes.md] [--timeout S]
The interpreter with torch is PATCHCTL_TORCH_PYTHON. What has a result already is not run again (--again): a run that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import compared
from runs import REPO, Place, paths, train
from seen import BEHIND, chosen, same_again, steps_of, update_seen, updates_of, why
from shrunk import Shrunk, recipes, shipped, shrunk
from table import sizes_page, write_table
from variants import KINDS, variants

from patchctl.atomic import replace_file
from patchctl.training.recipes.read import Recipes


def main() -> int:
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended on the way out
    place = Place(asked.trees.resolve(), Path(os.environ["PATCHCTL_TORCH_PYTHON"]).absolute(), asked.out.resolve())
    known, other = recipes(), dict(one.split("=") for one in asked.size)
    everything = Results({"/".join(key): place.folder / f"{'-'.join(key)}.json" for key in shipped(known)}, asked.table)
    keys = [key for key in shipped(known) if not asked.only or "/".join(key) in asked.only]
    for key in keys:
        title = "/".join(key)
        if asked.again or title not in everything.found:
            everything.keep(title, look_at(place, known, key, asked.timeout, other))
    for key, variant in variants(known, shipped(known), asked.compare):
        title = "/".join(key)
        if key in keys and good(everything.found[title]):
            found = everything.found[title]
            beside = found.setdefault("compared", {})
            if asked.again or variant.name not in beside:
                beside[variant.name] = compared(place, known, key, variant, asked.timeout, found["other sizes"])
                everything.keep(title, found)
    everything.write()
    return 0 if all(well(everything.found["/".join(key)]) for key in keys) else 1


class Results:
    """What was found of each recipe, in a file each, and the pages that are made of them."""

    def __init__(self, files: dict[str, Path], table: Path | None) -> None:
        self.files, self.table = files, table
        self.found = {title: json.loads(file.read_text()) for title, file in files.items() if file.is_file()}

    def keep(self, title: str, found: dict[str, Any]) -> None:
        self.found[title] = found
        replace_file(self.files[title], json.dumps(found, indent=1).encode())
        print(title, json.dumps(found), flush=True)
        self.write()

    def write(self) -> None:
        if self.table:
            write_table(self.table, self.found, list(self.files))
            replace_file(self.table.with_name("recipes-sizes.md"), sizes_page().encode())


def well(found: dict[str, Any]) -> bool:
    """As `good`, and so is every run that it was compared with."""
    return good(found) and all(one["held"] for one in found.get("compared", {}).values())


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
    parser.add_argument("--compare", type=lambda text: text.split(","), default=[], metavar="KIND[,KIND ...]",
                        help=f"further runs, held against the recipe's own: {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument(
        "--size", nargs="*", default=[], metavar="NAME=N", help="in place of the table's, to look closer"
    )
    asked = parser.parse_args()
    if unknown := set(asked.compare) - set(KINDS):
        parser.error(f"--compare: no {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return asked


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
        "peak": ended.peak_bytes,
        "load": round(os.getloadavg()[1], 1),
    }
    found |= {"steps": len(metrics), "metrics": {step: chosen(values) for step, values in metrics.items()}}
    found["why"] = "" if ended.code == 0 else why(ended)
    if updates_of(folder / "on/watched"):
        found["update"] = update_seen(place, folder, "on")
    if ended.code == 0 and (folder / "checkpoints/global_step_1").is_dir():
        found |= resumed(place, one, known, folder, timeout)
    return found


def resumed(place: Place, one: Shrunk, known: Recipes, folder: Path, timeout: float) -> dict[str, Any]:
    """Begins again after the first step; the engine must be given what it was given in the second step before,
    and answer the same."""
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_2", ignore_errors=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    ended = train(place, one, known, "resumed", timeout)
    again = steps_of(ended.log.read_text(errors="replace"))
    if ended.code != 0 or list(again) != ["2"]:
        return {"resumed": False, "why": f"resuming: {why(ended)}"}
    updates = updates_of(folder / "on/watched")
    same = len(updates) > 1 and same_again(folder / "on/watched", updates[1], folder / "resumed/watched")
    return {"resumed": same, "seconds resumed": round(ended.seconds)}


if __name__ == "__main__":
    sys.exit(main())
