"""The items of docs/practice/coverage.md: what each names, where it points, and the words that stand there.

A row is `| section | what the document names | pointers; nothing: BECAUSE |`; one without a section belongs to that above.
An item's text is English, so that only its telling words can be compared: numbers, names of code, what is in backquotes. All
of them have to stand in the document's section; one at least in each page that the item points to; and where it does not say
why nothing is done, all of them somewhere behind its pointers. Numbers that a document gives its files (0002) are its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_pages import section
from practice_documents import Documents
from practice_words import stands, telling, words

from patchctl.cli import module_of
from patchctl.manifest.types import Practice
from patchctl.training.recipes.read import FOLDER, RULES, Recipes, parent_of

PAGE = "docs/practice/coverage.md"
_CELL = re.compile(r"(?<!\\)\|")
_POINTER = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)]+)\)|`patchctl (?P<verb>[a-z]+)`")
_PATCH = re.compile(r"docs/patches/(?P<upstream>[^/]+)/[^/]+/(?P<feature>[^/]+)\.md")


@dataclass(frozen=True)
class Pointer:
    """Where an item is here: `target` below the repository's root, with #HEADING at will, and the text that leads there; or
    a verb, which has no target."""

    text: str
    target: str | None


@dataclass(frozen=True)
class Item:
    """Something that a section of a document names. `document` is "003" or "linked from 002"."""

    document: str
    section: str
    what: str
    pointers: tuple[Pointer, ...]
    nothing: bool

    @property
    def title(self) -> str:
        return f"{self.document}, {self.section}"


def items(page: str) -> Iterator[Item]:
    """Every row of the page's tables. Raises ValueError for a row that has not three cells."""
    document = name = ""
    for line in page.splitlines():
        if line.startswith("## "):
            document = line[3:].replace("Linked", "linked")
        elif line.startswith("| ") and not line.startswith("| section"):
            first, what, here = (cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1])
            name = first or name
            pointing, nothing, _ = f"; {here}".partition("; nothing: ")
            pointers = tuple(_pointer(found) for found in _POINTER.finditer(pointing))
            yield Item(document, name, what, pointers, bool(nothing))


def _pointer(found: re.Match[str]) -> Pointer:
    if found["verb"]:
        return Pointer(found["verb"], None)
    return Pointer(found["text"], os.path.normpath(Path(PAGE).parent / found["target"]))


@dataclass(frozen=True)
class Places:
    """The words behind pointers: of a page or its section, a recipe with all that it extends, a rule, a patch, a verb, a file."""

    root: Path
    recipes: Recipes
    practice: Practice | None
    read: dict[Path, frozenset[str]] = field(default_factory=dict)

    def of(self, pointer: Pointer) -> frozenset[str]:
        if pointer.target is None:
            return frozenset[str]().union(*self._verb(pointer.text))
        path, _, heading = pointer.target.partition("#")
        if heading:
            return words(section(_text(self.root / path), heading))
        patch = _PATCH.fullmatch(path)
        if patch is not None:
            return self._words(self.root / path).union(*self._switches(patch["feature"], patch["upstream"]))
        if path == RULES.as_posix():
            return self._rule(pointer.text)
        if Path(path).is_relative_to(FOLDER):
            return frozenset[str]().union(*self._recipe(path))
        return self._words(self.root / path) | words(pointer.text)

    def _recipe(self, path: str) -> Iterator[frozenset[str]]:
        file = Path(path).relative_to(FOLDER)
        key: tuple[str, str] | None = (file.parent.as_posix(), file.stem)
        while key is not None:
            loaded = self.recipes.files[key]
            yield self._words(Path(loaded.positions.file))
            key = parent_of(key, loaded.value)

    def _rule(self, name: str) -> frozenset[str]:
        return words(f"{name} {self.recipes.rules.value.rules[name]}") if self.recipes.rules else frozenset()

    def _switches(self, feature: str, upstream: str) -> Iterator[frozenset[str]]:
        """The names that documents have for a feature's switch."""
        for switch, named in (self.practice.switches if self.practice else {}).items():
            if {feature, f"{feature}@{upstream}"} & set(named.features):
                yield words(f"{switch} {named.note}")

    def _verb(self, name: str) -> Iterator[frozenset[str]]:
        """A verb's modules, those of the package that does its work, and its page."""
        for pattern in (f"cli/{module_of(name)}.py", f"**/verbs/{name}.py", f"**/{name}/**/*.py", f"**/{name}s/*.py"):
            yield from map(self._words, sorted((self.root / "patchctl").glob(pattern)))
        yield self._words(self.root / "docs" / f"{name}.md")

    def _words(self, path: Path) -> frozenset[str]:
        if path not in self.read:
            self.read[path] = words(_text(path))
        return self.read[path]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def untold(item: Item, places: Places, documents: Documents) -> Iterator[str]:
    """What an item names that its document or its places do not have."""
    named = telling(item.what)
    yield from _missing(named, documents.words_of(item.document, item.section), f"{item.title} does not have")
    named = frozenset(part for word in named if word[0] != "0" or "." in word for part in word.split("="))
    behind = [(pointer, places.of(pointer)) for pointer in item.pointers]
    if behind and not item.nothing:
        every = frozenset[str]().union(*(has for _, has in behind))
        yield from _missing(named, every, f"{item.what!r} does not stand where it points: there is no")
    for pointer, has in behind if named else ():
        target = pointer.target or ""
        is_page = target.partition("#")[0].endswith(".md") and not _PATCH.fullmatch(target)
        if is_page and not any(stands(word, has) for word in named):
            yield f"{target} has nothing of {item.what!r}"


def _missing(named: Iterable[str], has: frozenset[str], says: str) -> Iterator[str]:
    lacking = sorted(word for word in named if not stands(word, has))
    if lacking:
        yield f"{says} {', '.join(lacking)}"
