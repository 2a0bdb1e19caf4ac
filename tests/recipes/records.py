"""What runs found, a file a recipe below docs/evidence/recipes: a run is not made again while what it ran is as it was, on whatever
machine, and a page tells which rows are of something older."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import table
from pins import on
from releases import OLDEST, RELEASES, OfRelease
from shrunk import REPO, Shrunk, recipes, shipped, shrunk
from variants import NOTHING_WHERE, variant_of

from patchctl.atomic import replace_file
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, StackLock, read_lock
from patchctl.stack.plan import load_patches
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.read import Key, Recipes
from patchctl.training.recipes.resolve import bare
from patchctl.workspace.state import load_state

State = dict[str, Any]
"""What a run ran: the tips of the patched trees, and a digest of the shrunk recipe's settings. Stand-ins are not in it."""


class Patches(TypedDict):
    """What a tip was made of: its stack as UPSTREAM/STACK, its tree, and the digest of what each patch changes, by feature. Other
    words in a patch's header make another tip of the same tree, on which the same ran."""

    stack: str
    tree: str  # "" where it was not noted
    patches: dict[str, str]


class Records:
    """The records in `folder`, and the page that is made of them with every one that is kept.

    `tips.json` beside them has, of each tip on which something ran, the digests of the patches that made it.
    """

    def __init__(self, known: Recipes, folder: Path, page: Path | None = None, of: OfRelease = OLDEST) -> None:
        self._known, self._folder, self._page, self._of = known, folder, page, of
        files = {title: self._file(title) for title in map("/".join, shipped(known))}
        self.found = {title: json.loads(file.read_text()) for title, file in files.items() if file.is_file()}
        self._tips = folder / "tips.json"
        self.made_of: dict[str, Patches] = json.loads(self._tips.read_text()) if self._tips.is_file() else {}

    def keep(self, title: str, found: dict[str, Any]) -> None:
        self.found[title] = found
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file(title), (json.dumps(found, indent=1) + "\n").encode())
        print(title, json.dumps(found), flush=True)
        self.write()

    def write(self) -> None:
        self._keep_tips()
        if self._page:
            replace_file(self._page, self.page().encode())

    def page(self) -> str:
        older = self._older()
        since = sorted({one for run in older for one in self._changed_since(self._run(*run)["state"]["trees"])})
        return table.page(self.found, list(map("/".join, shipped(self._known))), older, since, self._of)

    def _run(self, title: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.found[title]
        return found["compared"][name] if name else found

    def _changed_since(self, trees: Mapping[str, str]) -> set[str]:
        """The features, as UPSTREAM/STACK/FEATURE, of these trees' stacks that are no more what they were in the trees; what a
        tip without a note was made of, nobody knows."""
        changed = set()
        today = changes_today()
        for tip in (tip for tip in trees.values() if not self._is_of_today(tip)):
            was = self.made_of.get(tip, {"stack": "", "tree": "", "patches": {}})
            now = today.get(was["stack"], {})
            changed |= {
                f"{was['stack']}/{name}"
                for name in was["patches"].keys() | now.keys()
                if was["patches"].get(name) != now.get(name)
            }
        return changed

    def _keep_tips(self) -> None:
        """Notes what the tips of today's stacks are made of, where something ran on them; tips of which no run is left go."""
        runs = [run for found in self.found.values() for run in (found, *found.get("compared", {}).values())]
        used = {tip for run in runs for tip in run["state"]["trees"].values()}
        patches = changes_today()
        for stack, tips in locked_tips().items():
            for tip in used & tips.keys() - self.made_of.keys():
                self.made_of[tip] = {"stack": stack, "tree": tips[tip], "patches": patches[stack]}
        kept = {tip: one for tip, one in sorted(self.made_of.items()) if tip in used}
        replace_file(self._tips, (json.dumps(kept, indent=1) + "\n").encode())

    def _is_of_today(self, tip: str) -> bool:
        """Whether a stack of today ends with this tip, or with another one of the same tree."""
        today = locked_tips().values()
        tree = self.made_of[tip]["tree"] if tip in self.made_of else ""
        return any(tip in tips or tree in tips.values() for tips in today)

    def _file(self, title: str) -> Path:
        return self._folder / f"{title.replace('/', '-')}.json"

    def _older(self) -> dict[tuple[str, str], list[str]]:
        """The runs, as (title, variant), "" for the recipe's own, that are not of today's patches and recipe; with what is another
        one today of that which the recipe needs."""
        older = {}
        for title, found in self.found.items():
            key, other = _key(title), found.get("other sizes", {})
            runs = {"": (shrunk(self._known, key, {}, other), found)}
            for name, one in found.get("compared", {}).items():
                runs[name] = variant_of(name, one, self._of).made(self._known, key, {}, other), one
            for name, (run, one) in runs.items():
                same = one["state"]["settings"] == settings_of(run, self._known)
                if not same or self._ran_on_others(run, one["state"]["trees"]):
                    patches = {one.rpartition("/")[2] for one in self._changed_since(one["state"]["trees"])}
                    needed = sorted(patches & set(run.run(self._known).needs))
                    older[title, name] = [*([] if same else ["its settings"]), *needed]
        return older

    def _ran_on_others(self, run: Shrunk, trees: Mapping[str, str]) -> bool:
        """Whether these trees had other patches of those that act in a run: what its switch leaves off changes nothing."""
        if not all(self._is_of_today(tip) or tip in self.made_of for tip in trees.values()):
            return True  # what it was made of was not noted
        one = run.run(self._known)
        said = {bare(key): setting.value for key, setting in (*one.overrides.items(), *one.environment.items())}
        switches = _switches(one.release or "", one.profile)
        return any(_acts(changed, said, switches) for changed in self._changed_since(trees))


def _acts(changed: str, said: Mapping[str, str], switches: Mapping[str, str]) -> bool:
    """Whether a patch that has changed, UPSTREAM/STACK/FEATURE, acts where keys are set so: one of them is its switch; or it has none, and
    switches.yaml says of no setting that it changes nothing there."""
    feature = changed.rpartition("/")[2]
    if feature in NOTHING_WHERE:
        return any(said.get(key, value) != value for key, value in NOTHING_WHERE[feature].items())
    switch = switches.get(feature)
    return switch is None or any(f".{switch}." in f".{key}." for key in said)


@cache
def _switches(release: str, profile: str) -> dict[str, str]:
    """The setting that turns a feature of a profile on, by feature, where there is one."""
    return {switch.feature: switch.name for switch in features_and_switches(on(release), profile)[1]}


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


@cache
def locked_tips() -> dict[str, dict[str, str]]:
    """The tree of each tip of every stack, in every form, as the distribution's locks have them, by UPSTREAM/STACK."""
    found = {}
    for stack, lock in _locks().items():
        forms = [form for result in lock.results for form in result.forms.values()]
        found[stack] = {form.tip_commit: form.tip_tree for form in forms if isinstance(form, LockedForm)}
    return found


@cache
def changes_today() -> dict[str, dict[str, str]]:
    """The digest of what every patch changes, by feature, by UPSTREAM/STACK: neither line numbers nor a header's words run."""
    dist = Distribution.load(REPO)
    return {
        f"{stack.upstream}/{stack.name}": {patch.feature: patch.change_digest for patch in load_patches(dist, stack)}
        for stack in dist.stacks.values()
    }


def _locks() -> dict[str, StackLock]:
    stacks = Distribution.load(REPO).stacks.values()
    return {f"{lock.upstream}/{lock.stack}": lock for stack in stacks if (lock := read_lock(REPO, stack))}


if __name__ == "__main__":  # what changed beside the runs: patches, recipes, the texts
    for one in RELEASES.values():
        if not (place := REPO / "docs/evidence" / one.page).is_dir():
            continue  # of which no run is on record
        Records(recipes(one.name), place, place.with_name(f"{one.page}.md"), one).write()
