"""What a scenario is: what is there before, the command, what may come next, and what has to stay whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import seccomp
from box import Box
from distribution import git
from on_disk import leftovers

Args = tuple[str, ...]


class Lacking(Exception):
    """Why a scenario cannot be prepared on this machine."""


@dataclass(frozen=True)
class Step:
    """A command that a user types afterwards. `end` names how everything has to be where it ended well, several names by `|`;
    `codes` are the ways it may end: where that is another one, the next step is the way out that its message names. `says` is what
    it then prints, among other things."""

    args: Args
    end: str | None = None
    codes: tuple[int, ...] = (0,)
    says: str = ""


Way = tuple[Step, ...]


@dataclass(frozen=True)
class Scenario:
    """`ends` by name: the commands that lead there from what was prepared, when nobody stops them. `well` are the exit codes of a
    run that did what it was asked for, which then prints what `says` holds."""

    name: str
    title: str
    prepare: Callable[[Box], None]
    args: Args
    end: str
    ends: dict[str, Sequence[Args]]
    ways: tuple[Way, ...]
    observe: Callable[[Box], Any]
    kept: Callable[[Box], Any]
    roots: tuple[str, ...] = ("ws", "cache", "tmp")
    call: Callable[[Box], Callable[[], int]] | None = None
    healthy: Callable[[Box], list[str]] = field(default=lambda box: healthy(box))
    codes: tuple[int, ...] = (0, 2, 3, 7)
    well: tuple[int, ...] = (0,)
    says: str = ""
    weight: int = 1  # a point of it takes so many times as long: a share has so many fewer of them
    torn: Callable[[Box], list[str]] = field(default=lambda box: [])  # what may not be even before the next command

    def run(self, box: Box, args: Args, decide: seccomp.Decide | None = None) -> seccomp.Ended:
        if self.call is not None and args == self.args:
            return seccomp.run(box.body(self.call(box)), decide, 60.0)
        return box.run([a.replace("BOX", str(box.folder)) for a in args], decide)


def healthy(box: Box) -> list[str]:
    """What is wrong with the workspace after a command that ended well."""
    found = [f"left behind: {name}" for name in leftovers(box.ws)]
    file = box.ws / ".patchctl" / "state.json"
    if not file.is_file():
        return [*found, "there is no state"]
    for name, tree in json.loads(file.read_text())["trees"].items():
        if tree["kind"] != "managed":
            continue
        repo = box.ws / name
        for args in (
            ("fsck", "--full", "--strict", "--no-dangling"),
            ("status", "--porcelain", "--untracked-files=no"),
        ):
            if (said := git(repo, *args)) != "":
                found.append(f"git {args[0]} in {name}: {said}")
        if git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split() != [tree["tip_commit"], tree["tip_tree"]]:
            found.append(f"HEAD of {name} is not what the state says")
    return found
