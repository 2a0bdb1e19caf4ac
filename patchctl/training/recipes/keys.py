"""The keys that a framework's configurations have: an override of another one ends a run only when its cluster is up.

The lists of keys are below manifests/keys/<upstream>/<stack>.tsv, which scripts/config_keys.py makes from the patched tree:

ppo_trainer<TAB>config<TAB>model_engine=dp
model_engine<TAB>group<TAB>dp,megatron
algorithm.adv_estimator<TAB>words<TAB>gae,grpo
actor_rollout_ref.rollout.max_num_seqs<TAB>value<TAB>all

The third column of a key names the compositions that have it: configurations, or the options of the group that chooses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.errors import BadManifest, Where
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Practice
from patchctl.training.recipes.grammar import as_written, items, pairs, unquoted
from patchctl.training.recipes.resolve import RecipeRun, bare
from patchctl.training.recipes.rules import Broken, Switch, place_of

FOLDER = Path("manifests") / "keys"
DECLARED = ("value", "null", "mapping", "class", "free")
UNDECLARED = "field"  # of a configuration class: + adds it
_ABOUT = ("config", "group", "options", "words", "unless")
_ALL = "all"


@dataclass(frozen=True)
class KeyList:
    """One list. `rows` are (key, kind, compositions); the others are by key."""

    rows: Sequence[tuple[str, str, tuple[str, ...]]]
    config: Mapping[str, tuple[str, ...]]
    group: Mapping[str, tuple[str, ...]]
    options: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, ...]]
    unless: Mapping[str, tuple[str, ...]]

    def kinds(self, composition: str) -> dict[str, str]:
        """The keys of one composition, with what they are."""
        return {key: kind for key, kind, having in self.rows if having == (_ALL,) or composition in having}

    def choice(self, config: str) -> tuple[str, str] | None:
        """The group that chooses what a configuration is made of, and its option; None where none does."""
        for chosen in self.config.get(config, ()):
            group, _, option = chosen.partition("=")
            return group, option
        return None


def list_of(dist: Distribution, upstream: str, stack: str | None) -> KeyList | None:
    """The list of a stack; None where the distribution has none. Raises BadManifest for a damaged line."""
    path = dist.root / FOLDER / upstream / f"{stack}.tsv"
    if stack is None or not path.exists():
        return None
    rows: list[tuple[str, str, tuple[str, ...]]] = []
    about: dict[str, dict[str, tuple[str, ...]]] = {kind: {} for kind in _ABOUT}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        key, kind, rest = parts if len(parts := line.split("\t")) == 3 else ("", "", "")
        if kind in about:
            about[kind][key] = tuple(rest.split(","))
        elif kind in (*DECLARED, UNDECLARED):
            rows.append((key, kind, tuple(rest.split(","))))
        else:
            hint = "it is generated: `make config-keys` writes it again"
            what = f"expected KEY, KIND and configurations, not {quoted(line)}"
            raise BadManifest(what, where=Where(str(path), number), hint=hint)
    return KeyList(rows, **about)


RULE = "known-keys"
WORDS = "known-words"
_CONTAINERS = ("mapping", "class", "free")
_NEAR = 0.85  # of a key with +, which may be new on purpose
_NULLS = ("", "null", "None")

Fault = tuple[str, str]
"""What is wrong, and what to try."""


@dataclass(frozen=True)
class KnownKeys:
    """The keys of one composition with what they are; the groups that its defaults choose from and all others, with their options;
    the words that keys may have. Below `replaced` a run has put another group's file, whose keys are not known."""

    config: str
    kinds: Mapping[str, str]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    replaced: Sequence[str] = ()

    def fault(self, written: str, value: str = "") -> Fault | None:
        """What is wrong with an override's key, as it is written, and what to try; None where it is known."""
        key = written.lstrip("+~")
        plus = written[: len(written) - len(written.lstrip("+"))]
        if key.startswith("hydra.") or any(f"{key}.".startswith(f"{package}.") for package in self.replaced):
            return None
        if key.partition("@")[0] in self._all_options() and not value.startswith("{"):
            return self._group_fault(key, plus, value) if written[:1] != "~" else None
        if "@" in key or "/" in key:
            return f"{key} is no group of {self.config}", _closest(key, self.groups) or "a key with dots"
        return self._key_fault(key, plus, value) or self._fault_inside(key, plus, value)

    def word_fault(self, written: str, value: str) -> Fault | None:
        """What is wrong with a value that has to be one of a few words. An interpolation is Hydra's to read."""
        key, word = bare(written), unquoted(value)
        allowed = self.words.get(key)
        if allowed is None or word in (*_NULLS, *allowed) or "$" in word:
            return None
        near = _closest(word, allowed)
        return f"{key} is {word}, which is none of {', '.join(allowed)}", f"{key}={near or allowed[0]}"

    def _all_options(self) -> dict[str, Sequence[str]]:
        return {**self.options, **{key.partition("@")[0]: names for key, names in self.groups.items()}}

    def _group_fault(self, key: str, plus: str, value: str) -> Fault | None:
        """The defaults list is Hydra's: = replaces a choice that is there, + adds one that is not."""
        name = key.partition("@")[0]
        known = self._all_options()[name]
        if key in self.groups and plus:
            return (
                f"{self.config} has chosen an option of {key}, and + is for groups that it has not",
                f"{key}, without +",
            )
        if key not in self.groups and not plus:
            ours = [group for group in self.groups if group.partition("@")[0] == name]
            hint = _closest(key, ours) or " or ".join(ours) or f"+{key}"
            return f"{key} is none of the groups that {self.config} chooses from", hint
        for option in [unquoted(item) for item in items(value)]:
            if option not in (*_NULLS, *known):
                near = _closest(option, known) or known[0]
                return f"{key} has no option {option}; there are {', '.join(known)}", f"{key}={near}"
        return None

    def _key_fault(self, key: str, plus: str, value: str) -> Fault | None:
        kind = self.kinds.get(key)
        if kind in DECLARED:
            if plus == "+" and kind != "null" and value[:1] not in ("[", "{"):
                return f"{key} is declared by {self.config}, and + is for keys that are not", f"{key}, without +"
            return None
        above = self._above(key)
        takes_it = kind == UNDECLARED or self.kinds.get(above) in ("free", UNDECLARED)
        if takes_it:
            return None if plus else (f"{key} is not declared by {self.config}", f"+{key}")
        near = self._near(key, above)
        if plus and self.kinds.get(above) != "class" and not _alike(key, near):
            return None
        return f"{key} is none of {self.config}", near or "`patchctl recipe show -v` names those that the recipe sets"

    def _fault_inside(self, key: str, plus: str, value: str) -> Fault | None:
        """Of a mapping that is given as one value: Hydra merges it into one that is there."""
        if self.kinds.get(key) not in _CONTAINERS or not value.startswith("{"):
            return None
        inside = ((f"{'++' if plus else ''}{key}.{name}", one) for name, one in pairs(value).items())
        return next((fault for name, one in inside if (fault := self.fault(name, as_written(one)))), None)

    def _above(self, key: str) -> str:
        """The nearest key above that there is; empty for the top."""
        above = key.rpartition(".")[0]
        while above and above not in self.kinds:
            above = above.rpartition(".")[0]
        return above

    def _near(self, key: str, above: str) -> str | None:
        """The key that was probably meant: beside it, then of the same name elsewhere, then like it as a whole."""
        beside = [k for k in self.kinds if k.rpartition(".")[0] == above]
        last = key.rpartition(".")[2]
        names = {k.rpartition(".")[2]: k for k in beside}
        if like := difflib.get_close_matches(last, names, n=1, cutoff=0.7):
            return names[like[0]]
        named = [k for k in self.kinds if k.rpartition(".")[2] == last]
        others = named or [k for k in self.kinds if not f"{key}.".startswith(f"{k}.")]
        like = difflib.get_close_matches(key, others, n=1, cutoff=0.0 if named else 0.8)
        return like[0] if like else None


def _alike(key: str, near: str | None) -> bool:
    """Whether a key is another one, misspelt: beside it, and of nearly the same letters."""
    above, _, last = key.rpartition(".")
    near_above, _, near_last = (near or "").rpartition(".")
    return above == near_above and difflib.SequenceMatcher(None, last, near_last).ratio() >= _NEAR


def _closest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def read_keys(dist: Distribution, run: RecipeRun) -> KnownKeys | None:
    """The keys of a run's composition; None where the distribution has no list of them. Raises BadManifest."""
    upstream = run.entry.upstream
    found = list_of(dist, upstream, dist.profile(run.profile).stacks.get(upstream))
    if found is None:
        return None
    title, composition = _composed(found, run)
    kinds = found.kinds(composition)
    closed = dict(found.words)
    for key, openers in found.unless.items():  # a run that names a module of its own, which may register other words
        if any(one is not None and one.value not in _NULLS for one in map(run.override, openers)):
            closed.pop(key, None)
    choice = found.choice(run.entry.config)
    replaced = [
        bare(key).partition("@")[2] or bare(key)
        for key in run.overrides
        if len(found.group.get(bare(key), ())) > 1 and bare(key) not in (choice or ())
    ]
    return KnownKeys(title, kinds, found.group, found.options, closed, replaced) if kinds else None


def _composed(found: KeyList, run: RecipeRun) -> tuple[str, str]:
    """What a run composes, as messages call it and as the list does: by its override of the group that chooses."""
    config, choice = run.entry.config, found.choice(run.entry.config)
    if choice is None:
        return config, config
    group, option = choice
    said = run.override(group)
    if said is None or unquoted(said.value) not in found.group.get(group, ()):
        return config, option
    return f"{config} with {group}={unquoted(said.value)}", unquoted(said.value)


def unknown_keys(
    run: RecipeRun, keys: KnownKeys | None, practice: Practice | None, switches: Sequence[Switch]
) -> Iterator[Broken]:
    """Overrides of keys that the configuration does not have, and of words that the framework does not know. A name of the practice's
    documents is told as such."""
    for written, setting in run.overrides.items() if keys else ():
        assert keys is not None
        place = place_of(run, setting)
        if (fault := keys.fault(written, setting.value)) is not None:
            found, hint = _of_practice(bare(written), practice, switches) or fault
            why = "the framework refuses it, when the cluster is up"
            yield Broken(RULE, "every override is a key of the framework's configuration", found, why, hint, place)
        elif (fault := keys.word_fault(written, setting.value)) is not None:
            found, hint = fault
            why = "the framework looks it up in its own register, mostly when the cluster is up, and ends"
            yield Broken(WORDS, "every word is one that the framework knows", found, why, hint, place)


def _of_practice(key: str, practice: Practice | None, switches: Sequence[Switch]) -> tuple[str, str] | None:
    """What a document of the practice means by a key, and our switch for it."""
    for name, meant in practice.switches.items() if practice else ():
        named = name.partition("=")[0]
        if named not in (key, key.rpartition(".")[2]):
            continue
        ours = [s.name for s in switches if s.kind == "config" and s.feature in meant.features]
        note = f": {' '.join(meant.note.split()).rstrip('.')}" if meant.note else ""
        found = f"{key} is the name of {', '.join(meant.seeds)}, and nothing here has it{note}"
        return found, " or ".join(dict.fromkeys(ours)) or "docs/practice/switches.md"
    return None
