"""Decides which known trees a folder contains. Site-packages can have several; a subfolder is placed by its file names.

Names choose what is compared; only blob ids decide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.identify.comparison import (
    Comparison,
    FileDifference,
    Folder,
    PatchFound,
    compare,
    form_of,
    is_build_output,
    patches_found,
    scan,
)
from patchctl.stack.tree_lists import KnownTree, show

# A folder with two common names fits several places; compare with at most this many.
_PLACES = 4


@dataclass(frozen=True)
class Identified:
    """A pin that the folder contains, fully or nearly. Paths are below the folder."""

    upstream: Annotated[str, Doc("upstream name")]
    stacks: Annotated[tuple[str, ...], Doc("stacks with this pin")]
    commit: Annotated[str, Doc("pinned commit, or `sdist:SHA256` if only the source distribution is pinned")]
    tag: Annotated[str | None, Doc("tag that named the commit")]
    listed_from: Annotated[str, Doc("source of the pin's file list")]
    at: Annotated[
        str,
        Doc("subfolder of the upstream tree that the folder corresponds to, ending in `/`; empty for the whole tree"),
    ]
    form: Annotated[
        str, Doc("`complete`, `package` (packages only), `sdist` (as in the source distribution) or `part`")
    ]
    exact: Annotated[bool, Doc("true if the contents equal the pin, patched or not")]
    listed: Annotated[int, Doc("number of files in the pin")]
    present: Annotated[int, Doc("number of these files found in the folder")]
    equal: Annotated[int, Doc("number of files found that are unpatched")]
    patched: Annotated[int, Doc("number of files found that equal their patched version, including added ones")]
    added: Annotated[int, Doc("number of files found that a patch adds")]
    patches: Annotated[tuple[PatchFound, ...], Doc("patches of the stack found in the folder")]
    differing: Annotated[tuple[FileDifference, ...], Doc("files that are neither the pin's nor patched")]
    missing: Annotated[tuple[str, ...], Doc("files that are absent while others in their folder are present")]
    extra: Annotated[tuple[str, ...], Doc("Python files in the packages that the pin does not have")]
    modes: Annotated[tuple[str, ...], Doc("files with a different executable bit; not counted as a difference")]
    rivals: Annotated[tuple[str, ...], Doc("other pins that match equally well because the folder is too small a part")]
    lock: Annotated[bool, Doc("true if a lock tells patched files apart; also true for a stack without patches")]


@dataclass(frozen=True)
class Identification:
    """The contents of a folder."""

    folder: Annotated[str, Doc("inspected folder")]
    trees: Annotated[
        tuple[Identified, ...], Doc("pins found, the one with the most files first; empty if no known pin matches")
    ]
    others: Annotated[int, Doc("number of files that belong to no pin")]
    build_outputs: Annotated[int, Doc("number of those that are build outputs: .so, .pyc and the like")]
    links: Annotated[int, Doc("number of symbolic links; links are not followed")]
    passed_by: Annotated[int, Doc("number of folders skipped: .git, `__pycache__`, environments")]
    unreadable: Annotated[tuple[str, ...], Doc("folders that could not be read")]

    @property
    def exact(
        self,
    ) -> Annotated[bool, Doc("true if at least one tree was found and every tree equals a pin; exit code 0")]:
        """Whether at least one tree was found and every one is exactly a pin's."""
        return bool(self.trees) and all(t.exact for t in self.trees) and not self.unreadable


def identify(path: Path, known: Sequence[KnownTree]) -> Identification:
    """Compare a folder with every known tree. Writes nothing; unreadable files are listed, not raised."""
    names = {name for tree in known for name in tree.folder_names}
    folder = scan(path, names, _everywhere_submodules(known))
    chosen = _chosen(_comparisons(folder, known))
    trees = tuple(_identified(group, folder) for group in chosen)
    claimed = {n for group in chosen for c in group for n in (*c.present, *c.extra)}
    generated = {g[len(c.at) :] for c, *_ in chosen for g in c.known.generated if g.startswith(c.at)}
    others = tuple(s[len(c.at) :] + b"/" for c, *_ in chosen for s in c.known.submodules if s.startswith(c.at))
    rest = [n for n in folder.files if n not in claimed | generated and not n.startswith(others)]
    outputs = sum(1 for n in rest if is_build_output(n))
    links = sum(1 for n in rest if folder.files[n] == 0o120000)
    unreadable = tuple(show(p) for p in sorted(folder.unreadable))
    return Identification(str(path), trees, len(rest) - outputs, outputs, links, folder.passed_by, unreadable)


def _everywhere_submodules(known: Sequence[KnownTree]) -> set[bytes]:
    """Return paths that are submodules in some tree and in none contain files: verl's `recipe` since v0.7."""
    own = {f + b"/" for tree in known for f in tree.folders}
    return {s for tree in known for s in tree.submodules if not any(f.startswith(s + b"/") for f in own)}


def _comparisons(folder: Folder, known: Iterable[KnownTree]) -> list[Comparison]:
    """Return the best similar comparison with each tree, best first."""
    found = []
    for tree in known:
        here = [compare(folder, tree, at) for at in _places(folder.files, tree)]
        here = [c for c in here if c.similar]
        if here:
            found.append(max(here, key=_score))
    return sorted(found, key=_score, reverse=True)


def _score(result: Comparison) -> tuple[int, bool, int, int]:
    """Rank by files of the pin, patched or not; then exactness, fewer differing or missing, fewer extra files."""
    return len(result.telling), result.exact, -len(result.differing) - len(result.missing), -len(result.extra)


def _places(names: Iterable[bytes], tree: KnownTree) -> list[bytes]:
    """Return the tree's folders that this folder could be, likeliest first, judged by file names."""
    by_name: dict[bytes, list[bytes]] = defaultdict(list)
    for path in tree.files:
        by_name[path.rpartition(b"/")[2]].append(path)
    votes: Counter[bytes] = Counter()
    for name in names:
        for path in by_name.get(name.rpartition(b"/")[2], ()):
            if path == name or path.endswith(b"/" + name):
                votes[path[: len(path) - len(name)]] += 1
    return [at for at, _ in votes.most_common(_PLACES)]


def _chosen(comparisons: list[Comparison]) -> list[list[Comparison]]:
    """Group comparisons that claim the same files; each group's first has files of its own."""
    chosen: list[list[Comparison]] = []
    for result in comparisons:
        group = next((g for g in chosen if len(result.telling & g[0].telling) * 2 > len(result.telling)), None)
        if group is None:
            chosen.append([result])
        else:
            group.append(result)
    return chosen


def _identified(group: list[Comparison], folder: Folder) -> Identified:
    """Describe the best of a group, with stacks of the same pin and pins that cannot be told apart."""
    best = group[0]
    pin = best.known.stack.pin
    same = [c for c in group if (c.known.upstream, c.known.stack.pin.identity) == (best.known.upstream, pin.identity)]
    added = [n for n, numbers in best.applied.items() if numbers and best.at + n not in best.known.files]
    rivals = [f"{c.known.upstream} {c.known.stack.name}" for c in group if c not in same and c.exact and best.exact]
    return Identified(
        upstream=best.known.upstream,
        stacks=tuple(c.known.stack.name for c in same),
        commit=pin.identity,
        tag=pin.tag,
        listed_from=best.known.source,
        at=show(best.at),
        form=form_of(best, folder),
        exact=best.exact and not rivals,
        listed=len(best.known.files) - len(best.known.submodules),
        present=sum(1 for n in best.present if best.at + n in best.known.files),
        equal=len(best.equal),
        patched=best.patched,
        added=len(added),
        patches=patches_found(best),
        differing=tuple(best.differing),
        missing=tuple(show(n) for n in best.missing),
        extra=tuple(show(n) for n in best.extra),
        modes=tuple(show(n) for n in best.modes),
        rivals=tuple(rivals),
        lock=best.known.lock is not None or not best.known.patch_files,
    )
