"""Starts a rebase: finds the target and the revisions on the way, and makes a work tree with all their objects."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.errors import LocalEdits, SourceUnavailable, Tried, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.pack import bring_pack
from patchctl.git.worktree import import_base
from patchctl.manifest.distribution import Distribution, check_outside
from patchctl.manifest.files import exclusive_writer
from patchctl.manifest.types import Pin, Stack
from patchctl.manifest.yamltree import plain
from patchctl.pin.pin import find_pin, stack_name
from patchctl.rebase.cherry_pick import work_of
from patchctl.rebase.rebase_state import RebaseRun, RebaseState, RebaseWorktree, Stage, hold, write_state
from patchctl.rebase.resolutions import Resolutions
from patchctl.source.git_form import Revisions, release_prefix, version_of
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.types import FORMS, Base, SourceOptions
from patchctl.source.upstream_releases import RevisionTree
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import build_stack, load_patches, missing_files
from patchctl.stack.result_cache import StackResult
from patchctl.terminal.progress import Progress
from patchctl.workspace.edit import default_folder, make_edit_tree


@dataclass(frozen=True)
class RebaseRequest:
    """A rebase as requested: the stack, its target, the releases on the way ("all" or names), options. `commit` is the target's
    commit that a plan expects."""

    old: Stack
    to: str
    through: str | None
    folder: Path | None
    name: str | None
    drop_upstreamed: bool
    python: str | None
    commit: str | None = None
    prove: bool = False


def start(
    dist: Distribution, request: RebaseRequest, options: SourceOptions, progress: Progress
) -> tuple[RebaseRun, RebaseState]:
    """Make the work tree, which is ours until a patch stops. Does not change the distribution.

    Raises SourceUnavailable, WrongUse for a target that has patches or a rebase that is under way, LocalEdits.
    """
    old = request.old
    new, text = _target(dist, request, options, progress)
    if request.commit not in (None, new.pin.identity):
        hint = "the plan was made of another place: give the same --mirror"
        raise WrongUse(
            f"{request.to} is commit {new.pin.identity} here, and the plan is for {request.commit}", hint=hint
        )
    place = RebaseWorktree((request.folder or default_folder(new)).absolute())
    check_outside(dist.root, place.folder)
    _check_free(place)
    patches = load_patches(dist, old)
    if not patches:
        raise WrongUse(f"{old.upstream}/{old.name} has no patches to bring", hint="`patchctl list stacks`")
    between = _between(dist, request, new, options)
    bases = _bases(dist, [old, *between, new], patches, options, progress)
    result = build_stack(bases[0], patches, [], options.cache)
    generator = _generator(dist, old, bases, patches, options, progress)
    with exclusive_writer(dist.root):
        return RebaseRun(dist, place, options, progress), _made(
            dist, request, place, new, text, (between, bases, result, generator)
        )


def _made(
    dist: Distribution,
    request: RebaseRequest,
    place: RebaseWorktree,
    new: Stack,
    text: str,
    found: tuple[list[Stack], list[Base], StackResult, Base | None],
) -> RebaseState:
    """Make the work tree with every object that a stage needs; returns the first state."""
    between, bases, result, generator = found
    old = request.old
    _check_free(place)
    for left in (place.hidden, place.gone):  # of runs that were killed before one had begun, or when one was given up
        shutil.rmtree(left, ignore_errors=True)
    make_edit_tree(place.hidden, new, bases[-1], _nothing(bases[-1]))
    git_dir = place.hidden / ".git"
    for base in [*bases[:-1], *([generator] if generator else [])]:
        import_base(git_dir, base.repo)
    if result.pack is not None:
        bring_pack(result.pack, git_dir / "objects" / "pack")
    Resolutions(dist.root, old.upstream).link(git_dir)
    stages = tuple(Stage(s.pin.tag or s.name, b.commit) for s, b in zip((*between, new), bases[1:], strict=True))
    commits = tuple((p.patch.feature, p.commit) for p in result.steps)
    state = RebaseState(
        old.upstream,
        old.name,
        new.name,
        text,
        new.pin.identity,
        bases[0].commit,
        tuple(c for _, c in commits),
        stages,
        0,
        commits,
        stages[0].base,
        request.drop_upstreamed,
        request.python,
        request.prove,
        generator=generator.commit if generator else None,
    )
    hold(work_of(place.hidden), state)
    return write_state(place.hidden, state)


def _target(
    dist: Distribution, request: RebaseRequest, options: SourceOptions, progress: Progress
) -> tuple[Stack, str]:
    """The new stack and its manifest's text: one that `pin` wrote, or one found now and written by `finish`."""
    old, name = request.old, request.to.removeprefix(f"{request.old.upstream}/")
    known, own = None if request.name else stack_at(dist, old.upstream, name), request.name
    if known is not None and known.patches and (head := moved_on(dist, known, name, options)) is not None:
        known, own = None, head[:8]
    if known is None:
        pinned = find_pin(dist, old, name, options, progress, name=own)
        return pinned.stack, pinned.text
    if known.patches or known.extends or known == request.old:
        hint = "name a revision, and the new stack with --name; or take the patches out of it first"
        raise WrongUse(f"{known.upstream}/{known.name} has patches already", hint=hint)
    if known.comes_from not in (None, request.old.name):
        raise WrongUse(
            f"{known.upstream}/{known.name} comes from {known.comes_from}, not {request.old.name}",
            hint=f"`patchctl rebase {known.upstream}/{known.comes_from} --to {known.name}`",
        )
    text = dist.stack_file(known).read_text(encoding="utf-8")
    if known.comes_from is None:
        own = f"\ncomes_from: {plain(request.old.name)}"
        text, added = re.subn(r"(?m)^name:.*?(?=\r?$)", lambda line: line[0] + own, text, count=1)
        if not added:
            hint = "write `name:` at the beginning of a line of its own"
            raise WrongUse("the manifest has no line `name:`", where=str(dist.stack_file(known)), hint=hint)
    return replace(known, comes_from=request.old.name), text


def stack_at(dist: Distribution, upstream: str, revision: str) -> Stack | None:
    """The stack that is named for a revision."""
    return dist.stacks.get((upstream, revision)) or dist.stacks.get((upstream, stack_name(revision)))


def moved_on(dist: Distribution, stack: Stack, branch: str, options: SourceOptions) -> str | None:
    """The head of the branch that the stack is named for and pinned on, if that is another commit now."""
    if stack.pin.commit is None or stack.pin.tag is not None:
        return None
    upstream = dist.upstream(stack.upstream)
    found = Revisions(stack.upstream, upstream, release_prefix(stack, upstream), options).find(branch)
    return None if found is None or found.commit == stack.pin.commit else found.commit


def _check_free(place: RebaseWorktree) -> None:
    if place.held is not None:
        hint = "`patchctl rebase --continue`, or `patchctl rebase --abort`"
        raise WrongUse(f"a rebase is under way in {place.held}", hint=hint)
    if place.folder.exists() and any(place.folder.iterdir()):
        raise LocalEdits(
            f"{place.folder} is there already",
            [str(place.folder)],
            hint="export and remove it, or name another with --dir",
        )


def _between(dist: Distribution, request: RebaseRequest, new: Stack, options: SourceOptions) -> list[Stack]:
    """The releases between old and new, as stacks without patches, oldest first."""
    if request.through is None:
        return []
    old, upstream = request.old, dist.upstream(request.old.upstream)
    prefix = release_prefix(old, upstream)
    revisions = Revisions(old.upstream, upstream, prefix, options)
    found: Sequence[tuple[str, str]] = []
    hint = f"`--mirror {old.upstream}=URL` names a git repository that has them, which may be a local clone"
    if request.through == "all":
        after, before = (version_of(s.pin.tag or s.name, prefix) for s in (old, new))
        if after is None or before is None:
            raise WrongUse(
                "--through all goes by versions, and a pin has no tag that is one", hint="--through TAG,TAG names them"
            )
        known = revisions.releases()
        if not known:
            raise SourceUnavailable(f"{old.upstream}: no place tells its releases", revisions.tried, hint=hint)
        found = [named for version, named in known.items() if after < version < before]
    else:
        for name in filter(None, map(str.strip, request.through.split(","))):
            revision = revisions.find(name)
            if revision is None:
                raise SourceUnavailable(f"{old.upstream}: no place knows {name}", revisions.tried, hint=hint)
            found = [*found, (revision.tag or name, revision.commit)]
    return [replace(new, name=name, pin=Pin(commit, None, name)) for name, commit in found]


def _bases(
    dist: Distribution,
    stacks: Sequence[Stack],
    patches: Sequence[StackPatch],
    options: SourceOptions,
    progress: Progress,
) -> list[Base]:
    """The bases of all stacks in one form, git first, then source distributions; if no form has all, each in any form.

    Mixing forms is safe: a pick applies what the patches change, not the files that one form lacks. Raises SourceUnavailable.
    """
    name, upstream = stacks[0].upstream, dist.upstream(stacks[0].upstream)
    lost: list[Tried] = []
    for form in (*FORMS, None) if options.source == "auto" else (options.source,):
        try:
            if form is None:
                bases = [obtain(upstream, stack, options, progress) for stack in stacks]
            else:
                bases = [obtain_form(form, upstream, stack, options, progress) for stack in stacks]
        except SourceUnavailable as failure:
            lost += failure.tried if form else []  # the last way asks the same places
            continue
        lacking = missing_files(bases[0], patches)
        if not lacking:
            progress.finish()
            return bases
        named = ", ".join(p.feature for p, _ in lacking)
        raise SourceUnavailable(
            f"the {bases[0].form} of {name} lacks files of {named}",
            lost,
            hint=f"--mirror {name}=URL names a git repository, which has every file",
        )
    names = ", ".join(s.name for s in stacks)
    raise SourceUnavailable(
        f"{name}: no form has all of {names}", lost, hint=f"`--mirror {name}=URL` names another place"
    )


def _generator(
    dist: Distribution,
    old: Stack,
    bases: Sequence[Base],
    patches: Sequence[StackPatch],
    options: SourceOptions,
    progress: Progress,
) -> Base | None:
    """The old pin with the script that makes files which a patch changes, if the source of a revision lacks the script.

    None too if no source of the old pin has it: then the rebase stops at such a patch.
    """
    how = dist.upstream(old.upstream).regenerated
    paths = {p for patch in patches for c in patch.patch.changes for p in (c.old_path, c.new_path) if p is not None}
    if how is None or not any(p.startswith(how.prefix.encode()) for p in paths):
        return None
    if all(_has(base, how.script) for base in bases[1:]):
        return None
    if _has(bases[0], how.script):
        return bases[0]
    try:
        found = obtain_form("git", dist.upstream(old.upstream), old, options, progress)
    except SourceUnavailable:
        return None
    finally:
        progress.finish()
    return found if _has(found, how.script) else None


def _has(base: Base, path: str) -> bool:
    with ObjectReader(base.repo) as reader:
        return RevisionTree(reader, base.tree).entry(os.fsencode(path)) is not None


def _nothing(base: Base) -> StackResult:
    return StackResult(base.commit, base.tree, base.commit, base.tree, (), None)
