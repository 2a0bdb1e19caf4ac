"""Messages in the user's language: they keep their template and values, so that code that prints for a person can translate them whole.

A message is a `str` of English: JSON, logs, comparisons and pipes see that and nothing else. Only `translated`, which
text renderers call, looks into the catalogue. The catalogue is the .po file itself: translators' tools read it, nothing
has to be compiled, and an English run never opens it. Imports nothing of patchctl.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ENGLISH, CHINESE = "en", "zh-CN"
TRANSLATED = ("apply", "doctor", "preflight", "revert", "status")
"""The verbs whose every line has a translation; the others stay in English, as half a page helps nobody."""
VARIABLES = ("PATCHCTL_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
CATALOGUE = Path(__file__).with_name("zh_CN.po")
# Compiled where they are used: this module is imported in every run. Traditional Chinese (zh_TW, zh_HK) has no catalogue.
_SIMPLIFIED = r"(?i)zh([_-](cn|sg|hans)\b.*)?(\.|@|$)"
_SEPARATORS = {", ": "、", "; ": "；", " and ": "、", " or ": " 或 ", "; or ": "；或", "\n": "\n", "\n  ": "\n  "}
_ENTRY = r'(?m)^msgid ((?:"[^\n]*"\n)+)msgstr ((?:"[^\n]*"(?:\n|$))+)'


class Translatable(str):
    """English text made of a template and values, which may be messages; `template` is empty for a list of parts."""

    template: str
    separator: str
    values: Mapping[str, object]


def message(template: str, /, **values: object) -> Translatable:
    """Fill `template`, the catalogue's id of the message: a literal, as a test looks for it in the source."""
    made = Translatable(template.format(**values))
    made.template, made.values = template, values
    return made


def joined(parts: Iterable[str], separator: str = ", ") -> Translatable:
    """Return the parts as an enumeration, each of which may be a message; `separator` is a key of _SEPARATORS."""
    listed = list(parts)
    made = Translatable(separator.join(listed))
    made.separator = separator
    made.template, made.values = "", {str(i): part for i, part in enumerate(listed)}
    return made


def recalled(text: str, forms: Iterable[Translatable]) -> str:
    """Return a text that was kept in a file as the message that it was, by the templates of `forms`; any other as it is."""
    for form in forms:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(form.template))
        if found := re.fullmatch(pattern, text):
            made = Translatable(text)
            made.template, made.values = form.template, found.groupdict()
            return made
    return text


def translated(text: str) -> str:
    """Return a message in the language in use; any other text as it is."""
    return _in_chinese(text) if _Use.language == CHINESE else text


def _in_chinese(value: object) -> str:
    if not isinstance(value, Translatable):
        return str(value)
    values = {name: _in_chinese(each) for name, each in value.values.items()}
    if not value.template:
        return _SEPARATORS[value.separator].join(values.values())
    return catalogue().get(value.template, value.template).format(**values)


class _Use:
    language = ENGLISH


def use(language: str) -> None:
    """Make `translated` return this language from now on."""
    _Use.language = language


def chosen(option: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the language: `--lang`, else the first variable that is set, as far as standard output can show it."""
    name = option or next((value for key in VARIABLES if (value := environment.get(key))), "")
    return CHINESE if re.match(_SIMPLIFIED, name) and _shows_chinese() else ENGLISH


def _shows_chinese() -> bool:
    try:
        "中".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@functools.cache
def catalogue() -> Mapping[str, str]:
    """Return the translations by template."""
    return dict(_entries(CATALOGUE.read_text(encoding="utf-8")))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    import ast  # read in Chinese runs alone: it costs English ones milliseconds

    # A .po string is a Python literal, too, and neighbours are joined in both.
    for found in re.finditer(_ENTRY, text):
        template, translation = (ast.literal_eval(f"({group})") for group in found.groups())
        if template:
            yield template, translation
