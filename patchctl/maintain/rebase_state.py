"""What a rebase knows of itself: one file in the work tree's git directory, written whole after every step.

The work tree has two names. Under the hidden one it is patchctl's: nobody else is asked to work there, and whatever a killed run
left in it may be reset. Under its own name it is the user's: a rename gives it over when a patch stops, and takes it back.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, WorkspaceBusy, WrongUse

_FILE = "patchctl-rebase.json"
_VERSION = 1
_NAME = re.compile(r"(?P<shown>[^.].*)|\.(?P<hidden>.+)\.rebase(?P<gone>-gone)?")

Outcome = Literal["clean", "resolved", "replayed", "dropped", "postponed"]
"""How a patch came over: by git alone, by a person, by what a person did before, or not at all, or not yet."""


@dataclass(frozen=True)
class Step:
    """A patch that was dealt with. `before` is the commit that it was; `commit` what it became, null where it did not arrive."""

    stage: str
    feature: str
    before: str
    outcome: Outcome
    commit: str | None
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stop:
    """Where a person has to work. `paths` are the files in conflict, with what is wrong with each; `seen` is what lay in the tree
    then and is not in HEAD, by digest: all else is the user's."""

    kind: Literal["conflict", "empty"]
    feature: str
    paths: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str | None] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Stage:
    """One revision on the way: its name, the commit that stands under the patches."""

    name: str
    base: str


@dataclass(frozen=True)
class Writing:
    """Files of the distribution that the end of a rebase makes, and manifest, lock and the list of the pin's files as they were
    before; null for none."""

    files: tuple[str, ...]
    manifest: str | None
    lock: str | None = None
    listed: str | None = None


@dataclass(frozen=True)
class State:
    """A rebase under way. `todo` are the commits still to be picked in this stage, `head` the commit that they go onto."""

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
    steps: tuple[Step, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)
    postponed: dict[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    writing: Writing | None = None


@dataclass(frozen=True)
class Place:
    """The two names of a rebase's work tree."""

    folder: Path

    @property
    def hidden(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.rebase")

    @property
    def gone(self) -> Path:
        """Where it goes when it is taken away."""
        return self.folder.with_name(f".{self.folder.name}.rebase-gone")

    @property
    def range_diff(self) -> Path:
        """git's comparison of both series, which the end writes beside it."""
        return self.folder.with_name(f"{self.folder.name}.range-diff")

    @property
    def given_up(self) -> Path | None:
        """What a killed abort left of it."""
        return self.gone if self.held is None and (self.gone / ".git" / _FILE).is_file() else None

    @property
    def held(self) -> Path | None:
        """The one of both that holds a rebase."""
        return next((f for f in (self.hidden, self.folder) if (f / ".git" / _FILE).is_file()), None)

    @property
    def is_ours(self) -> bool:
        return self.held == self.hidden

    def take(self) -> Path:
        """Make the tree ours. What lies under the hidden name beside a rebase under the other is of a killed start."""
        if not self.is_ours:
            shutil.rmtree(self.hidden, ignore_errors=True)
            self.folder.rename(self.hidden)
        return self.hidden

    def give(self) -> Path:
        """Give it to the user."""
        self.hidden.rename(self.folder)
        return self.folder

    def remove(self) -> None:
        """Take the tree away, under a third name, so that a kill leaves no half of it; last what it knows of itself, by which
        another abort finds it."""
        if self.held is not None:
            shutil.rmtree(self.gone, ignore_errors=True)
            self.held.rename(self.gone)
        git_dir = self.gone / ".git"
        for one in (*self.gone.iterdir(), *git_dir.iterdir()):
            if one.is_symlink() or not one.is_dir():
                one.unlink() if one.name != _FILE else None
            elif one != git_dir:
                shutil.rmtree(one)
        if self.gone.is_symlink():  # somebody moved the tree to another disk, and left a link
            shutil.rmtree(self.gone.resolve())
            self.gone.unlink()
        else:
            shutil.rmtree(self.gone)


def find_place(folder: Path | None, start: Path, *, given_up: bool = False) -> Place:
    """The rebase that is meant: of the folder that is named, of the one that somebody stands in, or the only one in edit/; with
    `given_up` one that a killed abort left, too.

    Raises WrongUse when there is none, or more than one.
    """
    if folder is not None:
        place = Place(folder.absolute())
        if place.held is None and not (given_up and place.given_up):
            raise WrongUse(f"there is no rebase in {folder}", hint="`patchctl rebase STACK --to REVISION` begins one")
        return place
    for above in (start, *start.parents):
        if (above / ".git" / _FILE).is_file():
            return Place(above)
    found = (_NAME.fullmatch(file.parents[1].name) for file in start.glob(f"edit/*/.git/{_FILE}"))  # hidden ones too
    places = {m["shown"] or m["hidden"] for m in found if m and (given_up or not m["gone"])}
    if not places:
        hint = "`patchctl rebase STACK --to REVISION` begins one; --dir DIR names a work tree that lies elsewhere"
        raise WrongUse("no rebase is under way", hint=hint)
    if len(places) > 1:
        raise WrongUse(
            f"{len(places)} rebases are under way", hint=f"--dir names one of edit/{', edit/'.join(sorted(places))}"
        )
    return Place(start / "edit" / places.pop())


def write_state(folder: Path, state: State) -> State:
    """Keep it; returns it."""
    replace_file(folder / ".git" / _FILE, json.dumps({"version": _VERSION, **asdict(state)}, indent=1).encode())
    return state


def read_state(folder: Path) -> State:
    """Raises BadManifest for what patchctl did not write."""
    file = folder / ".git" / _FILE
    try:
        data = json.loads(file.read_bytes())
        if data.pop("version") != _VERSION:
            raise ValueError("it is of another version of patchctl")
        return _state(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove the work tree; what was resolved is kept, and the same rebase finds it again"
        raise BadManifest(f"this is no rebase's state: {error}", where=str(file), hint=hint) from error


def end_state(folder: Path) -> None:
    """The rebase is over: what is left is a work tree as `edit` makes it."""
    (folder / ".git" / _FILE).unlink()


def _state(data: dict[str, Any]) -> State:
    steps = tuple(Step(**{**s, "notes": tuple(s["notes"])}) for s in data.pop("steps"))
    stop, writing = data.pop("stop"), data.pop("writing")
    for key in ("old_commits",):
        data[key] = tuple(data[key])
    data["stages"] = tuple(Stage(**s) for s in data["stages"])
    data["todo"] = tuple((f, c) for f, c in data["todo"])
    if writing is not None:
        writing = Writing(**{**writing, "files": tuple(writing["files"])})
    return State(**data, steps=steps, stop=Stop(**stop) if stop else None, writing=writing)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a rebase's work tree, whatever its name becomes. Raises WorkspaceBusy."""
    handle = os.open(folder / ".git", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkspaceBusy("another run is at this rebase", where=str(folder)) from None
        yield
    finally:
        os.close(handle)


def advanced(state: State, step: Step) -> State:
    """The state after a step: the next patch, its head, and what is not in the stack any more."""
    own, head = {step.feature: step.reason}, step.commit or state.head
    state = replace(state, steps=(*state.steps, step), todo=state.todo[1:], head=head, stop=None)
    if step.outcome == "dropped":
        return replace(state, dropped=state.dropped | own)
    return replace(state, postponed=state.postponed | own) if step.outcome == "postponed" else state
