"""The state of a rebase: one file in the work tree's git directory, replaced after every step. And what all steps need."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest
from patchctl.git.worktree import WorkTree
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.types import Stack
from patchctl.rebase.rebase_worktree import STATE_FILE, RebaseWorktree
from patchctl.rebase.regenerating import Regeneration
from patchctl.rebase.resolutions import Resolutions
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

_VERSION = 1

Outcome = Literal["clean", "resolved", "replayed", "dropped", "postponed"]
"""How a patch arrived: by git alone, by a person, by replaying an earlier resolution; or it was dropped, or postponed."""


@dataclass(frozen=True)
class RebaseStep:
    """A patch that is done."""

    stage: Annotated[str, Doc("the revision")]
    feature: Annotated[str, Doc("the feature")]
    before: Annotated[str, Doc("the commit that it was")]
    outcome: Annotated[
        Outcome,
        Doc("clean (git alone), resolved (by a person), replayed (as it was resolved before), dropped, postponed"),
    ]
    commit: Annotated[str | None, Doc("what it became; null where it did not arrive")]
    reason: Annotated[str, Doc("why it did not arrive; else empty")] = ""
    notes: Annotated[tuple[str, ...], Doc("of files that upstream's script makes")] = ()


@dataclass(frozen=True)
class Stop:
    """Where a person has to work."""

    kind: Annotated[Literal["conflict", "empty"], Doc("conflict, or empty where nothing is left of the patch")]
    feature: Annotated[str, Doc("the feature")]
    paths: Annotated[dict[str, str], Doc("each file in conflict: what is wrong with it", key="files")] = field(
        default_factory=dict
    )
    seen: dict[str, str | None] = field(default_factory=dict)
    reason: Annotated[
        str, Doc("of an empty one, what upstream has and in which commit; of a conflict, the patch's own `Drop-When`")
    ] = ""


@dataclass(frozen=True)
class Stage:
    """One revision on the way: its name and the commit that the patches go onto."""

    name: str
    base: str


@dataclass(frozen=True)
class Writing:
    """Files of the distribution that `finish` creates; and the manifest, lock and tree list before it, null if there was none."""

    files: tuple[str, ...]
    manifest: str | None
    lock: str | None = None
    listed: str | None = None


@dataclass(frozen=True)
class RebaseState:
    """A rebase in progress. `todo` are the commits still to be picked in this stage, `head` the commit that they go onto."""

    upstream: str
    old: str
    new: str
    manifest: str
    pin: str
    old_base: str
    old_commits: tuple[str, ...]
    stages: tuple[Stage, ...]
    stage: int
    todo: tuple[tuple[str, str], ...]
    head: str
    drop_upstreamed: bool
    python: str | None
    prove: bool = False
    steps: tuple[RebaseStep, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)
    postponed: dict[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    writing: Writing | None = None


def write_state(folder: Path, state: RebaseState) -> RebaseState:
    """Write the state; returns it."""
    replace_file(folder / ".git" / STATE_FILE, json.dumps({"version": _VERSION, **asdict(state)}, indent=1).encode())
    return state


def read_state(folder: Path) -> RebaseState:
    """Read the state. Raises BadManifest for anything that patchctl did not write."""
    file = folder / ".git" / STATE_FILE
    try:
        data = json.loads(file.read_bytes())
        if data.pop("version") != _VERSION:
            raise ValueError("it is of another version of patchctl")
        return _state(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove the work tree; what was resolved is kept, and the same rebase finds it again"
        raise BadManifest(f"this is no rebase's state: {error}", where=str(file), hint=hint) from error


def end_state(folder: Path) -> None:
    """Remove the state: what is left is a work tree as `edit` makes it."""
    (folder / ".git" / STATE_FILE).unlink()


def _state(data: dict[str, Any]) -> RebaseState:
    steps = tuple(RebaseStep(**{**s, "notes": tuple(s["notes"])}) for s in data.pop("steps"))
    stop, writing = data.pop("stop"), data.pop("writing")
    for key in ("old_commits",):
        data[key] = tuple(data[key])
    data["stages"] = tuple(Stage(**s) for s in data["stages"])
    data["todo"] = tuple((f, c) for f, c in data["todo"])
    if writing is not None:
        writing = Writing(**{**writing, "files": tuple(writing["files"])})
    return RebaseState(**data, steps=steps, stop=Stop(**stop) if stop else None, writing=writing)


def advanced(state: RebaseState, step: RebaseStep) -> RebaseState:
    """The state after a step."""
    own, head = {step.feature: step.reason}, step.commit or state.head
    state = replace(state, steps=(*state.steps, step), todo=state.todo[1:], head=head, stop=None)
    if step.outcome == "dropped":
        return replace(state, dropped=state.dropped | own)
    return replace(state, postponed=state.postponed | own) if step.outcome == "postponed" else state


@dataclass(frozen=True)
class RebaseRun:
    """What every step needs: the distribution, the work tree, and where sources come from."""

    dist: Distribution
    place: RebaseWorktree
    options: SourceOptions
    progress: Progress

    def store(self, state: RebaseState) -> Resolutions:
        return Resolutions(self.dist.root, state.upstream)

    def regeneration(self, state: RebaseState) -> Regeneration:
        return Regeneration(self.dist.upstream(state.upstream), state.python)


_HELD = "refs/patchctl/rebase/"


def hold(work: WorkTree, state: RebaseState) -> None:
    """Reference what the rebase needs and no branch has (patches to come, old patches, revisions), so that `git gc` keeps it."""
    wanted = {state.old_base, state.old_commits[-1], *(s.base for s in state.stages), *(c for _, c in state.todo[-1:])}
    let_go(work, but=wanted)
    work.git("update-ref", "--stdin", stdin="".join(f"update {_HELD}{c} {c}\n" for c in sorted(wanted)).encode())


def let_go(work: WorkTree, but: Collection[str] = ()) -> None:
    """Drop these references."""
    names = work.git("for-each-ref", "--format=%(refname)", _HELD).decode().split()
    gone = [name for name in names if name.removeprefix(_HELD) not in but]
    if gone:
        work.git("update-ref", "--stdin", stdin="".join(f"delete {name}\n" for name in gone).encode())


def is_held(reference: str) -> bool:
    return reference.startswith(_HELD)


def new_stack(state: RebaseState) -> Stack:
    """The new stack, as its manifest has it without patches."""
    return loads(state.manifest.encode(), Stack, f"{state.new}.yaml").value


def generated_in(state: RebaseState) -> list[str]:
    """Generated files of the work tree: upstream's build would write them, so no commit has them."""
    return [g.path for g in new_stack(state).generated]


def stage_of(state: RebaseState) -> Stage:
    """The revision that patches are being picked onto."""
    return state.stages[state.stage]


def base_before(state: RebaseState) -> str:
    """The revision that the patches come from in this stage."""
    return state.stages[state.stage - 1].base if state.stage else state.old_base
