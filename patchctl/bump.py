"""Derives a new release from an older one: which stacks move where, the progress, and how the patches differ."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from patchctl.atomic import replace_file
from patchctl.catalog.evidence import Evidence
from patchctl.doc import Doc
from patchctl.drift.drift import Drifting
from patchctl.drift.outdated import companions_of, is_pinned, is_same, named_by, pinned_as
from patchctl.errors import BadManifest, LocalEdits, SourceUnavailable, WrongUse
from patchctl.git.branch import Branch
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import BadRecord, parse, shape_of
from patchctl.manifest.types import FORMAT, Made, Release, ReleaseName, Stack, release_order
from patchctl.manifest.yamltree import plain
from patchctl.patch.parse import Hunk
from patchctl.process_group import ask
from patchctl.rebase.finish import RebaseResult
from patchctl.rebase.rebase import is_met
from patchctl.rebase.rebase_state import RebaseState, RebaseWorktree
from patchctl.rebase.resolutions import VARIABLE
from patchctl.rebase.start import stack_at
from patchctl.requirements.declared import changes, declared_by, read_declared, stale
from patchctl.requirements.sets import read_set
from patchctl.scratch import scratch
from patchctl.source.git_form import release_prefix
from patchctl.source.obtain import obtain
from patchctl.source.types import SourceOptions
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import build_stack, load_patches
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line
from patchctl.workspace.edit import make_edit_tree

_VERSION = 1
_SECONDS = 600
Class = Literal["same", "context", "content", "added", "dropped", "postponed"]


@dataclass(frozen=True)
class StackMove:
    """A stack that moves to another revision."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack in the old release")]
    to: Annotated[str, Doc("target tag, branch, commit or version")]
    why: Annotated[str, Doc("what requested the move")]


@dataclass(frozen=True)
class BumpState:
    """A bump under way. `stacks` are the new stacks by upstream, as soon as their rebase has begun. Of those that arrived: `merges`,
    how each patch did, by upstream and feature, and `open`, what a person has to look at. `told`: the run has stopped at
    imports that nothing provides, which are `imports`; `asked`: at files that could not be made. `unavailable`: upstreams that
    stay because their sources cannot be had, with the reason. `apart`: revisions that files name and the release will not have, a line
    each. `branch`: that of the distribution's own git which all is done on.
    `source` and `mirrors` are the options of that name, for a run that is not given them: NAME=URL, none with credentials."""

    release: str
    new: str
    moves: list[StackMove]
    prove: bool
    stacks: dict[str, str] = field(default_factory=dict)
    merges: dict[str, dict[str, str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    told: bool = False
    imports: list[str] = field(default_factory=list)
    asked: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)
    branch: Branch | None = None
    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: tuple[str, ...] = ()


def state_file(root: Path) -> Path:
    """Return the state file of the distribution's only bump; it is next to the work trees of its rebases."""
    return root / "edit" / ".bump.json"


def work_tree(root: Path, state: BumpState, upstream: str) -> Path:
    """Return the folder of an upstream's rebase."""
    return (root / "edit" / f"{upstream}-bump-{state.new}").absolute()


def is_of_bump(root: Path, folder: Path) -> bool:
    """Whether a rebase's work tree is that of a move of the bump under way."""
    if not state_file(root).exists():
        return False
    state = read_state(root)
    return folder in [work_tree(root, state, move.upstream) for move in state.moves]


def write_state(root: Path, state: BumpState) -> BumpState:
    """Write the state and return it."""
    replace_file(state_file(root), json.dumps({"version": _VERSION, **asdict(state)}, indent=1).encode())
    return state


def read_state(root: Path) -> BumpState:
    """Read the state. Raises WrongUse if no bump is under way, BadManifest if patchctl did not write the file."""
    file = state_file(root)
    try:
        return parse(BumpState, file.read_bytes(), ("version", _VERSION))
    except FileNotFoundError:
        hint = "`patchctl bump RELEASE --to NEW` begins one"
        raise WrongUse("no bump is under way", hint=hint) from None
    except (OSError, BadRecord) as error:
        hint = f"remove it, and begin the bump again: stacks that have arrived are taken as they are ({file})"
        raise BadManifest(f"this is not the state of a bump: {error}", where=str(file), hint=hint) from error


def note_arrival(root: Path, rebase: RebaseState, ended: RebaseResult) -> BumpState:
    """Write into the bump's state how the patches of a move came over, and what a person has to look at; return it."""
    state = read_state(root)
    merges: dict[str, str] = {step.feature: step.outcome for step in rebase.steps}
    return write_state(
        root,
        replace(
            state,
            stacks=state.stacks | {rebase.upstream: rebase.new},
            merges=state.merges | {rebase.upstream: merges},
            open=list(dict.fromkeys([*state.open, *ended.open])),
        ),
    )


def newest_release(dist: Distribution) -> Release:
    """The newest release. Raises WrongUse if there is none."""
    found = next(iter(dist.releases.values()), None)
    if found is None:
        raise WrongUse("this distribution has no release", hint="write the first: manifests/releases/NAME.yaml")
    return found


def next_point(dist: Distribution, old: Release) -> str:
    """The name of the next point release after `old` that is not taken."""
    month = ".".join(old.name.split(".")[:2])
    points = [release_order(name)[2] for name in dist.releases if name.startswith(f"{month}.")]
    return f"{month}.{max(points, default=0) + 1}"


def check_new(dist: Distribution, new: str) -> None:
    """Check that the new release can be written. Raises WrongUse."""
    if not shape_of(ReleaseName).takes_text(new):
        raise WrongUse(f"{quoted(new)} is no name of a release", hint="--to YEAR.MONTH or YEAR.MONTH.N")
    if new in dist.releases:
        raise WrongUse(f"release {new} is there already", hint="name another with --to")
    if state_file(dist.root).exists():
        under_way = read_state(dist.root)
        hint = "`patchctl bump --continue`, or `patchctl bump --abort`"
        raise WrongUse(f"a bump to {under_way.new} is under way", hint=hint)


def find_moves(
    drifting: Drifting,
    stacks: Mapping[str, Stack],
    only: Sequence[str],
    python: str | None,
    unavailable: dict[str, str] | None = None,
) -> list[StackMove]:
    """Return the stacks that move: those of `only` (UPSTREAM or UPSTREAM@REVISION), else upstreams that name companions.

    An upstream that names revisions of others (`companions`) moves to its newest release, and the others to the newer
    releases that it names there. An upstream whose sources cannot be had is noted in `unavailable`, with the reason, and
    stays. Raises SourceUnavailable for it if `unavailable` is None, WrongUse.
    """
    moves = dict[str, StackMove]()
    leading = only or [name for name in stacks if drifting.dist.upstream(name).companions]
    for one in leading:
        name, _, revision = one.partition("@")
        if name not in stacks:
            raise WrongUse(f"the release has no stack of {name}", hint=f"it has {', '.join(stacks)}")
        with _noting(name, unavailable):
            newest = revision or drifting.releases_of(stacks[name]).newest(python).by_kind.get("release")
            if newest is not None:
                _check_available(drifting, stacks[name], newest)
                why = "asked for" if revision else "its newest release"
                moves[name] = StackMove(name, stacks[name].name, newest, why)
    for move in [] if only else [*moves.values()]:
        (release,) = drifting.releases_of(stacks[move.upstream]).named([move.to])
        for name, revision in companions_of(drifting.dist.upstream(move.upstream), release).items():
            if name in stacks and name not in moves and drifting.releases_of(stacks[name]).is_newer(revision):
                with _noting(name, unavailable):
                    _check_available(drifting, stacks[name], revision)
                    moves[name] = StackMove(name, stacks[name].name, revision, f"{move.upstream} {move.to} names it")
    return [moves[name] for name in stacks if name in moves]


def moved_apart(drifting: Drifting, stacks: Mapping[str, Stack], moves: Sequence[StackMove]) -> list[str]:
    """Return what the files of stacks name of upstreams that move without them, or that they move without, a line each."""
    to = {move.upstream: move.to for move in moves}
    found = list[str]()
    for name, stack in stacks.items():
        companions = drifting.dist.upstream(name).companions
        if companions is None or to.keys().isdisjoint({name, *companions.revisions}):
            continue  # before its source is fetched
        named = named_by(drifting, stack, to.get(name))
        own = f"{name} {to.get(name) or pinned_as(stack)}"
        if name in to and not named:  # an archive may lack the file
            others = [other for other in companions.revisions if other in stacks]
            found.append(f"{own} names none of {', '.join(others)} in {companions.file}: look up which go with it")
        for other, revision in named.items():
            if other not in stacks or not {name, other} & to.keys():
                continue
            if other in to:
                if not is_same(to[other], revision):
                    found.append(f"{own} names {other} {revision}, and {other} moves to {to[other]}")
            elif not is_pinned(drifting, stacks[other], revision):
                stays = f"{other} stays at {pinned_as(stacks[other])}"
                found.append(f"{own} names {other} {revision}, and {stays}: `--only {other}@{revision}` moves it too")
    return found


@contextmanager
def _noting(upstream: str, unavailable: dict[str, str] | None) -> Iterator[None]:
    try:
        yield
    except SourceUnavailable as error:
        if unavailable is None:
            raise
        unavailable[upstream] = error.what


def _check_available(drifting: Drifting, stack: Stack, revision: str) -> None:
    """Check that a rebase can get both revisions. Raises SourceUnavailable."""
    upstream, options, releases = drifting.dist.upstream(stack.upstream), drifting.options, drifting.releases_of(stack)
    in_git = options.source != "sdist" and bool(upstream.git or options.mirrors.get(stack.upstream))
    if in_git and releases.commit_of(revision) is None:
        sdist = "; `--source sdist` takes the package index's archive" if upstream.sdist else ""
        hint = f"`--mirror {stack.upstream}=URL` names another place{sdist}"
        raise SourceUnavailable(
            f"{stack.upstream}: no place tells which commit {revision} is", releases.tried, hint=hint
        )
    releases.base()
    releases.named([revision])


def arrived_stack(dist: Distribution, move: StackMove, name: str | None) -> Stack | None:
    """Return the stack of a move that has its patches already: the one `name`, whose rebase was begun, or that of a bump before."""
    to = move.to.removeprefix(f"{move.upstream}/")
    of_archive = release_prefix(dist.stack(move.upstream, move.stack), dist.upstream(move.upstream)) + to
    stacks = [stack_at(dist, move.upstream, one) for one in ([name] if name else [to, of_archive])]
    stack = next((one for one in stacks if one is not None and one.name != move.stack), None)
    return stack if stack and (stack.patches or stack.extends or stack.dropped or stack.postponed) else None


def check_places(dist: Distribution, state: BumpState) -> None:
    """Check that each rebase to come has a work tree of its own. Raises WrongUse, LocalEdits."""
    for move in state.moves:
        if arrived_stack(dist, move, None) is not None:
            continue
        place = RebaseWorktree(work_tree(dist.root, state, move.upstream))
        if place.held is not None:
            hint = f"`patchctl rebase --dir {shlex.quote(str(place.folder))} --abort`, or another release with --to"
            raise WrongUse(f"a rebase of a bump before is under way in {place.folder}", hint=hint)
        if place.folder.exists() and any(place.folder.iterdir()):
            hint = "move it away, or name another release with --to"
            raise LocalEdits(f"{place.folder} is there already", [str(place.folder)], hint=hint)


def release_text(old: Release, new: str, stacks: Mapping[str, Stack], requirements: str | None = None) -> str:
    """Return the manifest of a release that extends another, with these stacks and, if needed, its own requirement set."""
    what = " and ".join(f"{u} {s.pin.tag or s.name}" for u, s in stacks.items())
    rows = [f"  {upstream}: {plain(stack.name)}" for upstream, stack in stacks.items()]
    lines = [
        "# yaml-language-server: $schema=../schema/release.schema.json",
        f"schema: {FORMAT}",
        f'name: "{new}"',
        f"summary: {old.name} with {what or 'nothing new'}.",
        f'extends: "{old.name}"',
        *(["stacks:", *rows] if rows else []),
        *([f'requirements: "{requirements}"'] if requirements else []),
    ]
    return "\n".join(lines) + "\n"


def write_release(
    dist: Distribution, old: Release, new: str, stacks: Mapping[str, Stack], requirements: str | None = None
) -> None:
    """Write the new release's manifest."""
    text = release_text(old, new, stacks, requirements)
    _loads(text, new)
    replace_file(dist.root / "manifests" / "releases" / f"{new}.yaml", text.encode())


def own_requirements(dist: Distribution, new: str) -> str | None:
    """Give the new release a requirement set if its stacks declare other requirements than the old one's; return its name.

    The set is a copy under the release's name, to be locked anew.
    """
    named = dist.release(new).requirements
    if named is None or named == new:
        return named and new
    there = read_set(dist, named)
    if not list(stale(dist, there, read_declared(there))):
        return None
    folder = there.folder.with_name(new)
    # Includes the locks, so that versions stay where possible, and declared.txt, so that unmoved stacks need no source.
    for file in there.folder.iterdir():
        data = file.read_bytes()
        if file.name == "set.yaml":  # its summary may name the release, too
            data = re.sub(rb"(?m)^name: .*", f'name: "{new}"'.encode(), data)
            data = re.sub(rb"(?m)^summary: .*", lambda line: line[0].replace(named.encode(), new.encode()), data)
        replace_file(folder / file.name, data)
    return new


def changed_requirements(
    dist: Distribution, old: Release, new: str, stacks: Iterable[Stack], options: SourceOptions, progress: Progress
) -> list[str]:
    """Return what files of the new stacks ask for and those of the old release's did not, a line each, and what went; or why a file
    cannot be read."""
    if old.requirements is None:
        return []
    own = dist.releases[new].requirements if new in dist.releases else None
    before = read_declared(read_set(dist, old.requirements))
    named, found = read_set(dist, own or old.requirements), list[str]()
    for stack in stacks:
        try:
            found += changes(before, declared_by(dist, named, stack, read_declared(named), options, progress))
        except (SourceUnavailable, BadManifest) as error:
            found.append(error.what)
    return found


def make_file(dist: Distribution, stack: Stack, made: Made, options: SourceOptions, progress: Progress) -> str | None:
    """Let the distribution's program write a file of a patched stack, unless it is there; return why that failed, else None."""
    file = dist.root / made.folder / f"{stack.name}{made.suffix}"
    if file.exists():
        return None
    python = os.environ.get(VARIABLE) or "python3"
    with scratch("patchctl-made-") as folder:
        try:
            if ask([python, "-c", f"import {made.needs}"], _SECONDS, cwd="/").returncode:
                return f"{python} has no {made.needs}: {VARIABLE} names one that has"
            base = obtain(dist.upstream(stack.upstream), stack, options, progress)
            result = build_stack(base, load_patches(dist, stack), [], options.cache)
            make_edit_tree(folder / "tree", stack, base, result)
            progress.note(f"making {made.folder}/{file.name}")
            line = [python, str(dist.root / made.program), str(folder / "tree"), "--out", str(folder / "made")]
            done = ask(line, _SECONDS, cwd=folder)
        except SourceUnavailable as error:
            return error.what
        except (OSError, subprocess.SubprocessError) as error:
            return one_line(str(error))
        finally:
            progress.finish()
        if done.returncode or not (folder / "made").is_file():
            return f"{made.program} ended with {done.returncode}: {one_line(done.stderr.strip()[-400:])}"
        replace_file(file, (folder / "made").read_bytes())
    return None


def _loads(text: str, new: str) -> None:
    from patchctl.manifest.load import loads

    loads(text.encode(), Release, f"manifests/releases/{new}.yaml")


@dataclass(frozen=True)
class PatchClass:
    """How a patch of the new stack differs from the old stack's."""

    feature: Annotated[str, Doc("feature name")]
    kind: Annotated[
        Class,
        Doc(
            "`same` (byte for byte), `context` (same changed lines, different context), `content`, `added`, `dropped`"
            " or `postponed`"
        ),
    ]
    reason: Annotated[str | None, Doc("why the patch was dropped or postponed; null otherwise")] = None
    merge: Annotated[
        str | None,
        Doc(
            "`clean` (merged by git), `resolved` (by hand) or `replayed` (from a recorded resolution); null if not known"
        ),
    ] = None
    proof: Annotated[str | None, Doc("why no record proves the patch on the new stack; null if one does")] = None
    met: Annotated[str | None, Doc("`Drop-When` of the patch, if it names a version that the new pin has reached")] = (
        None
    )


def compare_stacks(dist: Distribution, old: Stack, new: Stack, merges: Mapping[str, str]) -> list[PatchClass]:
    """Compare the patches of two stacks, in the new stack's order, dropped ones last. `merges` as in the state."""
    before = {p.feature: p for p in load_patches(dist, old)}
    evidence, upstream = Evidence(dist), dist.upstream(new.upstream)
    release = new.pin.tag or (new.pin.sdist.version if new.pin.sdist else "")
    found = []
    for p in load_patches(dist, new):
        until = p.header.trailer("Drop-When")
        met = until if until and is_met(until, new.upstream, release, release_prefix(new, upstream)) else None
        kind, merge, proof = _kind(before.get(p.feature), p), merges.get(p.feature), evidence.unproven(new, p)
        found.append(PatchClass(p.feature, kind, merge=merge, proof=proof, met=met))
    found += [PatchClass(feature, "dropped", why) for feature, why in new.dropped.items() if feature in before]
    return found + [
        PatchClass(feature, "postponed", why) for feature, why in new.postponed.items() if feature in before
    ]


def _kind(before: StackPatch | None, after: StackPatch) -> Class:
    if before is None:
        return "added"
    if before.digest == after.digest:
        return "same"
    return "context" if _lines(before) == _lines(after) else "content"


def _lines(patch: StackPatch) -> list[object]:
    """Return what a patch changes: paths, removed and added lines, carried files; no context and no line numbers."""
    changes = [
        (c.kind, c.old_path, c.new_path, [line for h in c.hunks for line in _changed(h)]) for c in patch.patch.changes
    ]
    return [changes, patch.carried]


def _changed(hunk: Hunk) -> Iterator[tuple[int, bytes]]:
    old, new = iter(hunk.old), iter(hunk.new)
    for mark in hunk.marks:
        line = next(new) if mark == ord("+") else next(old)
        if mark == ord(" "):
            next(new)
        else:
            yield mark, line
