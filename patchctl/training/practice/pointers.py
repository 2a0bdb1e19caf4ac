"""Whether what an item of coverage.yaml names stands in its document, and where the item points.

An item's text is English, so that only its telling words can be compared: numbers, names of code, what is in backquotes. All of
them have to stand in the document's section; one at least in each page that the item points to; and where it does not say why
nothing is done, all of them somewhere behind its pointers. Numbers that a document gives its files (0002) are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.manifest.problems import quoted
from patchctl.manifest.types import Practice
from patchctl.terminal.markdown import section
from patchctl.training.practice.types import Item
from patchctl.training.practice.words import stands, telling, words
from patchctl.training.recipes.read import Recipes, parent_of


@dataclass(frozen=True)
class Places:
    """Where items point: the words of a page, a recipe with all that it extends, a rule, a patch's page, a verb, a file."""

    root: Path
    recipes: Recipes
    practice: Practice | None
    read: dict[Path, frozenset[str]] = field(default_factory=dict)

    def of(self, item: Item) -> Iterator[tuple[str, frozenset[str]]]:
        """Each place of an item with its words. What is not there is a fault of its own, and has none."""
        kinds: Sequence[tuple[list[str], Callable[[str], Iterable[frozenset[str]]]]] = (
            (item.recipes, self._recipe), (item.rules, self._rule), (item.features, self._feature),
            (item.verbs, self._verb), (item.files, self._file), (item.pages, self._page),
        )  # fmt: skip
        for names, found in kinds:
            for name in names:
                yield name, frozenset[str]().union(*found(name))

    def _recipe(self, name: str) -> Iterator[frozenset[str]]:
        folder, _, rest = name.partition("/")
        key = (folder, rest)
        while key in self.recipes.files:
            loaded = self.recipes.files[key]
            yield self._words(Path(loaded.positions.file))
            parent = parent_of(key, loaded.value)
            if parent is None:
                return
            key = parent

    def _rule(self, name: str) -> Iterator[frozenset[str]]:
        rules = self.recipes.rules.value.rules if self.recipes.rules else {}
        if name in rules:
            yield words(f"{name} {rules[name]}")

    def _feature(self, name: str) -> Iterator[frozenset[str]]:
        feature, _, upstream = name.partition("@")
        yield from map(self._words, self.root.glob(f"docs/patches/{upstream or '*'}/*/{feature}.md"))
        yield from (
            words(f"{switch} {named.note}")
            for switch, named in (self.practice.switches if self.practice else {}).items()
            if feature in {one.partition("@")[0] for one in named.features}
        )

    def _verb(self, name: str) -> Iterator[frozenset[str]]:
        package = Path(__file__).resolve().parents[2]
        for pattern in (f"cli/{name}_verb.py", f"training/verbs/{name}.py", f"**/{name}/*.py", f"**/{name}s/*.py"):
            yield from map(self._words, sorted(package.glob(pattern)))
        yield self._words(self.root / "docs" / f"{name}.md")

    def _file(self, name: str) -> Iterator[frozenset[str]]:
        yield words(name) | self._words(self.root / name)

    def _page(self, name: str) -> Iterator[frozenset[str]]:
        path, _, heading = name.partition("#")
        yield words(section(_text(self.root / path), heading)) if heading else self._words(self.root / path)

    def _words(self, path: Path) -> frozenset[str]:
        if path not in self.read:
            self.read[path] = words(_text(path))
        return self.read[path]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def untold(item: Item, places: Places, documented: Mapping[str, frozenset[str]], title: str) -> Iterator[str]:
    """What an item names that its document (`documented`, by section) or its places do not have."""
    named = telling(item.what)
    if title in documented:
        yield from _missing(named, documented[title], f"{title} does not have")
    named = frozenset(part for word in named if word[0] != "0" or "." in word for part in word.split("="))
    behind = list(places.of(item))
    if behind and not item.nothing:
        every = frozenset[str]().union(*(has for _, has in behind))
        yield from _missing(named, every, f"{quoted(item.what)} does not stand where it points: there is no")
    for name, has in behind if named else ():
        if name in item.pages and not any(stands(word, has) for word in named):
            yield f"{name} has nothing of {quoted(item.what)}"


def _missing(named: Iterable[str], has: frozenset[str], says: str) -> Iterator[str]:
    lacking = sorted(word for word in named if not stands(word, has))
    if lacking:
        yield f"{says} {', '.join(lacking)}"
