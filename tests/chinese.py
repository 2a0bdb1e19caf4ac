"""A Chinese locale, and what is left in English of what a verb prints in it."""

from __future__ import annotations

import re

IN_CHINESE = {"LC_ALL": "", "LANG": "zh_CN.UTF-8", "PYTHONUTF8": "1"}
# Three English words in a row; commands in backquotes and what stands in a path are no sentence.
ENGLISH_SENTENCE = re.compile(r"(?<![\w/.=-])[a-z]{2,} [a-z]{2,} [a-z]{2,}\b")
# Commands that are to be run: eval "$(patchctl recipe env NAME)".
_COMMAND = re.compile(r"`[^`]*`|\$\([^)]*\)|pip (?:un)?install \S+")


def english_in(text: str) -> list[str]:
    return ENGLISH_SENTENCE.findall(_COMMAND.sub("", text))
