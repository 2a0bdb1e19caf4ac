"""The words of a text by which it can be held against another one: names, numbers, and NAME=VALUE. No sentences.

A document of the practice is Chinese or English, ours are English: what both spell alike are the names of keys, variables
and products, and numbers. 2,048, 2048 and 2 K are the same number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

# Not in a list: [64,128] are two numbers.
_THOUSANDS = re.compile(r"(?<![0-9,.\[/])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_PAIR = re.compile(r"(?a:(?P<name>[A-Za-z_][\w.+-]*)=(?P<value>'[^'\n]*'|\"[^\"\n]*\"|\[[^\]\n]*\]|[\w.+:/\-]+))")
# 32B is one, 1e-6 and 34K are numbers.
_NAME = re.compile(r"(?a:(?<!\w)(?:[A-Za-z_]|[0-9]+(?!e-?[0-9]|[kK](?!\w))[A-Za-z])\w*(?:[./-]\w+)*)")
_NUMBER = re.compile(r"(?a:(?<![A-Za-z_\d.])[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?(?:\s?[kK](?!\w))?)")
# In English text only what nobody writes by chance is a name: max_num_seqs, 32B, AIV, TorchAir, top_k=-1, hccn.conf.
_TELLING = re.compile(r"(?a:.*(_|=|\w\w\.[A-Za-z]|[a-z][A-Z]|[A-Z]{2}|[0-9][A-Za-z]|[A-Za-z][0-9]))")
_UNITS = frozenset({"kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"})
_QUOTED = re.compile(r"`([^`]+)`")


def spelled(text: str) -> Iterator[str]:
    """The names, the numbers and every NAME=VALUE of a text as it spells them, some more than once."""
    plain = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    for pair in _PAIR.finditer(plain):
        yield f"{pair['name']}={plain_value(pair['value'])}"
    yield from _NAME.findall(plain)
    yield from map(number, _NUMBER.findall(plain))


def words(text: str) -> frozenset[str]:
    """What a text spells, and the parts of its names, in lower case; NAME=VALUE with the last part of its name besides."""
    found: set[str] = set()
    for word in spelled(text.replace("`", " ")):
        name = word.lower().partition("=")[0]
        found |= {name, *re.split(r"[./-]", name), word.lower(), _short(word)} if not _is_number(name) else {name}
    return frozenset(found - {""})


def of_spelled(text: str) -> frozenset[str]:
    """The words of what `spelled` gave, a blank between them: a value may have signs that end one in other texts."""
    pairs = [word for word in text.split() if "=" in word]
    return words(text).union(*({pair.lower(), _short(pair)} for pair in pairs))


def telling(text: str) -> frozenset[str]:
    """The words of an English text that a document would spell alike, in lower case: numbers, names of code and what stands
    in backquotes."""
    found = {_short(word) for word in spelled(text) if _is_number(word) or _TELLING.match(word)}
    return frozenset(found.union(*(words(quoted) for quoted in _QUOTED.findall(text))) - _UNITS)


def _short(word: str) -> str:
    """NAME=VALUE with the last part of the name alone."""
    name, equals, value = word.lower().partition("=")
    return f"{name.rpartition('.')[2]}={value}" if equals else name


def number(text: str) -> str:
    """One spelling for a number: 1e-6 as 1e-06, and 34 K as 34k, which `stands` compares with 34,000 and 34,816. What begins
    with 0 and has no point is a name: 0002."""
    if re.fullmatch(r"0[0-9]+", text):
        return text
    if text[-1] in "kK":
        return f"{number(text[:-1].strip())}k"
    value = float(text)
    return str(int(value)) if value.is_integer() else repr(value)


def plain_value(text: str) -> str:
    """A value without the quotes of a shell or of YAML, in the spelling of `number` where it is one."""
    bare = re.sub(r"[\s'\"]", "", text).rstrip(".,:;").lower()
    try:
        return number(bare)
    except (ValueError, OverflowError, IndexError):
        return bare


def stands(word: str, among: Collection[str]) -> bool:
    """Whether a word is among those of a text: a number in any of its spellings, a dotted name with all of its parts."""
    if not _is_number(word):
        return word in among or all(part in among for part in re.split(r"[./-]", word) if part)
    value = float(word.removesuffix("k"))
    if word.endswith("k"):
        spellings = {word, number(str(value * 1024)), number(str(value * 1000))}
    else:
        spellings = {word, f"{number(str(value / 1024))}k", f"{number(str(value / 1000))}k"}
    return not spellings.isdisjoint(among)


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?(e-[0-9]+)?k?", word) is not None
