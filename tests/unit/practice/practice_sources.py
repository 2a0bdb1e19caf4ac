"""What is wrong with the sources that recipes, rules and switches name: the document's section has the name and the value,
or the words that the source puts in brackets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from practice_documents import Credit, Documents, credits_of
from practice_words import plain_value, stands, telling, words

from patchctl.manifest.types import Practice
from patchctl.training.recipes.types import Condition, Recipe, RecipeRule, Setting

REPO = Path(__file__).resolve().parents[3]
# What follows the comma may be a function or a class as well, which has no dot.
_FILE = re.compile(r"(?P<upstream>[A-Za-z-]+) (?P<version>\S+), (?P<file>[\w./-]+\.(?:py|sh|yaml))")
_BRACKETS = "put in brackets what stands there, name the right section, or say `ours:`"
# Of these nobody can tell what is meant by the word alone.
_EVERYWHERE = frozenset({"actor_rollout_ref", "npu", "vllm", "verl"})


def of_recipe(recipe: Recipe, documents: Documents) -> Iterator[str]:
    """A fault for each value whose source does not give it, or that has none."""
    for name, setting in [*recipe.sizes.items(), *recipe.environment.items(), *recipe.overrides.items()]:
        source = setting.source or (None if setting.ours else recipe.source)
        if not source and not setting.ours:
            yield f"{name}={setting.value} names no document, and does not say `ours:`"
        for credit in credits_of(source) if source else ():
            for fault in _faults(credit, documents, partial(_gives, name, setting)):
                yield f"{name}={setting.value}: {fault}"


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


def of_rule(rule: RecipeRule, documents: Documents) -> Iterator[str]:
    """A fault for each source of a rule that has nothing of what the rule asks about."""
    own = {part for word in _asked(rule) for part in (word, *word.split("."))}
    for credit in credits_of(rule.source):
        yield from _faults(credit, documents, partial(_has_one, own))


def _asked(rule: RecipeRule) -> frozenset[str]:
    """The names and values that a rule asks about, and what its text calls by name."""
    parts: list[str] = [rule.says, rule.why, rule.hint]
    for condition in (rule.must, rule.when or Condition()):
        for named in (condition.equals, condition.differs, condition.contains, condition.lacks, condition.among):
            parts += [text for name, values in named.items() for text in (name, *values)]
        parts += [*condition.given, *condition.absent, *condition.holds]
    return frozenset(w for w in telling(" ".join(parts)) if not w.replace(".", "").isdigit()) - _EVERYWHERE


def of_switches(practice: Practice, documents: Documents) -> Iterator[str]:
    """A fault for each switch that a document of practice.yaml does not name."""
    for name, switch in practice.switches.items():
        tail = name.partition("=")[0].rpartition(".")[2].lower()
        for number in switch.seeds:
            for fault in _faults(Credit(number, "", "", ""), documents, partial(_has_one, [tail])):
                yield f"{name}: {fault}"


def _has_one(names: Collection[str], has: Collection[str]) -> bool:
    return any(stands(name, has) for name in names)


def _faults(credit: Credit, documents: Documents, gives: Callable[[Collection[str]], bool]) -> Iterator[str]:
    """What is wrong with one credit. `gives` is asked of a section's words. Of places other than documents only a file of a
    pinned source can be looked for: "verl v0.6.0, megatron_actor.py"."""
    if credit.document is None:
        if not has_file(credit.text):
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


def has_file(text: str) -> bool:
    """Whether "UPSTREAM VERSION, FILE" names a file of a pinned source, or part of its path; True for any other text, and
    for a source whose files are not listed."""
    found = _FILE.fullmatch(text)
    if found is None:
        return True
    listed = REPO / "manifests" / "trees" / found["upstream"].lower() / f"{found['version']}.tsv"
    return not listed.is_file() or f"/{found['file']}\n" in listed.read_text(encoding="utf-8").replace("\t", "/")
