"""What `patchctl bump` does: moves stacks by rebases, writes the release, proves it; it is gone on with after each stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from patchctl.atomic import replace_file
from patchctl.bump import (
    BumpState,
    PatchClass,
    StackMove,
    arrived_stack,
    changed_requirements,
    check_new,
    check_places,
    compare_stacks,
    find_moves,
    make_file,
    moved_apart,
    newest_release,
    next_point,
    note_arrival,
    own_requirements,
    read_state,
    state_file,
    work_tree,
    write_release,
    write_state,
)
from patchctl.check.distribution import verify_distribution
from patchctl.check.pages import write_documents
from patchctl.cli.app import App
from patchctl.cli.generated_pages import generated_pages
from patchctl.cli.prove_verb import prove_stack
from patchctl.cli.sources import Sources
from patchctl.drift.drift import Drifting
from patchctl.drift.outdated import effort
from patchctl.errors import DONE, SOMEBODY_HAS_TO_WORK, DoesNotApply, PatchctlError, WrongUse
from patchctl.git.branch import Branch, commit_all, enter, leave, plan_branch
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import exclusive_writer
from patchctl.manifest.types import Release, Stack
from patchctl.pin.pin import unprovided_imports
from patchctl.prove.proof_trees import check_provable
from patchctl.rebase.rebase import accept_resolution, clear_locks, to_next_stop
from patchctl.rebase.rebase_state import RebaseRun, RebaseState, RebaseWorktree, locked, new_stack
from patchctl.rebase.rebase_state import read_state as read_rebase
from patchctl.rebase.start import RebaseRequest, moved_on, start
from patchctl.report.bump import (
    BumpOutput,
    BumpStop,
    aborted_text,
    bump_text,
    moves_text,
    report_markdown,
    stopped_text,
)
from patchctl.report.stacks import rebase_stopped
from patchctl.requirements.relock import relock
from patchctl.source.types import SourceOptions
from patchctl.stack.export import share_carried
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import Style


def begin(
    app: App,
    release: str | None,
    to: str | None,
    only: tuple[str, ...],
    branch: str | None,
    sources: Sources,
    *,
    dry_run: bool,
    prove: bool,
    skip_unavailable: bool,
    as_json: bool,
) -> int:
    """Find what moves, and do it unless this is a dry run; on a `branch` unless it is None (where it is empty, `bump/NEW`)."""
    dist = app.distribution
    old = dist.release(release) if release else newest_release(dist)
    to = to or next_point(dist, old)
    check_new(dist, to)
    place = None if branch is None or dry_run else _planned_branch(dist, branch or f"bump/{to}")
    stacks = {u: dist.stack(u, name) for u, name in old.stacks.items()}
    options = sources.options()
    drifting = Drifting(dist, options, app.progress(as_json))
    unavailable = dict[str, str]()
    moves = find_moves(drifting, stacks, only, old.python, unavailable if skip_unavailable else None)
    apart = moved_apart(drifting, stacks, moves)
    drifting.progress.finish()
    state = BumpState(
        old.name,
        to,
        moves,
        prove,
        unavailable=unavailable,
        apart=apart,
        branch=place,
        source=sources.source,
        mirrors=sources.kept(),
    )
    if dry_run or not moves:
        drifts = {m.upstream: drifting.stack(stacks[m.upstream], [m.to]).releases[0] for m in moves}
        drifting.progress.finish()
        efforts = {u: effort(drift) for u, drift in drifts.items()}
        data = BumpOutput(old.name, to, moves, "dry run" if moves else "nothing to move", efforts=efforts)
        states = {u: {p.feature: p.state for p in drift.patches} for u, drift in drifts.items()}
        data = replace(data, unavailable=unavailable, apart=apart, states=states)
        app.emit("bump", data, lambda style: moves_text(state, style, efforts, states), as_json)
        return DONE
    check_places(dist, state)
    with exclusive_writer(dist.root):
        write_state(dist.root, state)
    return _Bump(app, state, options, as_json).go_on()


def end_or_go_on(app: App, action: str, named: bool, sources: Sources, *, prove: bool, as_json: bool) -> int:
    """Abort or continue the bump under way, without proofs unless `prove`. Raises WrongUse if a release or an upstream is `named`."""
    if named:
        raise WrongUse(f"--{action} is for the bump under way", hint="name no release and no upstream")
    root = app.distribution.root
    state = read_state(root)
    if action == "continue":
        sources = sources.after(state.source, state.mirrors)
        state = replace(state, prove=state.prove and prove, source=sources.source, mirrors=sources.kept())
        with exclusive_writer(root):
            write_state(root, state)
        return _Bump(app, state, sources.options(), as_json).go_on()
    with exclusive_writer(root):
        if state.branch is not None:
            leave(root, state.branch, f"Release {state.new}, given up")
        state_file(root).unlink()
    data = BumpOutput(
        state.release, state.new, state.moves, "aborted", stacks=state.stacks, branch=_name_of(state.branch)
    )
    places = [_Bump(app, state, sources.options(), as_json).place_of(move) for move in state.moves]
    held = [str(place.folder) for place in places if place.held is not None]
    app.emit("bump", data, lambda style: aborted_text(state, held, style), as_json)
    return DONE


def _planned_branch(dist: Distribution, name: str) -> Branch:
    """A branch that the bump's work trees will not be on. Raises WrongUse."""
    if name in dist.releases:
        raise WrongUse(
            f"{name} is a release, and stands where --branch has its name", hint="name RELEASE before --branch"
        )
    replace_file(dist.root / "edit" / ".gitignore", b"*\n")
    return plan_branch(dist.root, name)


def _name_of(branch: Branch | None) -> str | None:
    return branch.name if branch is not None else None


@dataclass
class _Bump:
    """A bump under way, and what its steps need."""

    app: App
    state: BumpState
    options: SourceOptions
    as_json: bool

    @property
    def dist(self) -> Distribution:
        return self.app.distribution

    @property
    def progress(self) -> Progress:
        return self.app.progress(self.as_json)

    def go_on(self) -> int:
        """Every move that has not arrived yet, then the release, then the proofs."""
        if self.state.branch is not None:
            with exclusive_writer(self.dist.root):
                enter(self.dist.root, self.state.branch)
            self.app.forget_distribution()
        for move in self.state.moves:
            if (stopped := self._arrive(move)) is not None:
                stop = stopped[1].stop
                at = BumpStop(move.upstream, stop.feature, stop.paths, stop.reason) if stop else None
                old, stacks = self.dist.release(self.state.release), self.state.stacks
                arrived = [
                    arrived_stack(self.dist, m, stacks[m.upstream]) for m in self.state.moves if m.upstream in stacks
                ]
                new = {stack.upstream: stack for stack in arrived if stack is not None}
                asks = self._asks(old, [*new.values(), new_stack(stopped[1])])
                data = self._output("stopped", stop=at, patches=self._classes(old, new), requirements=asks)
                self._emit(data, lambda data, style: rebase_stopped(*stopped))
                return DoesNotApply.code
        dist, state = self.dist, self.state
        old, new = dist.release(state.release), {u: dist.stack(u, name) for u, name in state.stacks.items()}
        if not state.told and (missing := self._unprovided(old, new)):
            self._note(told=True, imports=missing)
            asks = self._asks(old, new.values())
            self._emit(self._output("stopped", imports=missing, requirements=asks), stopped_text)
            return SOMEBODY_HAS_TO_WORK
        if state.new not in dist.releases:
            self._write_release(old, new)
        try:
            self._write_what_follows(old, new)
        except PatchctlError as error:  # most often requirements without a solution
            known = {"imports": state.imports, "requirements": self._asks(old, new.values())}
            open_ = [*state.open, error.what]
            self._report(self._output("stopped", patches=self._classes(old, new), open=open_, **known))
            raise
        asks = self._asks(old, new.values())
        unmade, by_hand = self._make_what_follows(new.values())
        if unmade and not state.asked:
            self._note(asked=True)
            data = self._output(
                "stopped", patches=self._classes(old, new), open=state.open, requirements=asks, unmade=unmade
            )
            self._emit(data, stopped_text)
            return SOMEBODY_HAS_TO_WORK
        red = self._prove(new.values()) if state.prove else []
        more = {"imports": state.imports, "requirements": asks, "unmade": unmade, "by_hand": by_hand}
        data = self._output(
            "stopped" if red else "done",
            patches=self._classes(old, new),
            red=red,
            open=state.open,
            left=self._left(),
            **more,
        )
        files = {move.upstream: self.place_of(move).range_diff for move in state.moves}
        self._emit(data, bump_text, {u: f.read_text("utf-8", "replace") for u, f in files.items() if f.is_file()})
        if not red:
            state_file(dist.root).unlink(missing_ok=True)
        return SOMEBODY_HAS_TO_WORK if red or state.open or data.unproven or unmade or data.left else DONE

    def _classes(self, old: Release, new: Mapping[str, Stack]) -> dict[str, list[PatchClass]]:
        dist, merges = self.dist, self.state.merges
        return {u: compare_stacks(dist, dist.stack(u, old.stacks[u]), s, merges.get(u, {})) for u, s in new.items()}

    def _asks(self, old: Release, new: Iterable[Stack]) -> list[str]:
        try:
            return changed_requirements(self.dist, old, self.state.new, new, self.options, self.progress)
        finally:
            self.progress.finish()

    def _note(self, **changed: Any) -> None:
        self.state = write_state(self.dist.root, replace(self.state, **changed))

    def _output(self, status: str, **more: Any) -> BumpOutput:
        state = self.state
        report = self.dist.root / "edit" / f"bump-{state.new}.md"
        known: dict[str, Any] = {"stacks": state.stacks, "unavailable": state.unavailable, "apart": state.apart}
        known |= {"branch": _name_of(state.branch), "report": report}
        return BumpOutput(state.release, state.new, state.moves, status, **known, **more)

    def _emit(
        self,
        data: BumpOutput,
        text: Callable[[BumpOutput, Style], Iterable[str]],
        range_diffs: Mapping[str, str] | None = None,
    ) -> None:
        """Report, and print."""
        self._report(data, range_diffs)
        where = [f"on branch {data.branch}"] if data.branch is not None else []
        self.app.emit("bump", data, lambda style: [*where, *text(data, style)], self.as_json)

    def _report(self, data: BumpOutput, range_diffs: Mapping[str, str] | None = None) -> None:
        """Write the report for a change request, and commit to the branch."""
        assert data.report is not None
        replace_file(data.report, report_markdown(data, range_diffs or {}).encode())
        if self.state.branch is not None:
            how = "as `patchctl bump` made it" if data.status == "done" else "as far as `patchctl bump` came"
            with exclusive_writer(self.dist.root):
                commit_all(self.dist.root, self.state.branch, f"Release {data.new}, {how}")

    def place_of(self, move: StackMove) -> RebaseWorktree:
        return RebaseWorktree(work_tree(self.dist.root, self.state, move.upstream))

    def _unprovided(self, old: Release, new: Mapping[str, Stack]) -> list[str]:
        dist = self.dist
        found = [
            unprovided_imports(dist, dist.stack(u, old.stacks[u]), stack, self.options, self.progress)
            for u, stack in new.items()
        ]
        return [line for lines in found for line in lines]

    def _write_release(self, old: Release, new: Mapping[str, Stack], requirements: str | None = None) -> None:
        write_release(self.dist, old, self.state.new, new, requirements)
        self.app.forget_distribution()

    def _write_what_follows(self, old: Release, new: Mapping[str, Stack]) -> None:
        """What follows from the release: shared files, its requirements, and the generated pages. Raises NoSolution."""
        for stack in new.values():
            share_carried(self.dist.root / "patches" / stack.upstream / stack.name, load_patches(self.dist, stack))
        if (named := own_requirements(self.dist, self.state.new)) is not None:
            if self.dist.release(self.state.new).requirements != named:  # else what was edited since stays
                self._write_release(old, new, named)
            relock(self.dist, self.options, self.progress, check=False, only=named)
        write_documents(self.dist, generated_pages(self.dist), check=False, strict=False)

    def _make_what_follows(self, stacks: Iterable[Stack]) -> tuple[list[str], list[str]]:
        """Make the files of `follows:` of upstreams.yaml; returns those that could not be made, and what a person does, with commands."""
        unmade, by_hand = [], []
        for stack in stacks:
            for one in self.dist.upstream(stack.upstream).follows:
                command = one.command.replace("{release}", self.state.new)
                if one.made is None:
                    by_hand.append(f"{one.what}: {command}")
                elif (why := make_file(self.dist, stack, one.made, self.options, self.progress)) is not None:
                    unmade.append(f"{one.what}: {command} ({why})")
        return unmade, by_hand

    def _arrive(self, move: StackMove) -> tuple[RebaseRun, RebaseState] | None:
        """One move to its end, or to where a person is needed. A rebase that is under way is gone on with, one that has ended is kept."""
        dist, known, place = self.dist, self.state.stacks.get(move.upstream), self.place_of(move)
        if place.held is not None:
            run = RebaseRun(dist, place, self.options, self.progress, bump=True)
            with locked(place.held):
                clear_locks(run, place.held, rebase := read_rebase(place.held))
                return self._go_on_with(run, rebase, go_on=True)
        arrived = arrived_stack(dist, move, known)
        if arrived is not None and (known or moved_on(dist, arrived, move.to, self.options) is None):
            self._note(stacks=self.state.stacks | {move.upstream: arrived.name})
            return None
        old = dist.stack(move.upstream, move.stack)
        request = RebaseRequest(old, move.to, None, place.folder, None, False, None)
        run, rebase = start(dist, request, self.options, self.progress)
        with locked(run.place.hidden):
            return self._go_on_with(replace(run, bump=True), rebase, go_on=False)

    def _go_on_with(self, run: RebaseRun, rebase: RebaseState, *, go_on: bool) -> tuple[RebaseRun, RebaseState] | None:
        """A rebase to its end, which is noted, or to its next stop. `go_on`: it has stopped before, or was killed."""
        self._note(stacks=self.state.stacks | {rebase.upstream: rebase.new})
        try:
            accepted = accept_resolution(run, rebase) if go_on else rebase
        except PatchctlError as error:  # as `rebase` says it, with the command of a bump
            error.hint = error.hint and error.hint.replace("patchctl rebase --continue", "patchctl bump --continue")
            raise
        rebase, ended, _ = to_next_stop(run, accepted, partial(note_arrival, self.dist.root))
        if ended is None:
            return run, rebase
        self.state = read_state(self.dist.root)
        self.app.forget_distribution()
        return None

    def _left(self) -> list[str]:
        """What `verify --static` finds now: what a release needs and no bump can write."""
        dist = self.dist
        report = verify_distribution(dist, None, self.progress, generated_pages(dist))
        errors = [one for one in report.findings if one.level == "error"]
        return [": ".join(filter(None, (one.file, f"{one.message} [{one.rule}]"))) for one in errors]

    def _prove(self, stacks: Iterable[Stack]) -> list[str]:
        """What the proofs of the new stacks left red, a line a feature."""
        red = []
        for stack in stacks:
            try:
                check_provable(self.dist)
                verdicts = prove_stack(self.app, stack, self.options, as_json=self.as_json)
                red += [f"{v.feature}@{stack.upstream}: {v.problems[0]}" for v in verdicts if v.problems]
            except PatchctlError as error:
                red.append(f"{stack.upstream}/{stack.name}: nothing could be proven: {error.what}")
        return red
