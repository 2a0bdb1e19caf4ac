"""What output may not hold: anything that a terminal, a CI system, or a reader of XML or JSON would act on."""

from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ElementTree
from typing import Any

# Control, formatting (bidirectional and zero-width ones), surrogates, private use, line and paragraph separators.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_ORDERS = ("##vso[", "##[", "::")
_OURS = ("::error ", "::warning ", "::notice ")


def acting(text: str) -> list[str]:
    """The characters of `text` that act, line ends excepted."""
    return sorted({f"U+{ord(c):04X}" for c in text if c not in "\n\t" and unicodedata.category(c) in _CATEGORIES})


def assert_harmless(*texts: str, where: str = "", form: str = "text") -> None:
    """`texts[0]` is of this format: text, github (annotations), gitlab, json, sarif or junit."""
    for text in texts:
        assert acting(text) == [], f"{where}: {acting(text)} in {text[:2000]!r}"
        assert "Traceback" not in text, f"{where}: {text[-3000:]}"
        for line in text.splitlines():
            ours = form == "github" and line.startswith(_OURS)
            assert ours or not line.lstrip().startswith(_ORDERS), f"{where}: {line!r}"
    if form in ("json", "gitlab", "sarif"):
        for value in _texts(json.loads(texts[0])):
            assert acting(value) == [], f"{where}: {acting(value)} in {value!r}"
    if form == "junit":
        for element in ElementTree.fromstring(texts[0]).iter():
            for value in (element.text or "", *element.attrib.values()):
                assert acting(value) == [], f"{where}: {acting(value)} in {value!r}"


def _texts(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [t for k, v in data.items() for t in (*_texts(k), *_texts(v))]
    if isinstance(data, list):
        return [t for v in data for t in _texts(v)]
    return [data] if isinstance(data, str) else []
