"""Every shipped recipe, shrunk, through verl's own entry module on CPUs: two training steps, updates of the engine, a
checkpoint, and its load. Writes one JSON file a recipe, and the table of docs/evidence/recipes-RELEASE.md.

Usage: run.py --trees DIR [--release NAME] [--only PROFILE/RECIPE ...] [--compare off,one-rank,minus-one,pairs] [--out build/recipes]
              [--records DIR] [--table FILE] [--timeout S]
       run.py --pages                                                        write the pages from their records, and run nothing
       run.py --trees DIR --only PROFILE/RECIPE --steps N [--page FILE]      each update looked into, and no record
       run.py --trees DIR --only PROFILE/RECIPE --out DIR --with KEY=VALUE ... [--model PROFILE]   other settings, and no record
The interpreter with torch is PATCHCTL_TORCH_PYTHON. What has a record of these trees and settings is not run again (--rerun): a
run that was stopped goes on, on another machine too. Exit status: 0; 1 where a recipe did not run to its end and known.yaml does not
say that it stops so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import compared
from more_steps import more_steps
from records import Records, State, state_of
from releases import NEWEST, RELEASES, OfRelease
from runs import REPO, Ended, Place, paths, place_of, train
from seen import BEHIND, SEEN, answers_of, chosen, same_again, steps_of, update_seen, updates_of, why
from shrunk import NOTHING, TABLE, Beside, Shrunk, recipes, shipped, shrunk, smaller
from table import sizes_page
from variants import KINDS, Variant, variant_of, variants

from patchctl.atomic import replace_file
from patchctl.training.recipes.read import Key, Recipes
from patchctl.training.recipes.resolve import resolve

# Of a call's answers: two may be the same by chance, half of them never.
DIFFERENT = 0.75
EVIDENCE = REPO / "docs/evidence"


def main() -> int:
    asked = arguments(sys.argv[1:])
    if asked.pages:
        for one in RELEASES.values():
            page = EVIDENCE / f"{one.page}.md"
            if page.is_file():
                Records(recipes(one.name), page.with_suffix(""), page, one).write()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended on the way out
    python, of = Path(os.environ["PATCHCTL_TORCH_PYTHON"]).absolute(), RELEASES[asked.release]
    place = Place(asked.trees.resolve(), python, asked.out.resolve(), of)
    known, other = recipes(of.name), dict(one.split("=") for one in asked.size)
    if asked.steps:
        profile, _, name = asked.only[0].partition("/")
        return 0 if more_steps(place, known, (profile, name), asked.steps, asked.timeout, asked.page) else 1
    if asked.beside or asked.model:
        profile, _, name = asked.only[0].partition("/")
        run = resolve(known, profile, name)
        sizes = smaller(run, of.sizes_of(run.title), other)
        found = look_at(place_of(place, run), known, (profile, name), asked.timeout, sizes, beside(asked))
        print(asked.only[0], json.dumps(found), flush=True)
        return 0 if good(found) else 1
    records = Records(known, asked.records or place.folder, asked.table, of)
    if asked.table:
        replace_file(asked.table.with_name("recipes-sizes.md"), sizes_page().encode())
    keys = []
    for key in shipped(known):
        if not asked.only or "/".join(key) in asked.only:
            try:
                place_of(place, resolve(known, *key))
                keys.append(key)
            except LookupError as lacking:
                print(f"{'/'.join(key)} does not run here: {lacking}")
    session = Session(place, known, records, other, asked.timeout)
    for key in keys:
        session.run(key, asked.rerun)
    for key, variant in variants(known, shipped(known), asked.compare):
        if key in keys and good(records.found["/".join(key)]):
            session.compare(key, variant, asked.rerun)
    records.write()
    for title in map("/".join, keys):
        if reason := None if good(records.found[title]) else of.known_stop(title, records.found[title]["why"]):
            print(f"{title} stops, as known.yaml says: {reason}")
    return 0 if keys and all(as_expected(of, "/".join(key), records.found["/".join(key)]) for key in keys) else 1


@dataclass
class Session:
    """Runs what no record tells yet."""

    place: Place
    known: Recipes
    records: Records
    asked: dict[str, str]
    timeout: float

    def _other(self, key: Key) -> dict[str, str]:
        """Sizes in place of the table's."""
        return smaller(resolve(self.known, *key), self.place.of.sizes_of("/".join(key)), self.asked)

    def _place(self, key: Key) -> Place:
        return place_of(self.place, resolve(self.known, *key))

    def run(self, key: Key, rerun: bool = False) -> None:
        title = "/".join(key)
        before = self.records.found.get(title, {})
        other = self._other(key)
        state = state_of(self.place.trees, shrunk(self.known, key, {}, other), self.known)
        if rerun or before.get("state") != state:
            found = look_at(self._place(key), self.known, key, self.timeout, other)
            self._done(key, "on", state)
            self.records.keep(title, found | {"state": state, "compared": before.get("compared", {})})

    def compare(self, key: Key, variant: Variant, rerun: bool = False) -> None:
        title = "/".join(key)
        found, other = self.records.found[title], self._other(key)
        state = state_of(self.place.trees, variant.made(self.known, key, {}, other), self.known)
        if not rerun and found["compared"].get(variant.name, {}).get("state") == state:
            return
        # A record of another machine left no run here to hold this one against.
        if not self._here(key, "on", found["state"]):
            begun(self._place(key), self.known, key, self.timeout, other)
            self._done(key, "on", found["state"])
        if variant.beside != "on" and not self._here(key, variant.beside, found["compared"][variant.beside]["state"]):
            self.compare(key, variant_of(variant.beside, found["compared"][variant.beside], self.place.of), rerun=True)
            found = self.records.found[title]
        one = compared(self._place(key), self.known, key, variant, self.timeout, other)
        self._done(key, variant.name, state)
        self.records.keep(title, found | {"compared": found["compared"] | {variant.name: one | {"state": state}}})

    def _done(self, key: Key, name: str, state: State) -> None:
        file = self._mark(key, name)
        file.parent.mkdir(parents=True, exist_ok=True)  # a run that could not begin has made none
        file.write_text(json.dumps(state))

    def _here(self, key: Key, name: str, state: State) -> bool:
        file = self._mark(key, name)
        return file.is_file() and json.loads(file.read_text()) == state

    def _mark(self, key: Key, name: str) -> Path:
        return self.place.folder / "-".join(key) / name / "state.json"


def as_expected(of: OfRelease, title: str, found: dict[str, Any]) -> bool:
    """Whether all is well with a recipe, or it stops as known.yaml says of it."""
    return well(found) or of.known_stop(title, found["why"]) is not None


def well(found: dict[str, Any]) -> bool:
    """As `good`, and so is every run that it was compared with."""
    return good(found) and all(one["held"] for one in found.get("compared", {}).values())


def good(found: dict[str, Any]) -> bool:
    """Two steps with samples that differ, the engine renewed in both, and the same after a load."""
    update = found["update"] or {}
    seen = bool(update) and all(update.get(name, name == "by changes") for name in SEEN)
    drawn = bool(found["answers"]) and all(one["different"] >= DIFFERENT * one["answers"] for one in found["answers"])
    return found["steps"] == 2 and seen and drawn and update["rounded"] <= BEHIND and found["resumed"] is True


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--pages", action="store_true")
    parser.add_argument(
        "--release", choices=list(RELEASES), default=NEWEST.name, help="the trees' release [%(default)s]"
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=REPO / "build/recipes")
    parser.add_argument("--records", type=Path, help="a folder for the results, a file a recipe; OUT without it")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--rerun", action="store_true")
    parser.add_argument(
        "--compare",
        type=lambda text: text.split(","),
        default=[],
        metavar="KIND[,KIND ...]",
        help=f"further runs, held against the recipe's own: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--size", nargs="*", default=[], metavar="NAME=N", help="in place of the table's, to look closer"
    )
    parser.add_argument(
        "--with",
        nargs="*",
        default=[],
        dest="beside",
        metavar="KEY=VALUE",
        help="overrides and variables beside those of one recipe, which then has no record",
    )
    parser.add_argument("--model", choices=list(TABLE["models"]), metavar="PROFILE", help="whose model, as --with")
    parser.add_argument("--steps", type=int, metavar="N", help="of one recipe, which then has no record")
    parser.add_argument(
        "--page", type=Path, help="with --steps: what each update gave the engine, and what memory it took"
    )
    asked = parser.parse_args(given)
    if not asked.trees and not asked.pages:
        parser.error("--trees says where the trees are")
    if asked.steps and (asked.records or asked.table or asked.compare or asked.size or len(asked.only) != 1):
        parser.error("--steps is for one recipe (--only), and goes with none of --records, --table, --compare, --size")
    if (asked.beside or asked.model) and (
        asked.records or asked.table or asked.compare or asked.steps or len(asked.only) != 1
    ):
        parser.error(
            "--with and --model are for one recipe (--only), and go with none of --records, --table, --compare, --steps"
        )
    if asked.steps and not RELEASES[asked.release].looks_closer:
        parser.error(
            f"--steps is not for {asked.release}: its engine has processes of its own, which nothing looks into"
        )
    if unknown := set(asked.compare) - set(KINDS):
        parser.error(f"--compare: no {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return asked


def beside(asked: argparse.Namespace) -> Beside:
    """Overrides have a dot in their keys, variables none."""
    given = dict(one.split("=", 1) for one in asked.beside)
    overrides = {key: value for key, value in given.items() if "." in key}
    return Beside(overrides, {key: value for key, value in given.items() if "." not in key}, asked.model)


def begun(
    place: Place, known: Recipes, key: Key, timeout: float, other: dict[str, str], more: Beside = NOTHING
) -> tuple[Shrunk, Ended]:
    """A recipe's own run, from its first step; raises RuntimeError when its model or its data cannot be made."""
    folder = place.folder / "-".join(key)
    for name in ("checkpoints", "on", "resumed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = paths(place, shrunk(known, key, {}).recipe, more.model)
    one = replace(shrunk(known, key, files, other, more=more.overrides), variables=more.variables)
    return one, train(place, one, known, "on", timeout)


def look_at(
    place: Place, known: Recipes, key: Key, timeout: float, other: dict[str, str], more: Beside = NOTHING
) -> dict[str, Any]:
    """The result of one recipe; what could not be done is said in `why`, and what comes after it is not tried."""
    found: dict[str, Any] = {"composed": False, "steps": 0, "answers": [], "update": None, "resumed": None, "why": ""}
    folder = place.folder / "-".join(key)
    try:
        one, ended = begun(place, known, key, timeout, other, more)
    except RuntimeError as failure:
        return found | {"why": str(failure).strip().splitlines()[-1][:300]}
    log = ended.log.read_text(errors="replace")
    metrics = steps_of(folder / "on")
    found |= {
        "composed": place.of.begun in log,
        "ranks": one.ranks,
        "other sizes": other,
        "seconds": round(ended.seconds),
        "peak": ended.peak_bytes,
        "load": round(os.getloadavg()[1], 1),
    }
    found |= {"steps": len(metrics), "metrics": {step: chosen(values) for step, values in metrics.items()}}
    found["why"] = "" if ended.code == 0 else why(ended)
    found["answers"] = answers_of(folder / "on/watched")
    if updates_of(folder / "on/watched"):
        backend = one.run(known).override("actor_rollout_ref.rollout.checkpoint_engine.backend")
        found["update"] = update_seen(place, folder, "on", backend is not None and backend.value == "delta_in_place")
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
    again = steps_of(folder / "resumed")
    if ended.code != 0 or list(again) != ["2"]:
        return {"resumed": False, "why": f"resuming: {why(ended)}"}
    updates = updates_of(folder / "on/watched")
    same = len(updates) > 1 and same_again(folder / "on/watched", updates[1], folder / "resumed/watched")
    return {"resumed": same, "seconds resumed": round(ended.seconds)}


if __name__ == "__main__":
    sys.exit(main())
