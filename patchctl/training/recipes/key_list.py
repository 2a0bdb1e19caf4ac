"""The lists of keys below manifests/keys/<upstream>/<stack>.tsv, which scripts/config_keys.py makes from the patched tree.

ppo_trainer<TAB>config<TAB>model_engine=dp
model_engine<TAB>group<TAB>dp,megatron
algorithm.adv_estimator<TAB>words<TAB>gae,grpo
actor_rollout_ref.rollout.max_num_seqs<TAB>value<TAB>all

The third column of a key names the compositions that have it: configurations, or the options of the group that chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BadManifest, Where
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution

FOLDER = Path("manifests") / "keys"
DECLARED = ("value", "null", "mapping", "class", "free")
UNDECLARED = "field"  # of a configuration class: + adds it
_ABOUT = ("config", "group", "options", "words", "unless")
_ALL = "all"


@dataclass(frozen=True)
class KeyList:
    """One list. `rows` are (key, kind, compositions); the others are by key."""

    path: Path
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
    for key, kind, rest in _lines(path):
        if kind in about:
            about[kind][key] = rest
        else:
            rows.append((key, kind, rest))
    return KeyList(path, rows, **about)


def _lines(path: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) != 3 or parts[1] not in (*DECLARED, UNDECLARED, *_ABOUT):
            hint = "it is generated: `make config-keys` writes it again"
            what = f"expected KEY, KIND and configurations, not {quoted(line)}"
            raise BadManifest(what, where=Where(str(path), number), hint=hint)
        yield parts[0], parts[1], tuple(parts[2].split(","))
