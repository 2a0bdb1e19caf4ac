"""Text and JSON output of `import`, `pin`, `edit`, `export` and `rebase`. Computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.errors import DONE, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK, Tried
from patchctl.importing.import_patches import Imported, ImportResult
from patchctl.importing.match_base import Candidate
from patchctl.importing.types import Left
from patchctl.manifest.default_roots import edit_folder
from patchctl.manifest.types import Sdist
from patchctl.pin.upstream_files import Proposal
from patchctl.rebase.rebase_state import RebaseRun, RebaseState, RebaseStep, Stop
from patchctl.report.proving import trees_of
from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.pin.pin import PinResult
    from patchctl.rebase.finish import RebaseResult


def import_text(result: ImportResult) -> Iterator[str]:
    """Yield a line per patch, its repairs, and what to do next."""
    stack = result.target.stack
    name = f"{stack.upstream}/{stack.name}"
    yield from map(visible_line, result.said)
    for left in result.left:
        yield visible_line(f"passed over {left.file}: {left.why}")
    for patch in result.patches:
        yield visible_line(f"{patch.file}  from {patch.source}, {patch.author}: {patch.subject}")
        yield from (visible_line(f"    {note}") for note in patch.notes)
    new = " (a new stack)" if result.target.is_new else ""
    done = "in" if result.written else "dry run: would go into"
    yield f"{patch_count(len(result.patches))} {done} {name}{new}, tree {result.tip_tree[:12]}"
    waiting = sum(p.open_lines for p in result.patches)
    if not result.written:
        yield "nothing was written"
        return
    if waiting:
        yield f"{waiting} lines of headers wait to be filled in; `patchctl verify --static` names each"
    yield f"next: patchctl edit {name}, fill them in with `git rebase -i`, patchctl export {name}, patchctl lock"


@dataclass(frozen=True)
class ImportOutput:
    """What `import` prints."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack that received the patches")]
    new_stack: Annotated[bool, Doc("true if the stack was created by the import")]
    extends: Annotated[str | None, Doc("stack whose patches come first")]
    written: Annotated[bool, Doc("false with `--dry-run`")]
    base: Annotated[str, Doc("unpatched base commit")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    tip_tree: Annotated[str, Doc("tree id of the whole stack, imported patches included")]
    candidates: Annotated[Sequence[Candidate], Doc("stacks considered, best match first")]
    said: Annotated[tuple[str, ...], Doc("messages about how well the patches fit and about their order")]
    passed_over: Annotated[tuple[Left, ...], Doc("skipped files: cover letters and files that are not mails")]
    patches: Annotated[tuple[Imported, ...], Doc("imported patches, in the order they apply")]


def import_output(result: ImportResult) -> ImportOutput:
    """Return the target stack, and the result for each patch."""
    target, base = result.target, result.base
    stack = target.stack
    where = (stack.upstream, stack.name, target.is_new, stack.extends, result.written, base.commit, base.form)
    return ImportOutput(*where, result.tip_tree, target.candidates, result.said, result.left, result.patches)


def pin_text(pinned: PinResult, root: Path, *, written: bool) -> Iterator[str]:
    """Yield the pin, unavailable sources, items to review, the proposal, and what to do next."""
    stack, pin = pinned.stack, pinned.stack.pin
    name = f"{stack.upstream}/{stack.name}"
    yield f"{name}  comes from {pinned.like.name}" if pinned.like.name else f"{name}  the upstream's first stack"
    yield f"    commit  {pin.commit or 'none: the source distribution alone is pinned'}{f'  tag {pin.tag}' if pin.tag else ''}"
    yield f"    tree    {pin.tree or 'not established: no repository could be had'}"
    yield f"    sdist   {f'{pin.sdist.version}  {pin.sdist.sha256}' if pin.sdist else 'none'}"
    yield from (visible_line(f"    {base.form} from {base.origin}") for base in pinned.bases)
    yield from (visible_line(f"    not had from {t.place}: {t.reason}") for t in pinned.tried)
    yield from (visible_line(f"    {note}") for note in pinned.notes)
    if pinned.runtime:
        yield "proposal for a profile's `runtime:`, read from upstream's own files; no profile was changed:"
        yield from (visible_line(f"    {p.name:<12} {p.value:<16} {p.file}:{p.line}") for p in pinned.runtime)
    if not written:
        yield "dry run: nothing was written; the manifest would be"
        yield from pinned.text.splitlines()
        return
    yield f"written  {pinned.file.relative_to(root).as_posix()}"
    first = (
        f"new FEATURE --stack {name}"
        if not pinned.like.name
        else f"rebase {stack.upstream}/{pinned.like.name} --to {name}"
    )
    yield f"next: patchctl {first}"


@dataclass(frozen=True)
class PinOutput:
    """What `pin` prints."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("name of the new stack")]
    comes_from: Annotated[
        str | None, Doc("stack whose generated files were copied; null for the upstream's first stack")
    ]
    written: Annotated[bool, Doc("false with `--dry-run`")]
    file: Annotated[Path, Doc("path of the manifest")]
    commit: Annotated[str, Doc("pinned commit, or `sdist:SHA256` if only the source distribution is pinned")]
    tree: Annotated[str | None, Doc("tree id of the commit; null if no repository was available")]
    tag: Annotated[str | None, Doc("tag that names the commit")]
    sdist: Annotated[Sdist | None, Doc("source distribution on the package index")]
    forms: Annotated[list[str], Doc("source forms found: `git`, `sdist`")]
    generated: Annotated[list[str], Doc("generated files copied from that stack")]
    notes: Annotated[Sequence[str], Doc("evidence for each generated file, and what needs a manual check")]
    runtime: Annotated[
        Sequence[Proposal], Doc("runtime requirements found in upstream's files; no profile was changed")
    ]
    tried: Annotated[Sequence[Tried], Doc("sources that lacked something, with the reason", pairs=True)]
    manifest: Annotated[str, Doc("full text of the manifest")]


def pin_output(pinned: PinResult, *, written: bool) -> PinOutput:
    """Return the pin, and what was found on the way."""
    stack, pin = pinned.stack, pinned.stack.pin
    forms, generated = [b.form for b in pinned.bases], [g.path for g in stack.generated]
    head = (stack.upstream, stack.name, stack.comes_from, written, pinned.file)
    found = (pinned.notes, pinned.runtime, pinned.tried, pinned.text)
    return PinOutput(*head, pin.identity, pin.tree, pin.tag, pin.sdist, [*forms], generated, *found)


@dataclass(frozen=True)
class EditOutput:
    """What `edit` prints."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    folder: Annotated[Path, Doc("path of the work tree")]
    base: Annotated[str, Doc("unpatched base commit")]
    tip: Annotated[str, Doc("commit of the last patch")]


@dataclass(frozen=True)
class ExportOutput:
    """What `export` prints: files compared or written, or mails (also for upstream)."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    check: Annotated[bool | None, Doc("without `--mbox`: true if nothing was written", optional=True)] = None
    changes: Annotated[
        Sequence[str] | None, Doc("without `--mbox`: files that differ or were written", optional=True)
    ] = None
    base: Annotated[str | None, Doc("with `--mbox`: commit that the mails apply to", optional=True)] = None
    tip: Annotated[
        str | None,
        Doc("with `--mbox` but not `--for-upstream`: commit that `git am` creates from the mails", optional=True),
    ] = None
    files: Annotated[Sequence[str] | None, Doc("with `--mbox`: mails, in order", optional=True)] = None
    left_out: Annotated[
        Sequence[str] | None, Doc("with `--for-upstream`: what upstream will ask for in addition", optional=True)
    ] = None


def rebase_status(run: RebaseRun, state: RebaseState) -> Iterator[str]:
    """Yield the progress, and what to do."""
    yield from _steps(state, state.steps)
    if state.stop is not None and not run.place.is_ours:
        yield from _stop(run, state)
        return
    yield f"{patch_count(len(state.todo))} to go to {_here(state)}; the run was killed, or is under way"
    yield f"next: patchctl {'bump' if run.bump else 'rebase'} --continue, or --abort"


def rebase_stopped(run: RebaseRun, state: RebaseState) -> Iterator[str]:
    """Yield the results since the last stop, and how to continue from this one."""
    asked = [n for n, step in enumerate(state.steps) if step.outcome in ("resolved", "dropped", "postponed")]
    before = asked[-1] if asked else 0
    if before:
        yield f"{patch_count(before)} before, see patchctl rebase --status"
    yield from _steps(state, state.steps[before:])
    yield from _stop(run, state)


def _stop(run: RebaseRun, state: RebaseState) -> Iterator[str]:
    """Yield the obstacle, and the commands that continue."""
    stop = state.stop
    assert stop is not None
    folder = run.place.folder
    if stop.kind == "empty":
        yield visible_line(f"{stop.feature}: nothing is left of it at {_here(state)}; {stop.reason}")
        skip = f"{_in_bump(run)}, then patchctl bump --continue" if run.bump else f"{_rebase(run)} --skip"
        yield f"next: {skip}    (takes that as the reason; --reason TEXT gives another)"
        return
    yield f"{stop.feature}: git cannot merge it into {_here(state)}, {len(state.todo) - 1} more to go"
    yield from (visible_line(f"    {path}: {why}") for path, why in stop.paths.items())
    if stop.reason:
        yield visible_line(f"    {stop.reason}, says the patch itself")
    yield f"in {folder}: mend the files, `git add` them (`git rm` what goes); `git diff` shows both sides"
    if run.bump:
        yield "next: patchctl bump --continue"
        yield f"or leave the patch out: {_in_bump(run)} --reason TEXT, then patchctl bump --continue"
        return
    yield f"next: {_rebase(run)} --continue, or --skip --reason TEXT, or --defer --reason TEXT, or --abort"


def _rebase(run: RebaseRun) -> str:
    """The verb for this rebase, which it finds by itself in edit/ and from inside the work tree."""
    folder, here = run.place.folder.absolute(), Path.cwd()
    found = folder.parent == edit_folder().absolute() or here.is_relative_to(folder)
    return "patchctl rebase" if found else f"patchctl rebase --dir {shlex.quote(str(folder))}"


def _in_bump(run: RebaseRun) -> str:
    return f"patchctl rebase --dir {shlex.quote(str(run.place.folder))} --skip"


def rebase_done(run: RebaseRun, state: RebaseState, ended: RebaseResult) -> Iterator[str]:
    """Yield all patches, what was written and dropped, and what is not proven."""
    name = f"{state.upstream}/{state.new}"
    yield from _steps(state, state.steps)
    yield f"{name}: {patch_count(len(ended.files))} from {state.old}, {len(ended.same)} of them byte for byte as before"
    yield f"work tree {ended.folder}, range-diff {ended.range_diff}"
    yield from (visible_line(one) for one in ended.open)
    work = ended.stale & ended.unproven.keys() | ended.stack.postponed.keys()
    if ended.unproven:
        yield f"not proven on {name}: {', '.join(ended.unproven)}"
    yield {
        DONE: "nothing is stale",
        MOVES_CLEANLY: "what is stale is proven here" if ended.stale else "nothing that arrived is stale",
        SOMEBODY_HAS_TO_WORK: f"someone has to work: {', '.join(sorted(work)) or 'see above'}",
    }[ended.verdict]
    if run.bump:
        yield "next: patchctl bump --continue"
    elif ended.unproven:
        yield f"next: patchctl prove --all --stack {name} --trees {trees_of(name)}"


def rebase_aborted(state: RebaseState, kept: Path, aside: Path | None) -> Iterator[str]:
    """Yield what was removed and what was kept."""
    yield f"{state.upstream}/{state.new}: given up; the distribution is as before"
    if aside is not None:
        yield f"what was half resolved is kept in {aside}"
    yield f"what was resolved is kept in {kept}, and the same rebase takes it again"


def _here(state: RebaseState) -> str:
    return state.stages[state.stage].name


def _steps(state: RebaseState, steps: Sequence[RebaseStep]) -> Iterator[str]:
    several = len(state.stages) > 1
    for step in steps:
        where = f"{step.stage}  " if several else ""
        yield visible_line(f"{where}{step.outcome:<9} {step.feature}{f': {step.reason}' if step.reason else ''}")
        yield from (visible_line(f"    {note}") for note in step.notes)


@dataclass(frozen=True)
class RebaseOutput:
    """What `rebase` prints."""

    upstream: Annotated[str, Doc("upstream name")]
    old: Annotated[str, Doc("stack being rebased", key="from")]
    new: Annotated[str, Doc("resulting stack", key="to")]
    status: Annotated[str, Doc("`stopped` (exit code 4), `done`, `aborted` or `running`")]
    folder: Annotated[Path, Doc("path of the work tree")]
    stages: Annotated[list[str], Doc("revisions to rebase onto; the last is the new stack's")]
    stage: Annotated[str, Doc("current revision")]
    steps: Annotated[tuple[RebaseStep, ...], Doc("patches processed, in order")]
    to_do: Annotated[list[str], Doc("features still to pick at this stage")]
    dropped: Annotated[dict[str, str], Doc("dropped features, with the reason")]
    postponed: Annotated[dict[str, str], Doc("postponed features, with the reason")]
    stopped_at: Annotated[Stop | None, Doc("point that needs manual work; null if not stopped")]
    aside: Annotated[Path | None, Doc("after an abort: diff of unfinished conflict resolutions")]
    files: Annotated[tuple[str, ...], Doc("patch files written")]
    range_diff: Annotated[Path | None, Doc("file with the output of git range-diff")]
    locked: Annotated[bool, Doc("true if the lock of the new stack was written")]
    unproven: Annotated[dict[str, str], Doc("features not proven on the new stack, with the reason")]
    open: Annotated[
        list[str],
        Doc(
            "items to review: requirements not carried over, upstream names that changed and, with `--prove`, failed"
            " proofs"
        ),
    ]
    verdict: Annotated[
        int | None,
        Doc(
            "exit code of a finished rebase: 0 nothing was stale, 10 stale patches are proven on the new stack, 20"
            " manual work is needed; null if not finished"
        ),
    ]


def rebase_output(
    run: RebaseRun,
    state: RebaseState,
    ended: RebaseResult | None = None,
    *,
    status: str | None = None,
    aside: Path | None = None,
    locked: bool = False,
) -> RebaseOutput:
    """Return the progress or result."""
    told = "done" if ended else "running" if state.stop is None else "stopped"
    return RebaseOutput(
        upstream=state.upstream,
        old=state.old,
        new=state.new,
        status=status or told,
        folder=run.place.folder,
        stages=[s.name for s in state.stages],
        stage=_here(state),
        steps=state.steps,
        to_do=[feature for feature, _ in state.todo],
        dropped=state.dropped,
        postponed=state.postponed,
        stopped_at=state.stop,
        aside=aside,
        files=ended.files if ended else (),
        range_diff=ended.range_diff if ended else None,
        locked=locked,
        unproven=ended.unproven if ended else {},
        open=ended.open if ended else [],
        verdict=ended.verdict if ended else None,
    )
