"""The work tree of a rebase, which has two names, and its state: one file in the tree's git directory, replaced after every step.

Under the hidden name it is ours, and whatever a killed run left in it may be reset. Under its own name it is the user's. A rename
releases it when a patch stops, and claims it back.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from patchctl.atomic import folder_lock, replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest, WrongUse
from patchctl.git.worktree import WorkTree
from patchctl.manifest.default_roots import edit_folder
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.typeinfo import BadRecord, parse
from patchctl.manifest.types import Stack
from patchctl.rebase.resolutions import Regeneration, Resolutions
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

# In the tree's git directory; its presence marks a rebase.
STATE_FILE = "patchctl-rebase.json"
_NAME = re.compile(r"(?P<shown>[^.].*)|\.(?P<hidden>.+)\.rebase(?P<gone>-gone)?")


@dataclass(frozen=True)
class RebaseWorktree:
    """The two names of a rebase's work tree."""

    folder: Path

    @property
    def hidden(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.rebase")

    @property
    def gone(self) -> Path:
        """Where it goes to be deleted."""
        return self.folder.with_name(f".{self.folder.name}.rebase-gone")

    @property
    def range_diff(self) -> Path:
        """git's range-diff of both series, which `finish` writes beside the tree."""
        return self.folder.with_name(f"{self.folder.name}.range-diff")

    @property
    def given_up(self) -> Path | None:
        """What a killed abort left of the tree."""
        return self.gone if self.held is None and (self.gone / ".git" / STATE_FILE).is_file() else None

    @property
    def held(self) -> Path | None:
        """The folder, of the two, that holds a rebase."""
        return next((f for f in (self.hidden, self.folder) if (f / ".git" / STATE_FILE).is_file()), None)

    @property
    def is_ours(self) -> bool:
        return self.held == self.hidden

    def claim(self) -> Path:
        """Make the tree ours. A hidden tree beside a visible rebase is left over from a killed start."""
        if not self.is_ours:
            shutil.rmtree(self.hidden, ignore_errors=True)
            self.folder.rename(self.hidden)
        return self.hidden

    def release(self) -> Path:
        """Give the tree to the user."""
        self.hidden.rename(self.folder)
        return self.folder

    def remove(self) -> None:
        """Delete the tree under a third name, so that a kill leaves no half of it. The state goes last: another abort finds the
        rest by it."""
        if self.held is not None:
            shutil.rmtree(self.gone, ignore_errors=True)
            self.held.rename(self.gone)
        git_dir = self.gone / ".git"
        for one in (*self.gone.iterdir(), *git_dir.iterdir()):
            if one.is_symlink() or not one.is_dir():
                one.unlink() if one.name != STATE_FILE else None
            elif one != git_dir:
                shutil.rmtree(one)
        if self.gone.is_symlink():  # someone moved the tree to another disk, and left a link
            shutil.rmtree(self.gone.resolve())
            self.gone.unlink()
        else:
            shutil.rmtree(self.gone)


def find_worktree(folder: Path | None, start: Path, *, given_up: bool = False) -> RebaseWorktree:
    """The rebase in the named folder, in the current one, or the only one in edit/; with `given_up` also one that a killed abort left.

    Raises WrongUse when there is none, or more than one.
    """
    if folder is not None:
        place = RebaseWorktree(folder.absolute())
        if place.held is None and not (given_up and place.given_up):
            raise WrongUse(f"there is no rebase in {folder}", hint="`patchctl rebase STACK --to REVISION` begins one")
        return place
    for above in (start, *start.parents):
        if (above / ".git" / STATE_FILE).is_file():
            return RebaseWorktree(above)
    edit = edit_folder().absolute()
    found = (_NAME.fullmatch(file.parents[1].name) for file in edit.glob(f"*/.git/{STATE_FILE}"))  # hidden ones too
    places = {m["shown"] or m["hidden"] for m in found if m and (given_up or not m["gone"])}
    if not places:
        hint = "`patchctl rebase STACK --to REVISION` begins one; --dir DIR names a work tree that lies elsewhere"
        raise WrongUse("no rebase is under way", hint=hint)
    if len(places) > 1:
        raise WrongUse(
            f"{len(places)} rebases are under way", hint=f"--dir names one of edit/{', edit/'.join(sorted(places))}"
        )
    return RebaseWorktree(edit / places.pop())


def locked(folder: Path) -> AbstractContextManager[None]:
    """Lock a rebase's work tree; the lock survives its renames. Raises WorkspaceBusy."""
    return folder_lock(folder / ".git", "another run is at this rebase")


_VERSION = 1

Outcome = Literal["clean", "resolved", "replayed", "dropped", "postponed"]
"""How a patch arrived: by git alone, by a person, by replaying an earlier resolution; or it was dropped, or postponed."""


@dataclass(frozen=True)
class RebaseStep:
    """A processed patch."""

    stage: Annotated[str, Doc("revision")]
    feature: Annotated[str, Doc("feature name")]
    before: Annotated[str, Doc("original commit")]
    outcome: Annotated[
        Outcome,
        Doc(
            "`clean` (merged by git), `resolved` (by hand), `replayed` (from a recorded resolution), `dropped` or"
            " `postponed`"
        ),
    ]
    commit: Annotated[str | None, Doc("resulting commit; null if the patch was dropped or postponed")]
    reason: Annotated[str, Doc("why the patch was dropped or postponed; empty otherwise")] = ""
    notes: Annotated[tuple[str, ...], Doc("notes on files regenerated by upstream's script")] = ()


@dataclass(frozen=True)
class Stop:
    """The point at which the rebase needs manual work."""

    kind: Annotated[Literal["conflict", "empty"], Doc("`conflict`, or `empty` if nothing remains of the patch")]
    feature: Annotated[str, Doc("feature name")]
    paths: Annotated[dict[str, str], Doc("conflicting files, with the problem in each", key="files")] = field(
        default_factory=dict
    )
    seen: dict[str, str | None] = field(default_factory=dict)
    reason: Annotated[
        str, Doc("for `empty`, the upstream change and its commit; for `conflict`, the patch's `Drop-When`")
    ] = ""


@dataclass(frozen=True)
class Stage:
    """A revision to rebase onto: its name and the commit that the patches are picked onto."""

    name: str
    base: str


@dataclass(frozen=True)
class Writing:
    """Files of the distribution that `finish` creates, and the previous manifest, lock and tree list; null for those
    that did not exist.
    """

    files: tuple[str, ...]
    manifest: str | None
    lock: str | None = None
    listed: str | None = None


@dataclass(frozen=True)
class RebaseState:
    """A rebase in progress. `todo` are the commits still to pick in this stage, `head` the commit to pick them onto.
    `generator` is the old pin's commit that has the script of `regenerated:`, for revisions whose source lacks it. `source` and
    `mirrors` are the options of that name, for a run that is not given them: NAME=URL, none with credentials."""

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
    generator: str | None = None
    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: tuple[str, ...] = ()


def write_state(folder: Path, state: RebaseState) -> RebaseState:
    """Write the state and return it."""
    replace_file(folder / ".git" / STATE_FILE, json.dumps({"version": _VERSION, **asdict(state)}, indent=1).encode())
    return state


def read_state(folder: Path) -> RebaseState:
    """Read the state. Raises BadManifest for anything that patchctl did not write."""
    file = folder / ".git" / STATE_FILE
    try:
        return parse(RebaseState, file.read_bytes(), ("version", _VERSION))
    except (OSError, BadRecord) as error:
        hint = "remove the work tree; what was resolved is kept, and the same rebase finds it again"
        raise BadManifest(f"this is no rebase's state: {error}", where=str(file), hint=hint) from error


def advanced(state: RebaseState, step: RebaseStep) -> RebaseState:
    """Return the state after a step."""
    own, head = {step.feature: step.reason}, step.commit or state.head
    state = replace(state, steps=(*state.steps, step), todo=state.todo[1:], head=head, stop=None)
    if step.outcome == "dropped":
        return replace(state, dropped=state.dropped | own)
    return replace(state, postponed=state.postponed | own) if step.outcome == "postponed" else state


@dataclass(frozen=True)
class RebaseRun:
    """What every step needs: the distribution, the work tree, and the sources."""

    dist: Distribution
    place: RebaseWorktree
    options: SourceOptions
    progress: Progress
    bump: bool = False  # one move of a bump, which `bump --continue` goes on with

    def store(self, state: RebaseState) -> Resolutions:
        return Resolutions(self.dist.root, state.upstream)

    def regeneration(self, state: RebaseState) -> Regeneration:
        return Regeneration(self.dist.upstream(state.upstream), state.python, state.generator)


_HELD = "refs/patchctl/rebase/"


def hold(work: WorkTree, state: RebaseState) -> None:
    """Reference commits that no branch has (patches to come, old patches, revisions), so that `git gc` keeps them."""
    wanted = {state.old_base, state.old_commits[-1], *(s.base for s in state.stages), *(c for _, c in state.todo)}
    wanted |= {state.generator} if state.generator else set()
    let_go(work, but=wanted)
    work.git("update-ref", "--stdin", stdin="".join(f"update {_HELD}{c} {c}\n" for c in sorted(wanted)).encode())


def let_go(work: WorkTree, but: Collection[str] = ()) -> None:
    """Delete these references."""
    names = work.git("for-each-ref", "--format=%(refname)", _HELD).decode().split()
    gone = [name for name in names if name.removeprefix(_HELD) not in but]
    if gone:
        work.git("update-ref", "--stdin", stdin="".join(f"delete {name}\n" for name in gone).encode())


def is_held(reference: str) -> bool:
    return reference.startswith(_HELD)


def new_stack(state: RebaseState) -> Stack:
    """Return the new stack, from its manifest without patches."""
    return loads(state.manifest.encode(), Stack, f"{state.new}.yaml").value


def generated_in(state: RebaseState) -> list[str]:
    """Return generated files of the work tree. Upstream's build would write them, so no commit has them."""
    return [g.path for g in new_stack(state).generated]


def stage_of(state: RebaseState) -> Stage:
    """Return the revision that patches are being picked onto."""
    return state.stages[state.stage]


def base_before(state: RebaseState) -> str:
    """Return the revision that the patches come from in this stage."""
    return state.stages[state.stage - 1].base if state.stage else state.old_base
