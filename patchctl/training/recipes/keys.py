"""The keys that a framework's configurations have: an override of another one ends a run only when its cluster is up.

manifests/keys/<upstream>/<stack>.tsv, which scripts/config_keys.py makes from the patched tree
actor_rollout_ref.rollout.max_num_seqs<TAB>value<TAB>all
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BadManifest, Where
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import quoted
from patchctl.manifest.types import Practice
from patchctl.training.recipes.resolve import Run, bare
from patchctl.training.recipes.rules import Broken, Switch

FOLDER = Path("manifests") / "keys"
RULE = "known-keys"
_ALL = "all"
_DECLARED = ("value", "mapping", "class", "free")
_UNDECLARED = "field"  # of a configuration class: + adds it
_NEAR = 0.85  # of a key with +, which may be new on purpose
_PARTS_OF_HYDRA = "@/"  # groups of its defaults, as in model@actor_rollout_ref.model


@dataclass(frozen=True)
class KnownKeys:
    """The keys of one configuration with what they are: value, mapping, class, free or field."""

    config: str
    kinds: Mapping[str, str]

    def fault(self, written: str) -> tuple[str, str] | None:
        """What is wrong with an override's key, as it is written, and what to try; None where it is known."""
        key, adds = written.lstrip("+~"), written.startswith("+")
        if key.startswith("hydra.") or any(part in key for part in _PARTS_OF_HYDRA):
            return None
        kind = self.kinds.get(key)
        if kind in _DECLARED:
            if adds and not written.startswith("++"):
                return f"{key} is declared by {self.config}, and + is for keys that are not", f"{key}, without +"
            return None
        above = self._above(key)
        takes_it = kind == _UNDECLARED or self.kinds.get(above) in ("free", _UNDECLARED)
        if takes_it and not adds:
            return f"{key} is not declared by {self.config}", f"+{key}"
        if takes_it:
            return None
        near = self._near(key, above)
        if adds and self.kinds.get(above) != "class" and not _alike(key, near):
            return None
        return f"{key} is none of {self.config}", near or "`patchctl recipe show` names those that the recipe sets"

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


def read_keys(dist: Distribution, run: Run) -> KnownKeys | None:
    """The keys of a run's configuration; None where the distribution has no list of them. Raises BadManifest."""
    stack = dist.profile(run.profile).stacks.get(run.entry.upstream)
    path = dist.root / FOLDER / run.entry.upstream / f"{stack}.tsv"
    if stack is None or not path.exists():
        return None
    kinds: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) != 3 or parts[1] not in (*_DECLARED, _UNDECLARED):
            hint = "it is generated: `make config-keys` writes it again"
            raise BadManifest(
                f"expected KEY, KIND and configurations, not {quoted(line)}", where=Where(str(path), number), hint=hint
            )
        if parts[2] == _ALL or run.entry.config in parts[2].split(","):
            kinds[parts[0]] = parts[1]
    return KnownKeys(run.entry.config, kinds) if kinds else None


def unknown_keys(
    run: Run, keys: KnownKeys | None, practice: Practice | None, switches: Sequence[Switch]
) -> Iterator[Broken]:
    """Overrides of keys that the configuration does not have. A name of the practice's documents is told as such."""
    for written, setting in run.overrides.items() if keys else ():
        assert keys is not None
        if (fault := keys.fault(written)) is None:
            continue
        found, hint = fault
        found, hint = _of_practice(bare(written), practice, switches) or (found, hint)
        why = "the framework refuses it, when the cluster is up"
        where = setting.where or Where(run.positions.file, 1)
        yield Broken(RULE, "every override is a key of the framework's configuration", found, why, hint, where)


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
