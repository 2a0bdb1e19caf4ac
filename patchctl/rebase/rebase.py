"""Rebases a stack: cherry-picks its patches one at a time, release by release if asked, and stops where a person is needed.

The distribution stays unchanged until the last patch has arrived (`finish`). Every step is recorded as soon as it is done
(`rebase_state`) and every resolution as soon as it is made (`resolutions`), so a killed run can be continued or aborted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal

from patchctl.errors import DoesNotApply, LocalEdits, WrongUse
from patchctl.git.history import CommitInfo, commits_between, descends
from patchctl.git.locks import drop_own, find_operation
from patchctl.git.worktree import WorkTree
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.patch.header import parse_header
from patchctl.rebase.cherry_pick import (
    Picked,
    at_work,
    clear,
    commit_as,
    drop_locks,
    drop_noted_locks,
    end_pick,
    head_of,
    pick,
    run_rerere,
    same_tree,
    taken_by,
    touched_by,
    uncommit,
    uncommitted,
    unmerged,
    unstaged,
    with_markers,
    work_of,
)
from patchctl.rebase.finish import SCRATCH, RebaseResult, finish, hand_over, take_back
from patchctl.rebase.rebase_state import (
    RebaseRun,
    RebaseState,
    RebaseStep,
    Stop,
    advanced,
    base_before,
    generated_in,
    hold,
    is_held,
    locked,
    stage_of,
    write_state,
)
from patchctl.rebase.resolutions import Regeneration
from patchctl.rebase.start import RebaseRequest, start
from patchctl.scratch import sweep
from patchctl.source.git_form import release_prefix, version_of
from patchctl.source.types import SourceOptions
from patchctl.stack.export import as_mail
from patchctl.stack.locking import lock_stack
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.workspace.edit import references_of_a_person

# Hidden files and build output are not part of a distribution.
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "edit", "__pycache__", "*.egg-info")
LOST = "it does not arrive by itself"
_HAS_IT = "upstream has it at "


def continue_(run: RebaseRun, state: RebaseState) -> RebaseState:
    """Pick until a person is needed or nothing is left. The tree is ours; at a stop it is released to the user."""
    while state.todo or state.stage + 1 < len(state.stages):
        if not state.todo:
            state = _next_stage(run, state)
            continue
        feature, commit = state.todo[0]
        left = f"{len(state.todo)} to go"
        run.progress.note(f"{state.stages[state.stage].name}: {feature}, {left}")
        state = write_state(run.place.hidden, _step(run, state, feature, commit))
        if state.stop is not None:
            run.place.release()
            return state
    return state


def to_next_stop(
    run: RebaseRun, state: RebaseState, note: Callable[[RebaseState, RebaseResult], object] | None = None
) -> tuple[RebaseState, RebaseResult | None, bool]:
    """Go on to the next stop, or to the end with the lock; returns the state, the end, and whether a lock was written.

    `note` is given the end before the work tree, which alone has it, is handed over. A run that is killed there gives it once more.
    """
    try:
        state = continue_(run, state)
        if state.stop is not None:
            return state, None, False
        ended = finish(run, state)
    finally:
        run.progress.finish()
    locked = lock_stack(Distribution.load(run.dist.root), ended.stack, run.options, run.progress, check=False)
    if note is not None:
        note(state, ended)
    hand_over(run)
    return state, ended, locked.written


def clear_locks(run: RebaseRun, tree: Path, state: RebaseState) -> None:
    """Drop what a killed run left locked in a work tree that is locked by us, and link its resolutions."""
    drop_own([tree / ".git"])
    drop_noted_locks(work_of(tree))
    if run.place.held is not None:
        run.store(state).link(tree / ".git")


def _next_stage(run: RebaseRun, state: RebaseState) -> RebaseState:
    """Queue what arrived on one release for the next; for the last one also what a release between had, and may have taken back."""
    here, number = state.stages[state.stage].name, state.stage + 1
    todo = {s.feature: s.commit for s in state.steps if s.stage == here and s.commit is not None}
    if number == len(state.stages) - 1:
        todo |= {feature: step.before for feature, step in _taken(state).items()}
    in_order = [s.feature for s in state.steps if s.stage == state.stages[0].name and s.feature in todo]
    dropped = {feature: why for feature, why in state.dropped.items() if feature not in todo}
    queued = tuple((feature, todo[feature]) for feature in in_order)
    state = replace(state, stage=number, todo=queued, dropped=dropped, head=state.stages[number].base)
    hold(work_of(run.place.hidden), state)
    clear(work_of(run.place.hidden), state.head)
    return write_state(run.place.hidden, state)


def _taken(state: RebaseState) -> dict[str, RebaseStep]:
    """The steps at which a release before had a patch already, by feature."""
    return {s.feature: s for s in state.steps if s.outcome == "dropped" and s.reason.startswith(_HAS_IT)}


def _step(run: RebaseRun, state: RebaseState, feature: str, commit: str) -> RebaseState:
    """Pick one patch: it arrives, is dropped, or stops the rebase."""
    work = work_of(run.place.hidden)
    clear(work, state.head)
    picked, outcome, notes = _picked(run, state, work, commit)
    if (before := _taken(state).get(feature)) is not None:
        if picked.commit is None or picked.empty:  # in conflict where upstream went on with what it took
            clear(work, state.head)
            return advanced(state, replace(before, stage=stage_of(state).name))
        notes = [*notes, f"{before.stage} had it, and {stage_of(state).name} has not: taken back, or in another form"]
    if picked.commit is None:
        seen = uncommitted(run.place.hidden, state.head, generated_in(state))
        paths = {os.fsdecode(p): why for p, why in picked.conflicts.items()}
        paths |= _made_by_absent(state, work, paths)
        message = work.git("cat-file", "commit", commit).decode("utf-8", "replace")
        until = next((line for line in message.splitlines() if line.startswith("Drop-When: ")), "")
        return replace(state, stop=Stop("conflict", feature, paths, seen, until))
    if picked.empty:
        clear(work, state.head)
        span = (base_before(state), state.stages[state.stage].base)
        took = taken_by(work, commit, span, state.upstream, run.dist.upstream(state.upstream), run.options)
        reason = f"{_HAS_IT}{state.stages[state.stage].name}" + (f": {took}" if took else "")
        if not state.drop_upstreamed:
            return replace(state, stop=Stop("empty", feature, reason=reason))
        return advanced(state, RebaseStep(stage_of(state).name, feature, commit, "dropped", None, reason))
    step = RebaseStep(
        stage_of(state).name, feature, commit, "replayed" if outcome else "clean", picked.commit, notes=tuple(notes)
    )
    return advanced(state, step)


def _made_by_absent(state: RebaseState, work: WorkTree, paths: Collection[str]) -> dict[str, str]:
    """The conflicting files that an earlier patch of this rebase adds, but was dropped or postponed."""
    found = {}
    for step in state.steps:
        if step.outcome in ("dropped", "postponed") and step.stage == stage_of(state).name:
            added = map(os.fsdecode, touched_by(work, step.before, "A"))
            found.update(
                dict.fromkeys(set(paths).intersection(added), f"made by {step.feature}, which is {step.outcome}")
            )
    return found


def _picked(run: RebaseRun, state: RebaseState, work: WorkTree, commit: str) -> tuple[Picked, bool, list[str]]:
    """The pick, whether an earlier resolution was replayed, and notes for the user."""
    # The whole patch first: rerere knows conflicts alone, and nothing of what was mended beside them.
    message = run.store(state).replay(work, commit, state.head)
    if message is not None:
        return commit_as(work, commit, state.head, message), True, []
    # A file that an absent patch makes is in no upstream: git would take any new one that is half like it for its new name.
    of_absent = _made_by_absent(state, work, {os.fsdecode(p) for p in touched_by(work, commit)})
    picked = pick(work, commit, renames=not of_absent)
    remembered = picked.remembered
    notes = ["its conflicts alone: what was mended beside them is not on this tree"] if picked.remembered else []
    made = run.regeneration(state)
    files = made.among({*touched_by(work, commit), *picked.conflicts})
    if not files:
        return picked, picked.remembered, notes
    if (why := made.why_not(work)) is None:
        picked, why, more = _made_anew(work, made, picked, commit, state.head, files)
        notes += more
    if why is not None and picked.commit is None:
        said = {p: f"{picked.conflicts[p]}; not made anew: {why}" for p in files if p in picked.conflicts}
        return Picked(None, picked.conflicts | said), remembered, notes
    if why is None or picked.commit is None:
        return picked, remembered, notes
    uncommit(work, commit, state.head)
    return Picked(None, dict.fromkeys(files, f"not made anew: {why}")), False, []


def _made_anew(
    work: WorkTree, made: Regeneration, picked: Picked, commit: str, head: str, files: list[bytes]
) -> tuple[Picked, str | None, list[str]]:
    """Let upstream's script regenerate the files once everything else is merged; returns the pick, why it failed, and notes.

    Other conflicts come first.
    """
    others = {p: why for p, why in picked.conflicts.items() if p not in files}
    if picked.commit is None:
        made.take_head(work, files)
        if others:
            return Picked(None, others), None, []
        picked = commit_as(work, commit, head)
    failure = made.run(work)
    if failure is not None:
        return picked, failure, []
    with at_work(work):
        work.git("commit", "--quiet", "--amend", "--no-edit", "--allow-empty", "--no-verify", "--cleanup=verbatim")
    shown = ", ".join(sorted(os.fsdecode(f) for f in files))
    return Picked(head_of(work), {}, same_tree(work, head, "HEAD")), None, [f"{shown}: made anew by upstream's script"]


def accept_resolution(run: RebaseRun, state: RebaseState) -> RebaseState:
    """Accept what the user made of a stop, a commit or staged files, and claim the tree.

    Raises DoesNotApply while files are in conflict, LocalEdits for what was not staged, WrongUse for more than one commit.
    """
    folder = run.place.held
    assert folder is not None
    if not run.place.is_ours and state.stop is None:  # killed at its very end, when the tree was given over already
        _refuse_edits(folder, state, state.head)
        folder = run.place.claim()
    if run.place.is_ours:  # of a killed run: what it had not noted is done again
        drop_locks(work_of(folder))
        return write_state(folder, replace(state, stop=None))
    work = work_of(folder)
    feature, original = state.todo[0]
    end_pick(work, original, state.head)
    if (folder / ".git" / "CHERRY_PICK_HEAD").exists():
        _check_resolved(folder, work, state)
        with at_work(work):
            commit_as(work, original, state.head)
    commit = _own_commit(folder, state, feature)
    if commit is None:  # given up with git's own --skip or --abort: begun anew
        _refuse_edits(folder, state, state.head)
        return write_state(run.place.claim(), replace(state, stop=None))
    _refuse_edits(folder, state, commit.id)
    if state.stop is not None:
        _refuse_markers(folder, state)
    made, notes = Picked(commit.id, {}), list[str]()
    regeneration = run.regeneration(state)
    files = regeneration.among(touched_by(work, original))
    if files and (why := regeneration.why_not(work)) is None:
        made, why, notes = _made_anew(work, regeneration, made, original, state.head, files)
    if files and why is not None:  # at the stop it was said, and what is committed now is the person's answer
        with at_work(work):
            clear(work, commit.id)
        notes = [f"{', '.join(sorted(map(os.fsdecode, files)))}: as it was resolved, not made anew: {why}"]
    assert made.commit is not None
    if same_tree(work, state.head, made.commit):
        hint = "`patchctl rebase --skip --reason WHY` leaves it out; `git reset --hard HEAD~1` begins it anew"
        raise DoesNotApply(f"nothing is left of {feature}: what you committed changes nothing", hint=hint)
    run.store(state).keep(work, original, state.head, made.commit)
    step = RebaseStep(stage_of(state).name, feature, original, "resolved", made.commit, notes=tuple(notes))
    return write_state(run.place.claim(), advanced(state, step))


def skip(
    run: RebaseRun, state: RebaseState, reason: str | None, outcome: Literal["dropped", "postponed"]
) -> RebaseState:
    """Drop or postpone the patch at which the rebase stopped. Raises WrongUse without a reason, LocalEdits."""
    folder = run.place.held
    assert folder is not None
    if state.stop is None or run.place.is_ours:
        raise WrongUse("the rebase has not stopped at a patch", hint="`patchctl rebase --continue` goes on with it")
    # Nothing is left of it, or its own header says that it goes with this release.
    says, name, upstream = state.stop.reason, stage_of(state).name, state.upstream
    prefix = release_prefix(run.dist.stack(upstream, state.old), run.dist.upstream(upstream))
    met = is_met(says.removeprefix("Drop-When: "), upstream, name, prefix)
    known = state.stop.kind == "empty" or name in says.split() or met
    why = reason or (state.stop.reason if known and outcome == "dropped" else "")
    if not why.strip():
        hint = '`--reason "..."` goes into the new stack\'s manifest: a patch that does not arrive has to be said'
        raise WrongUse(f"why is {state.stop.feature} {outcome}?", hint=hint)
    put_aside(run, state)
    feature, original = state.todo[0]
    step = RebaseStep(stage_of(state).name, feature, original, outcome, None, " ".join(why.split()))
    return write_state(run.place.claim(), advanced(state, step))


def is_met(drop_when: str, upstream: str, release: str, prefix: str) -> bool:
    """Whether a release of the upstream meets a `Drop-When` that begins with UPSTREAM >= VERSION; other words only a person can judge."""
    named = re.match(r"(\S+) >= ([\w.]*\w)", drop_when)
    wanted = version_of(named[2], prefix) if named and named[1] == upstream else None
    at = version_of(release, prefix)
    return wanted is not None and at is not None and at >= wanted


def abort(run: RebaseRun, state: RebaseState) -> Path | None:
    """Abort: restore the distribution and remove the work tree. Resolutions are kept; half-done work goes into the diff file
    whose path is returned. Raises LocalEdits for any other work of the user's."""
    aside = None
    sweep(SCRATCH)
    if run.place.given_up:  # by a run that was killed: no more than its tree is left
        run.place.remove()
        return None
    if not run.place.is_ours:
        folder = run.place.held
        assert folder is not None
        if state.todo:
            end_pick(work_of(folder), state.todo[0][1], state.head)
        commit = _own_commit(folder, state, state.todo[0][0]) if state.stop and state.todo else None
        if commit is not None:
            stop, work = state.stop, work_of(folder)
            sides = (state.head, state.todo[0][1])
            if marked := with_markers(folder, map(os.fsencode, stop.paths if stop else ()), sides):
                aside = run.store(state).put_aside(work, state.head, marked)
            else:
                run.store(state).keep(work, state.todo[0][1], state.head, commit.id)
            state = replace(state, stop=None, head=commit.id)
        aside = put_aside(run, state) or aside
        _refuse_references(folder, state)
        run.place.claim()
    if state.writing is not None:
        take_back(run, state)
    run.place.remove()
    return aside


def put_aside(run: RebaseRun, state: RebaseState) -> Path | None:
    """Save the user's edits of conflicting files as a diff; rerere records them once all are resolved. Raises LocalEdits for other edits."""
    folder = run.place.held
    assert folder is not None
    work = work_of(folder)
    _catch_up(folder, state)
    if work.head() != state.head and _is_nothing(folder, work, state):
        with at_work(work):
            work.git("reset", "--soft", "--quiet", state.head)
    if work.head() != state.head:
        what = f"{folder} has commits that the rebase does not know"
        raise LocalEdits(what, [str(folder)], hint="`patchctl rebase --continue` takes one; keep others elsewhere")
    if not unmerged(work):  # else a file that is half mended would count as mended
        run_rerere(work)
    now, seen = uncommitted(folder, state.head, generated_in(state)), state.stop.seen if state.stop else {}
    conflicts = state.stop.paths if state.stop else {}
    touched = {p for p in now.keys() | seen.keys() if now.get(p) != seen.get(p)}
    # A file that is as in HEAD again was settled by taking upstream's side, or reset by git: nothing of anybody's is in it.
    others = sorted(p for p in touched - conflicts.keys() if p in now)
    if others:
        hint = "commit or move them elsewhere; the files in conflict themselves are kept aside"
        raise LocalEdits(f"{folder} holds edits that would be lost", others, hint=hint)
    mine = sorted(os.fsencode(p) for p in touched & conflicts.keys() & now.keys())
    return run.store(state).put_aside(work, state.head, mine) if mine else None


def _is_nothing(folder: Path, work: WorkTree, state: RebaseState) -> bool:
    """Whether all that was committed since the stop changes nothing: the answer to a conflict that leaves nothing of the patch."""
    try:
        commits = commits_between(folder, state.head)
    except WrongUse:
        return False
    return bool(commits) and same_tree(work, state.head, commits[-1].id)


def _check_resolved(folder: Path, work: WorkTree, state: RebaseState) -> None:
    """Raise DoesNotApply or LocalEdits unless every conflict is resolved and staged."""
    hint = "mend them, `git add` (or `git rm`) them, then `patchctl rebase --continue`"
    left = unmerged(work)
    if left:
        raise DoesNotApply(
            "in conflict still\n  " + "\n  ".join(f"{os.fsdecode(p)}: {w}" for p, w in left.items()), hint=hint
        )
    _refuse_markers(folder, state)
    left_out = [*unstaged(work), *work.untracked()]
    if left_out:
        names = sorted(map(os.fsdecode, left_out))
        raise LocalEdits(
            f"changes in {folder} are not staged", names, hint="`git add` what belongs to the patch, move the rest"
        )


def _refuse_markers(folder: Path, state: RebaseState) -> None:
    """Raise DoesNotApply where a file that was in conflict holds the markers, staged or in a commit of the user's."""
    assert state.stop is not None
    if marked := with_markers(folder, map(os.fsencode, state.stop.paths), (state.head, state.todo[0][1])):
        hint = "mend them, `git add` them or amend the commit, then `patchctl rebase --continue`"
        raise DoesNotApply("with a conflict's markers still\n  " + "\n  ".join(map(os.fsdecode, marked)), hint=hint)


def _own_commit(folder: Path, state: RebaseState, feature: str) -> CommitInfo | None:
    """The one commit made since the stop, or None. Raises WrongUse for several, or for one of another feature."""
    operation = find_operation(folder / ".git")
    if operation is not None:
        if operation.mark.name == "CHERRY_PICK_HEAD":
            return None
        raise LocalEdits(
            f"{operation.name} is in progress in {folder}",
            [str(operation.mark)],
            hint=f"end it there first: {operation.way_out}",
        )
    branch = f"patchctl/{state.new}"
    if (folder / ".git" / "HEAD").read_text(encoding="utf-8").strip() != f"ref: refs/heads/{branch}":
        hint = f"bring your commit to {branch} and check it out: `git checkout -B {branch}` takes it there from where you are"
        raise LocalEdits(f"{folder} is not on its branch {branch}", [str(folder)], hint=hint)
    _catch_up(folder, state)
    commits = commits_between(folder, state.head)
    if not commits:
        return None
    if len(commits) > 1:
        raise WrongUse(
            f"{len(commits)} commits stand where {feature} was expected", hint="make one of them: `git rebase -i`"
        )
    header, _ = parse_header(as_mail(commits[0]), f"commit {commits[0].id[:12]}")
    if header.trailer("Feature") != feature:
        what = f"commit {commits[0].id[:12]} is of feature {header.trailer('Feature')}, and {feature} was expected"
        raise WrongUse(what, hint="`git commit --amend`: keep the patch's message")
    return commits[0]


def _catch_up(folder: Path, state: RebaseState) -> None:
    """Bring HEAD forward again where a reset took it back behind what has arrived: none of that is the user's. Raises LocalEdits."""
    work = work_of(folder)
    head = head_of(work)
    if head != state.head and descends(folder / ".git", state.head, head):
        _refuse_edits(folder, state, head)
        with at_work(work):
            work.git("reset", "--hard", "--quiet", state.head)


def _refuse_edits(folder: Path, state: RebaseState, head: str) -> None:
    """Raise LocalEdits if the user's tree holds anything that `head` does not."""
    found = sorted(uncommitted(folder, head, generated_in(state)))
    if found:
        raise LocalEdits(
            f"{folder} holds edits that no commit has", found, hint="amend the commit with them, or move them elsewhere"
        )


def _refuse_references(folder: Path, state: RebaseState) -> None:
    """Raise LocalEdits for branches, tags, stashes and linked work trees, which would be deleted with the tree."""
    work = work_of(folder)
    names = work.git("for-each-ref", "--format=%(refname)").decode("utf-8", "replace").split()
    found = references_of_a_person(work, (n for n in names if not is_held(n)), f"refs/heads/patchctl/{state.new}")
    if found:
        what = f"{folder} holds branches, tags, stashes or linked work trees"
        raise LocalEdits(what, found, hint="push or copy them elsewhere, and remove them")


def copy_distribution(root: Path, folder: Path) -> Path:
    """Copy everything that a proof needs; returns the copy's root."""
    return Path(shutil.copytree(root, folder / "distribution", symlinks=True, ignore=_NOT_COPIED))


def rebase_unattended(
    dist: Distribution, old: Stack, release: str, folder: Path, options: SourceOptions, progress: Progress
) -> Stack:
    """Rebase what arrives without a person, for `drift --prove` in a copy of the distribution; postpone the rest and what requires it.

    `folder` holds the work tree. Returns the new stack. Raises what a rebase raises.
    """
    own = dist.stacks.get((old.upstream, release))
    if own is not None and own.patches:
        hint = f"`patchctl prove --all --stack {own.upstream}/{own.name}`"
        raise WrongUse(f"the distribution has patches for {own.upstream}/{own.name}", hint=hint)
    requires = {p.feature: {f for f, u in p.requires if u in (None, old.upstream)} for p in load_patches(dist, old)}
    request = RebaseRequest(old, release, None, folder / "tree", None, True, None)
    run, state = start(dist, request, options, progress)
    with locked(run.place.hidden):
        state = continue_(run, state)
        while state.stop is not None:
            state = _without(run, skip(run, state, LOST, "postponed"), requires)
            state = continue_(run, state)
        return finish(run, state).stack


def _without(run: RebaseRun, state: RebaseState, requires: dict[str, set[str]]) -> RebaseState:
    """Postpone the patches that require a postponed one."""
    later = dict(state.postponed)
    for feature, _ in state.todo:
        if lost := sorted(requires[feature] & later.keys()):
            later[feature] = f"requires {lost[0]}, which does not arrive"
    todo = tuple(one for one in state.todo if one[0] not in later)
    return write_state(run.place.hidden, replace(state, todo=todo, postponed=later))
