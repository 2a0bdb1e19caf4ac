"""Reads every manifest of a distribution and checks that they fit each other and the patch files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from patchctl.manifest.diagnostics import InvalidManifest, Problem, cleaned, did_you_mean, nearest, quoted, shown
from patchctl.manifest.files import ManifestFiles
from patchctl.manifest.load import Loaded, Positions, loads
from patchctl.manifest.series import Cycle, SeriesPatch, ancestry, descent, feature_of, is_there, own_files, resolve
from patchctl.manifest.types import ManifestContent, OnRelease, Practice, Profile, Release, Stack, Upstreams, among
from patchctl.manifest.yamltree import KeyPath

T = TypeVar("T")
Problems = Iterator[Problem]


@dataclass
class Read:
    """What could be read. Files with errors are known by name, so that references to them are not errors as well."""

    root: Path
    upstreams: Loaded[Upstreams] | None = None
    practice: Loaded[Practice] | None = None
    stacks: dict[tuple[str, str], Loaded[Stack]] = field(default_factory=dict)
    profiles: dict[str, Loaded[Profile]] = field(default_factory=dict)
    releases: dict[str, Loaded[Release]] = field(default_factory=dict)
    stack_files: set[tuple[str, str]] = field(default_factory=set)
    release_files: set[str] = field(default_factory=set)

    @property
    def good_stacks(self) -> dict[tuple[str, str], Stack]:
        return {key: loaded.value for key, loaded in self.stacks.items()}


def checked(root: Path, files: ManifestFiles) -> ManifestContent:
    """Return all manifests, validated and cross-checked. Raises InvalidManifest with every error."""
    problems = list(files.problems)
    read = _read(root, files, problems)
    problems.extend(_inherit(read))
    problems.extend(_cross_checks(read))
    if problems or read.upstreams is None:
        raise InvalidManifest(problems)
    profiles = {name: loaded.value for name, loaded in read.profiles.items()}
    practice = read.practice.value if read.practice else None
    releases = {name: loaded.value for name, loaded in read.releases.items()}
    return ManifestContent(read.upstreams.value, read.good_stacks, profiles, practice, releases)


def _read(root: Path, files: ManifestFiles, problems: list[Problem]) -> Read:
    read = Read(root)

    def one(name: str, data: bytes, model: type[T]) -> Loaded[T] | None:
        try:
            return loads(data, model, shown(root / name))
        except InvalidManifest as error:
            problems.extend(error.problems)
            return None

    for name, data in files.content.items():
        parts = Path(name).with_suffix("").parts
        if parts[1] == "upstreams":
            read.upstreams = one(name, data, Upstreams)
        elif parts[1] == "practice":
            read.practice = one(name, data, Practice)
        elif parts[1] == "stacks":
            key = (parts[2], parts[3])
            read.stack_files.add(key)
            if (stack := one(name, data, Stack)) is not None:
                read.stacks[key] = stack
        elif parts[1] == "releases":
            read.release_files.add(parts[2])
            if (found := one(name, data, Release)) is not None:
                read.releases[parts[2]] = found
        elif (profile := one(name, data, Profile)) is not None:
            read.profiles[parts[2]] = profile
    return read


def _cross_checks(read: Read) -> Problems:
    if read.upstreams is not None:
        yield from _companions(read.upstreams)
    for (folder, file), stack in read.stacks.items():
        for check in STACK_CHECKS:
            yield from check(read, stack, folder, file)
    for found in read.releases.values():
        yield from _one_stack_at_least(found)
        for name in found.value.stacks.keys() & found.value.pinned.keys():
            yield found.positions.problem(("pinned", name), "already has a stack in this release", at="key")
    for file, profile in read.profiles.items():
        yield from _file_name(profile, file)
        if profile.value.releases:
            yield from _profile_releases(read, profile)
            continue
        yield from _one_stack_at_least(profile)
        yield from _stacks_known(read, profile.positions, (), profile.value.stacks)
        yield from _without_known(profile, (), profile.value.without, profile.value.stacks)
        yield from _runtime_known(read, profile)


def _companions(loaded: Loaded[Upstreams]) -> Problems:
    """Check that the expressions compile, and that each revision's has one group."""
    known = loaded.value.upstreams
    for name, upstream in known.items():
        if (said := upstream.companions) is None:
            continue
        at = ("upstreams", name, "companions")
        yield from _compiles(loaded, (*at, "file"), said.file)
        for other, text in said.revisions.items():
            if other not in known:
                what = f"no upstream {quoted(other)}{did_you_mean(other, known)}"
                yield loaded.positions.problem((*at, "revisions", other), what, at="key")
            yield from _compiles(loaded, (*at, "revisions", other), text, groups=1)


def _compiles(loaded: Loaded[Upstreams], key: KeyPath, text: str, groups: int | None = None) -> Problems:
    try:
        found = re.compile(text).groups
    except re.error as error:
        yield loaded.positions.problem(key, f"not a regular expression: {error}")
    else:
        if groups not in (None, found):
            yield loaded.positions.problem(key, f"expected one group, the revision; found {found}")


def _inherit(read: Read) -> Problems:
    """Check what each release says itself, then merge in the release that it extends."""
    for file, found in read.releases.items():
        yield from _file_name(found, file)
        yield from _stacks_known(read, found.positions, (), found.value.stacks)
        yield from _runtime_known(read, found)
    own = {name: found.value for name, found in read.releases.items()}
    for name, found in read.releases.items():
        value, seen = found.value, [name]
        while value.extends is not None and value.extends not in seen and value.extends in own:
            seen.append(value.extends)
            value = replace(value.over(own[value.extends]), extends=own[value.extends].extends)
        if value.extends in seen:
            yield found.positions.problem(("extends",), f"cycle: {' -> '.join([*seen, str(value.extends)])}")
        elif found.value.extends is not None and found.value.extends not in read.release_files:
            what = f"no release {quoted(found.value.extends)}{did_you_mean(found.value.extends, read.release_files)}"
            yield found.positions.problem(("extends",), what)
        read.releases[name] = replace(found, value=replace(value, extends=found.value.extends))


def _file_name(loaded: Loaded[Profile] | Loaded[Release], file: str) -> Problems:
    if loaded.value.name != file:
        what = f"expected {quoted(file)}, the file's name; found {quoted(loaded.value.name)}"
        yield loaded.positions.problem(("name",), what)


def _names(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that upstream and name match folder and file."""
    stack, at = loaded.value, loaded.positions
    if stack.upstream != folder:
        yield at.problem(("upstream",), f"expected {quoted(folder)}, the folder's name; found {quoted(stack.upstream)}")
    elif read.upstreams and stack.upstream not in read.upstreams.value.upstreams:
        known = read.upstreams.value.upstreams
        yield at.problem(
            ("upstream",), f"{quoted(stack.upstream)} is not in upstreams.yaml{did_you_mean(stack.upstream, known)}"
        )
    if stack.name != file:
        yield at.problem(("name",), f"expected {quoted(file)}, the file's name; found {quoted(stack.name)}")


def _sources(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that the pin has a source. A stack that extends another inherits its pin, and so no error of its own."""
    if loaded.value.extends or read.upstreams is None or folder not in read.upstreams.value.upstreams:
        return
    upstream, pin = read.upstreams.value.upstreams[folder], loaded.value.pin
    if pin.sdist and upstream.sdist is None:
        yield loaded.positions.problem(("pin", "sdist"), f"upstreams.yaml has no sdist for {folder}")
    if pin.commit is None and pin.sdist is None:
        yield loaded.positions.problem(("pin", "commit"), "null needs 'sdist', or nothing is pinned", at="key")
    elif pin.commit is None and (named := next((k for k in ("tree", "tag") if getattr(pin, k)), None)):
        yield loaded.positions.problem(("pin", named), "needs 'commit', which it belongs to", at="key")
    elif pin.sdist is None and not upstream.git:
        yield loaded.positions.problem(
            ("pin",), f"no source: neither an sdist here nor a git repository for {folder} in upstreams.yaml"
        )


def _numbers(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that numbers ascend, so that the list and a directory listing have the same order."""
    patches = loaded.value.patches
    for index, (before, patch) in enumerate(pairwise(patches), start=1):
        if patch[:4] <= before[:4]:
            yield loaded.positions.problem(
                ("patches", index), f"number {patch[:4]} after {before[:4]}; numbers must ascend"
            )


def _files(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that every listed patch exists."""
    stack = loaded.value
    there = read.root / "patches" / folder / file
    names = [p.name for p in there.glob("*/[0-9]*-*-*.patch")]
    keys: list[tuple[str | int, ...]] = [("patches", i) for i in range(len(stack.patches))]
    keys += [("replace", replaced) for replaced in stack.replace]
    for key, name in zip(keys, own_files(stack), strict=True):
        if is_there(read.root, SeriesPatch(folder, file, name)):
            continue
        what = f"{quoted(name)} is not a regular file in {shown(there / feature_of(name))}"
        if (there / name).is_file():  # the layout before features had folders
            what += "; it is next to that folder: move it and its carried files (files/) into it"
        elif (there / feature_of(name)).exists() or nearest(feature_of(name), map(feature_of, names)):
            what += did_you_mean(name, set(names) - {name})
        else:
            what += ", which does not exist: remove this line or restore the folder"
        yield loaded.positions.problem(key, what)


def _extends(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that the extended stack exists, has the same pin, and does not extend this one."""
    stack, at = loaded.value, loaded.positions
    if stack.extends is None:
        if stack.replace:
            yield at.problem(("replace",), "needs 'extends', or there is nothing to replace", at="key")
        return
    if (folder, stack.extends) not in read.stack_files:
        known = [name for upstream, name in read.stack_files if upstream == folder and name != file]
        yield at.problem(
            ("extends",), f"{cleaned(folder)} has no stack {quoted(stack.extends)}{did_you_mean(stack.extends, known)}"
        )
        return
    try:
        chain = ancestry(stack, read.good_stacks)
    except Cycle as cycle:
        yield at.problem(("extends",), f"cycle: {cycle}")
        return
    if len(chain) > 1 and chain[1].pin != stack.pin:
        differs = next(
            k for k in ("commit", "tree", "tag", "sdist") if getattr(chain[1].pin, k) != getattr(stack.pin, k)
        )
        yield at.problem(("pin", differs), f"differs from that of {stack.extends}, which this stack extends")
    if len(chain) > 1:
        yield from _replaces(read, loaded, chain[1])


def _comes_from(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that the stack this one comes from does not come from this one. It may be gone, with the release that it was of."""
    stack, at = loaded.value, loaded.positions
    if stack.comes_from is None:
        return
    if stack.extends is not None:
        yield at.problem(("comes_from",), "redundant with 'extends'", at="key")
    elif stack.name in [one.comes_from or one.extends for one in descent(stack, read.good_stacks)]:
        yield at.problem(("comes_from",), "cycle: it comes from a stack that comes from this one")


def _left(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that features are dropped or postponed only from the stack this one comes from, and not both."""
    stack, at = loaded.value, loaded.positions
    for key in ("dropped", "postponed"):
        if getattr(stack, key) and stack.comes_from is None:
            yield at.problem((key,), "needs 'comes_from', the stack that had these features", at="key")
    for feature in stack.postponed:
        if feature in stack.dropped:
            yield at.problem(("postponed", feature), "is also in 'dropped'", at="key")


def _replaces(read: Read, loaded: Loaded[Stack], parent: Stack) -> Problems:
    """Check that each replaced patch exists once and each replacement is used once."""
    stack, at = loaded.value, loaded.positions
    theirs = [p.file for p in resolve(parent, read.good_stacks)]
    used = list(stack.patches)
    for old, new in stack.replace.items():
        if theirs.count(old) != 1:
            fault = "is not a patch of" if old not in theirs else "names more than one patch of"
            near = did_you_mean(old, theirs) if old not in theirs else ""
            yield at.problem(("replace", old), f"{fault} {parent.name}{near}", at="key")
        if new in used:
            yield at.problem(("replace", old), f"{quoted(new)} is applied twice")
        used.append(new)


def _generated(read: Read, loaded: Loaded[Stack], folder: str, file: str) -> Problems:
    """Check that no two generated files have the same path."""
    paths = [g.path for g in loaded.value.generated]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            yield loaded.positions.problem(("generated", index, "path"), f"duplicate {quoted(path)}")


StackCheck = Callable[[Read, Loaded[Stack], str, str], Problems]
STACK_CHECKS: tuple[StackCheck, ...] = (_names, _sources, _numbers, _files, _extends, _comes_from, _left, _generated)


def _one_stack_at_least(loaded: Loaded[Profile] | Loaded[Release]) -> Problems:
    if not loaded.value.stacks:
        yield loaded.positions.problem(("stacks",), "expected at least one stack", at="key")


def _stacks_known(read: Read, at: Positions, above: KeyPath, stacks: Mapping[str, str]) -> Problems:
    """Check that the stacks named by `stacks`, a key below `above`, exist."""
    upstreams = read.upstreams.value.upstreams if read.upstreams else None
    for upstream, name in stacks.items():
        path = (*above, "stacks", upstream)
        if upstreams is not None and upstream not in upstreams:
            yield at.problem(path, f"is not in upstreams.yaml{did_you_mean(upstream, upstreams)}", at="key")
        elif (upstream, name) not in read.stack_files:
            known = [n for u, n in read.stack_files if u == upstream]
            yield at.problem(path, f"{upstream} has no stack {quoted(name)}{did_you_mean(name, known)}")


def _without_known(
    loaded: Loaded[Profile], above: KeyPath, without: Sequence[str], stacks: Collection[str]
) -> Problems:
    """Check the upstreams in `without`. The features themselves are declared in patch headers."""
    for index, feature in enumerate(without):
        path, upstream = (*above, "without", index), feature.partition("@")[2]
        if upstream and upstream not in stacks:
            what = f"the profile has no {quoted(upstream)}{did_you_mean(upstream, stacks)}"
            yield loaded.positions.problem(path, what)
        if feature in without[:index]:
            yield loaded.positions.problem(path, f"duplicate {quoted(feature)}")


def _runtime_known(read: Read, loaded: Loaded[Profile] | Loaded[Release]) -> Problems:
    """Check that every runtime requirement is in upstreams.yaml."""
    if read.upstreams is None:
        return
    known = read.upstreams.value.requirements
    for name in loaded.value.runtime:
        if name not in known:
            what = f"is not a requirement in upstreams.yaml{did_you_mean(name, known)}"
            yield loaded.positions.problem(("runtime", name), what, at="key")


def _profile_releases(read: Read, loaded: Loaded[Profile]) -> Problems:
    """Check that a profile's releases exist, that its changes apply to them, and that it repeats nothing of theirs."""
    profile, at = loaded.value, loaded.positions
    for key in ("stacks", "runtime", "requirements"):
        if getattr(profile, key):
            yield at.problem((key,), "not allowed with 'releases', which define it", at="key")
    taken: dict[str, str] = {}
    for releases, own in profile.releases.items():
        path = ("releases", releases)
        there = [name for name in sorted(read.release_files) if among(releases, name)]
        if not there:
            yield at.problem(
                path, f"no release {quoted(releases)}{did_you_mean(releases, read.release_files)}", at="key"
            )
        for name in there:
            if taken.setdefault(name, releases) != releases:
                yield at.problem(path, f"{quoted(name)} is already covered by {quoted(taken[name])}", at="key")
        found: dict[Problem, None] = {}
        for name in there:
            if name in read.releases:  # otherwise the release's own file has errors
                found |= dict.fromkeys(_on_release(read, loaded, releases, own, read.releases[name].value))
        yield from found


def _on_release(read: Read, loaded: Loaded[Profile], releases: str, own: OnRelease, chosen: Release) -> Problems:
    """Check that what a profile changes of a release is in it."""
    at, path, stacks = loaded.positions, ("releases", releases), chosen.stacks
    for upstream in own.stacks:
        if upstream not in stacks or upstream in own.leaves_out:
            what = f"the release has no {quoted(upstream)}{did_you_mean(upstream, stacks)}"
            what = what if upstream not in stacks else "the profile leaves it out"
            yield at.problem((*path, "stacks", upstream), what, at="key")
    for index, upstream in enumerate(own.leaves_out):
        if upstream not in stacks:
            what = f"the release has no {quoted(upstream)}{did_you_mean(upstream, stacks)}"
            yield at.problem((*path, "leaves_out", index), what)
    left = [upstream for upstream in stacks if upstream not in own.leaves_out]
    if not left:
        yield at.problem((*path, "leaves_out"), "leaves no stack", at="key")
    yield from _stacks_known(read, at, path, {u: s for u, s in own.stacks.items() if u in stacks})
    yield from _without_known(loaded, (), loaded.value.without, left)
    yield from _without_known(loaded, path, own.without, left)
