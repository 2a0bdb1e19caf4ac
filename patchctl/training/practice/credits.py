"""Whether what recipes, rules and switches name as their source stands there: the document's section has the name and
the value, or the words that the source puts in brackets.

The documents are not in the repository; manifests/facts.yaml has the names and numbers of each section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from patchctl.check.manifests import below
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.problems import quoted
from patchctl.training.practice.credit import Credit, credits_of
from patchctl.training.practice.types import Facts
from patchctl.training.practice.words import of_spelled, plain_value, stands, telling, words
from patchctl.training.recipes.read import Recipes
from patchctl.training.recipes.types import Condition, Recipe, Rule, Rules, Setting

FACTS = Path("manifests") / "facts.yaml"
TREES = Path("manifests") / "trees"
# What follows the comma may be a function or a class as well, which has no dot.
_FILE = re.compile(r"(?P<upstream>[A-Za-z-]+) (?P<version>\S+), (?P<file>[\w./-]+\.(?:py|sh|yaml))")
_PRACTICE = Path("manifests") / "practice.yaml"
_BRACKETS = "put in brackets what stands there, name the right section, or say `ours:`"


def read_facts(root: Path) -> Loaded[Facts] | None:
    """None where a distribution keeps no such file. Raises InvalidManifest with every fault."""
    path = root / FACTS
    return read(path, Facts) if path.exists() else None


@dataclass(frozen=True)
class Documents:
    """The words of each section of each document."""

    sections: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    trees: Path | None = None

    @classmethod
    def of(cls, facts: Facts, root: Path) -> Documents:
        return cls(
            {
                number: {name: of_spelled(section.words) for name, section in document.sections.items()}
                for number, document in facts.documents.items()
            },
            root / TREES,
        )

    def has_file(self, text: str) -> bool:
        """Whether "UPSTREAM VERSION, FILE" names a file of a pinned source, or part of its path; True for any other text, and
        for a source whose files are not listed."""
        found = _FILE.fullmatch(text)
        if found is None or self.trees is None:
            return True
        listed = self.trees / found["upstream"].lower() / f"{found['version']}.tsv"
        return not listed.is_file() or f"/{found['file']}\n" in listed.read_text(encoding="utf-8").replace("\t", "/")

    def places(self, credit: Credit) -> list[tuple[str, frozenset[str]]]:
        """The sections that a credit names, several joined by "and"; the whole document where it names none. Raises
        KeyError with what is not there."""
        if credit.document not in self.sections:
            raise KeyError(f"there is no document {credit.document} in {FACTS.name}")
        sections = self.sections[credit.document]
        if not credit.section:
            return [(credit.document, frozenset[str]().union(*sections.values()))]
        names = [credit.section] if self._named(credit.section, sections) else credit.section.split(" and ")
        found = []
        for name in names:
            among = self._named(name, sections)
            if not among:
                raise KeyError(f"{credit.document} has no section {quoted(name)}; {FACTS} has {', '.join(sections)}")
            found.append((f"{credit.document}, {name}", frozenset[str]().union(*(sections[one] for one in among))))
        return found

    def words_of(self, number: str, section: str) -> frozenset[str]:
        """Those of one section; of the whole document where it has no section of that name."""
        sections = self.sections.get(number, {})
        names = self._named(section, sections) or sections
        return frozenset[str]().union(*(sections[name] for name in names))

    @staticmethod
    def _named(name: str, sections: Collection[str]) -> list[str]:
        """The section, or those of which it is the beginning: "patch list" is "patch list, verl" and the others."""
        return [one for one in sections if one == name or one.startswith(f"{name}, ")]


def check_credits(dist: Distribution, recipes: Recipes, facts: Facts) -> Iterator[Finding]:
    """A finding for each source whose document does not have what it is named for."""
    documents = Documents.of(facts, dist.root)
    for loaded in recipes.files.values():
        file = below(dist.root, loaded.positions.file)
        for path, fault in _of_recipe(loaded.value, documents):
            yield Finding("source-words", fault, file, loaded.positions.place(path)[0])
    if recipes.rules:
        file = below(dist.root, recipes.rules.positions.file)
        for name, fault in _of_rules(recipes.rules.value, documents):
            yield Finding("source-words", fault, file, recipes.rules.positions.place(("rules", name, "source"))[0])
    for name, fault in _of_switches(dist, documents):
        yield Finding("source-words", f"{name}: {fault}", _PRACTICE.as_posix())


def _of_recipe(recipe: Recipe, documents: Documents) -> Iterator[tuple[tuple[str | int, ...], str]]:
    kinds = (("sizes", recipe.sizes), ("environment", recipe.environment), ("overrides", recipe.overrides))
    for kind, settings in kinds:
        for name, setting in settings.items():
            source = setting.source or (None if setting.ours else recipe.source)
            if not source and not setting.ours:
                yield (kind, name), f"{name}={setting.value} names no document, and does not say `ours:`"
            for credit in credits_of(source) if source else ():
                for fault in _faults(credit, documents, partial(_gives, name, setting)):
                    yield (kind, name), f"{name}={setting.value}: {fault}"


def _gives(name: str, setting: Setting, has: Collection[str]) -> bool:
    """Whether a section gives this value: NAME=VALUE, or both, with no other value for the name. The last part of the name
    will do where the section has no value for the whole of it."""
    whole, value = name.lstrip("+").lower(), setting.value
    tail, plain = whole.rpartition(".")[2], plain_value(value)
    if value[:1] in "=@":
        return tail in has
    for spelling in (whole, tail):
        if any(word.startswith(f"{spelling}=") for word in has):
            return f"{spelling}={plain}" in has
    is_size = name.islower() and "." not in name  # whose names are ours
    return (is_size or tail in has) and (plain in ("true", "false") or all(stands(w, has) for w in words(value)))


def _of_rules(rules: Rules, documents: Documents) -> Iterator[tuple[str, str]]:
    for name, rule in rules.rules.items():
        own = {part for word in _asked(rule) for part in (word, *word.split("."))}
        for credit in credits_of(rule.source):
            for fault in _faults(credit, documents, partial(_has_one, own)):
                yield name, f"rule {name}: {fault}"


def _asked(rule: Rule) -> frozenset[str]:
    """The names and values that a rule asks about, and what its text calls by name."""
    parts: list[str] = [rule.says, rule.why, rule.hint]
    for condition in (rule.must, rule.when or Condition()):
        for named in (condition.equals, condition.differs, condition.contains, condition.lacks, condition.among):
            parts += [text for name, values in named.items() for text in (name, *values)]
        parts += [*condition.given, *condition.absent, *condition.holds]
    return frozenset(w for w in telling(" ".join(parts)) if not w.replace(".", "").isdigit()) - _EVERYWHERE


# Of these nobody can tell what is meant by the word alone.
_EVERYWHERE = frozenset({"actor_rollout_ref", "npu", "vllm", "verl"})


def _of_switches(dist: Distribution, documents: Documents) -> Iterator[tuple[str, str]]:
    for name, switch in (dist.practice.switches if dist.practice else {}).items():
        for number in switch.seeds:
            tail = name.partition("=")[0].rpartition(".")[2].lower()
            for fault in _faults(Credit(number, "", "", ""), documents, partial(_has_one, [tail])):
                yield name, fault


def _has_one(names: Collection[str], has: Collection[str]) -> bool:
    return any(stands(name, has) for name in names)


def _faults(credit: Credit, documents: Documents, gives: Callable[[Collection[str]], bool]) -> Iterator[str]:
    """What is wrong with one credit. `gives` is asked of a section's words. Of places other than documents only a file of a
    pinned source can be looked for: "verl v0.6.0, megatron_actor.py"."""
    if credit.document is None:
        if not documents.has_file(credit.text):
            yield f"{credit.text}: that source has no such file at its pin"
        return
    try:
        places = documents.places(credit)
    except KeyError as error:
        yield str(error.args[0])
        return
    remark = telling(credit.remark)
    for title, has in places:
        missing = sorted(word for word in remark if not stands(word, has))
        if missing:
            yield f"{title} does not have {', '.join(missing)}; {_BRACKETS}"
        elif not remark and not gives(has):
            yield f"{title} does not give it; {_BRACKETS}"
