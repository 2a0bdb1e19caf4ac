"""The runs that a recipe's own run is held against: with its switches off, with one of them off, with a pair of them alone, and
on one rank. switches.yaml says what may be off and what has to stay the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pins import distribution
from releases import RELEASES, OfRelease
from shrunk import REPO, TABLE, Shrunk, shrunk

from patchctl.training.recipes.read import Key, Recipes
from patchctl.training.recipes.resolve import RecipeRun, bare

_READ: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "switches.yaml").read_text(encoding="utf-8"))
SWITCHES: dict[str, Any] = _READ["switches"]
NOTHING_WHERE: dict[str, dict[str, str]] = _READ["nothing_where"]
KINDS = ("off", "one-rank", "minus-one", "pairs")
# Micro-batches of one answer: otherwise a loss depends on which answers share one, and they are dealt out by the number of ranks.
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz"
ONE_BY_ONE = {
    DYNAMIC: "False",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "False",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "1",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "1",
}


@dataclass(frozen=True)
class Variant:
    """A run of a recipe with `off` of its switches off. `beside` is the run that it is held against."""

    name: str
    off: frozenset[str] = frozenset()
    one_rank: bool = False
    one_by_one: bool = False
    beside: str = "on"

    @property
    def training(self) -> str:
        return self._promise("training")

    @property
    def engine(self) -> str:
        return self._promise("engine")

    @property
    def elsewhere(self) -> frozenset[str]:
        """Metrics that another pass computes without a switch."""
        return frozenset(metric for name in self.off for metric in SWITCHES[name].get("elsewhere", ()))

    def _promise(self, of: str) -> str:
        """The weakest of what its switches promise; other numbers of ranks round otherwise."""
        return "close" if self.one_rank or any(SWITCHES[name].get(of) == "close" for name in self.off) else "equal"

    def made(self, known: Recipes, key: Key, paths: Mapping[str, str], other: Mapping[str, str]) -> Shrunk:
        sizes, left_out = dict(other), {key for name in self.off for key in SWITCHES[name]["keys"]}
        if self.one_rank:
            sizes |= dict.fromkeys([*TABLE["parallel"], "devices_per_node"], "1")
            if int(shrunk(known, key, {}).given.sizes.get("ep", 1)) > 1:
                sizes |= dict.fromkeys(["ep", "devices_per_node"], "2")
            left_out |= set(_READ["one_rank"])
        one_by_one = self.one_by_one or any(SWITCHES[name].get("one_by_one") for name in self.off)
        # What is compared is not resumed.
        more = {"trainer.save_freq": "-1", **(ONE_BY_ONE if one_by_one else {})}
        return shrunk(known, key, paths, sizes, frozenset(left_out), more)


def variant_of(name: str, found: Mapping[str, Any], of: OfRelease) -> Variant:
    """The variant that a record of a release is of."""
    alone = name == "one-by-one" or (name == "one-rank" and not of.whole_losses)
    return Variant(name, frozenset(found["off"]), name == "one-rank", alone, found["beside"])


def begins_at_random(run: RecipeRun) -> bool:
    """Whether Megatron draws the first weights: which they are depends on the number of ranks."""
    return (found := run.override("actor_rollout_ref.actor.load_weight")) is not None and found.value == "False"


def on_in(run: RecipeRun) -> frozenset[str]:
    """The switches that a recipe has on, of patches that its release has."""
    keys = {bare(key): value.value for key, value in {**run.overrides, **run.environment}.items()}
    off = {"actor_rollout_ref.rollout.data_parallel_size": "1"}
    return frozenset(
        name
        for name, switch in SWITCHES.items()
        if of_release(name, run.release) and any(key in keys and keys[key] != off.get(key) for key in switch["keys"])
    )


def variants(known: Recipes, keys: Sequence[Key], kinds: Sequence[str]) -> Iterator[tuple[Key, Variant]]:
    """Every run of these kinds, those of a recipe together. A set of switches that several recipes have is tried in the one
    with the fewest ranks, and for each trainer where it is a whole one or acts on the trainer."""
    runs = {key: shrunk(known, key, {}) for key in keys}
    done: set[tuple[str, frozenset[str], frozenset[str]]] = set()
    for key in sorted(keys, key=lambda key: (runs[key].ranks, keys.index(key))):
        run = runs[key].run(known)
        on, dynamic = on_in(run), (found := run.override(DYNAMIC)) is not None and found.value == "True"
        for kind in kinds:
            if kind == "one-rank" and (runs[key].ranks == 1 or begins_at_random(run)):
                continue
            for variant in _of(kind, on, dynamic, run.release):
                if kind in ("minus-one", "pairs"):
                    whole = on if kind == "minus-one" else frozenset()
                    two = variant.name.split("-")[1:]
                    with_trainer = kind == "minus-one" or any(in_trainer(name, run.release) for name in two)
                    tried = (runs[key].recipe.entry.config if with_trainer else "", whole, on - variant.off)
                    if tried in done:
                        continue
                    done.add(tried)
                yield key, variant


def _of(kind: str, on: frozenset[str], dynamic: bool, release: str | None) -> Iterator[Variant]:
    may_be_off = frozenset(name for name in on if "stays" not in SWITCHES[name])
    if kind == "off":
        if may_be_off:
            yield Variant("off", may_be_off)
    elif kind == "one-rank":
        several = frozenset(name for name in on if SWITCHES[name].get("several"))
        if RELEASES[release or ""].whole_losses:
            yield Variant("one-rank", several, one_rank=True)
            return
        beside = "one-by-one" if dynamic and not any(SWITCHES[name].get("one_by_one") for name in on) else "on"
        if beside != "on":
            yield Variant("one-by-one", one_by_one=True)
        yield Variant("one-rank", several, one_rank=True, one_by_one=True, beside=beside)
    elif kind == "minus-one":
        for name in sorted(may_be_off):
            wants_it = {other for other in on if name in SWITCHES[other].get("wants", [])}
            yield Variant(f"without-{name}", frozenset({name, *wants_it}))
    else:
        for pair in combinations(sorted(on), 2):
            if meet(*pair, release):
                wanted = {other for name in pair for other in SWITCHES[name].get("wants", [])}
                yield Variant(f"only-{pair[0]}-{pair[1]}", may_be_off - {*pair, *wanted})


def meet(one: str, other: str, release: str | None) -> bool:
    """Whether two switches act on the same step, or their patches change the same code."""
    same_step = SWITCHES[one]["step"] == SWITCHES[other]["step"]
    return same_step or bool(changed_code(one, release) & changed_code(other, release))


def in_trainer(switch: str, release: str | None) -> bool:
    """Whether its patches change a trainer: the other trainers have code of their own in its place."""
    return any(re.search(r"/(trainer|recipe)/", file) for file in changed_code(switch, release))


def changed_code(switch: str, release: str | None) -> set[str]:
    """What the patches of a switch change upstream, as UPSTREAM/FILE, but for files where settings are declared."""
    found = set()
    for file in _patches(switch, release):
        files = re.findall(r"^diff --git a/(\S+\.py) ", file.read_text(encoding="utf-8"), re.MULTILINE)
        found |= {f"{file.parents[2].name}/{path}" for path in files if "config" not in path}
    return found


@cache
def of_release(switch: str, release: str | None) -> bool:
    """Whether a release has patches of a switch; without them its keys are upstream's own."""
    return bool(_patches(switch, release))


def _patches(switch: str, release: str | None) -> list[Path]:
    """Those of a switch, on the stacks of a release."""
    found, stacks = [], distribution().release(release or "").stacks
    for feature in SWITCHES[switch]["features"]:
        name, _, upstream = feature.partition("@")
        for where in [upstream] if upstream else stacks:
            found += (REPO / "patches" / where / stacks[where] / name).glob("*.patch")
    return found
