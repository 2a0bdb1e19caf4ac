"""What runs found, a file a recipe below docs/evidence/recipes: a run is not made again while what it ran is as it was, on whatever
machine, and a page tells which rows are of something older."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import table
from shrunk import REPO, Shrunk, recipes, shipped, shrunk
from variants import variant_of

from patchctl.atomic import replace_file
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.training.recipes.read import Key, Recipes
from patchctl.workspace.state import load_state

State = dict[str, Any]
"""What a run ran: the tips of the patched trees, and a digest of the shrunk recipe's settings. Stand-ins are not in it."""


class Records:
    """The records in `folder`, and the page that is made of them with every one that is kept."""

    def __init__(self, known: Recipes, folder: Path, page: Path | None = None) -> None:
        self._known, self._folder, self._page = known, folder, page
        files = {title: self._file(title) for title in map("/".join, shipped(known))}
        self.found = {title: json.loads(file.read_text()) for title, file in files.items() if file.is_file()}

    def keep(self, title: str, found: dict[str, Any]) -> None:
        self.found[title] = found
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file(title), (json.dumps(found, indent=1) + "\n").encode())
        print(title, json.dumps(found), flush=True)
        self.write()

    def write(self) -> None:
        if self._page:
            replace_file(self._page, self.page().encode())

    def page(self) -> str:
        return table.page(self.found, list(map("/".join, shipped(self._known))), self._older())

    def _file(self, title: str) -> Path:
        return self._folder / f"{title.replace('/', '-')}.json"

    def _older(self) -> set[tuple[str, str]]:
        """The runs, as (title, variant), "" for the recipe's own, that are not of today's patches and recipe."""
        tips, older = locked_tips(), set()
        for title, found in self.found.items():
            key, other = _key(title), found.get("other sizes", {})
            runs = {"": (shrunk(self._known, key, {}, other), found)}
            for name, one in found.get("compared", {}).items():
                runs[name] = variant_of(name, one).made(self._known, key, {}, other), one
            for name, (run, one) in runs.items():
                same = one["state"]["settings"] == settings_of(run, self._known)
                if not same or not tips.issuperset(one["state"]["trees"].values()):
                    older.add((title, name))
        return older


def _key(title: str) -> Key:
    profile, _, name = title.partition("/")
    return profile, name


def state_of(trees: Path, one: Shrunk, known: Recipes) -> State:
    applied = load_state(trees)
    if applied is None:
        raise SystemExit(f"{trees} is no workspace: `make trees`, or `patchctl apply --workspace {trees}`")
    tips = {name: tree.tip_commit for name, tree in sorted(applied.trees.items())}
    return {"trees": tips, "settings": settings_of(one, known)}


def settings_of(one: Shrunk, known: Recipes) -> str:
    run = one.run(known)
    said = [run.entry.module, _said(run.overrides), _said(run.environment)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _said(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: f"@{value.path}" if value.path else value.value for key, value in values.items()}


def locked_tips() -> set[str]:
    """The tips of every stack, in every form, as the distribution's locks have them."""
    locks = [lock for stack in Distribution.load(REPO).stacks.values() if (lock := read_lock(REPO, stack))]
    forms = [form for lock in locks for one in lock.results for form in one.forms.values()]
    return {form.tip_commit for form in forms if isinstance(form, LockedForm)}


if __name__ == "__main__":  # what changed beside the runs: patches, recipes, the texts
    Records(recipes(), REPO / "docs/evidence/recipes", REPO / "docs/evidence/recipes.md").write()
