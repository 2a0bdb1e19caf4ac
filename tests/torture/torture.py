"""Stops a run at one of its system calls, in one of seven ways, and judges what is left and what the next command does of it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from box import Box, copy_folder, new_box
from scenario import Scenario, Step
from seccomp import GO_ON, Answer, Call, Ended

_WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range", "fallocate")
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # where Python's tempfile goes when TMPDIR cannot be written
_MAKES = ("mkdir", "symlink", "link", "mknod")


def _needs_room(call: Call) -> bool:
    """Whether a full disk stops it for good: what makes a file or makes one longer."""
    makes = call.name.startswith(_MAKES) or (call.opens and not call.exists)
    return call.changes and (makes or call.name in _WRITES)


def _may_need_room(call: Call) -> bool:
    """Those, and what finds out in its place on some file systems: a folder that grows, delayed allocation."""
    return _needs_room(call) or (call.changes and call.name.startswith(("rename", "fsync", "fdatasync")))


def _asks_for_rights(call: Call) -> bool:
    """What a read-only file system refuses: not what is done with a file that is open already."""
    return call.changes and call.name not in (*_WRITES, "fsync", "fdatasync", "ftruncate", "mmap")


@dataclass(frozen=True)
class Kind:
    """A way to stop a run: `applies` to a call (made by the first process or not); `then` is what else is refused from then on."""

    name: str
    title: str
    applies: Callable[[Call, bool], bool]
    error: int = 0
    then: Callable[[Call], bool] = field(default=lambda call: False)


KINDS = (
    Kind("all", "all processes killed", lambda call, first: call.changes),
    Kind("child", "a child killed", lambda call, first: not first and (call.changes or call.kind in ("pipe", "life"))),
    Kind("parent", "the parent of a child killed", lambda call, first: not first and call.changes),
    Kind("ENOSPC", "disk full from here on", lambda call, first: _may_need_room(call), errno.ENOSPC, _needs_room),
    Kind(
        "EROFS",
        "disk read-only from here on",
        lambda call, first: _asks_for_rights(call),
        errno.EROFS,
        _asks_for_rights,
    ),
    Kind("EIO", "one input/output error", lambda call, first: call.changes and call.name != "mmap", errno.EIO),
    Kind("EMFILE", "no descriptor free, once", lambda call, first: call.changes and call.opens, errno.EMFILE),
)


@dataclass(frozen=True)
class Verdict:
    """What one point came to: the call, the exit status (negative: killed), and what is wrong."""

    scenario: str
    kind: str
    number: int
    call: str
    status: int
    wrong: tuple[str, ...]


class Torture:
    """One scenario in one folder: prepared once, then broken as often as asked."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self._box = Box(folder / "box")
        self._ready = folder / "ready"
        new_box(self._box.folder)
        scenario.prepare(self._box)
        copy_folder(self._box.folder, self._ready)
        self._kept = scenario.kept(self._box)
        self._ends = {name: self._end(steps) for name, steps in scenario.ends.items()}
        self.calls: list[tuple[Call, bool]] = []
        self._restore()
        done = scenario.run(self._box, scenario.args, self._record)
        assert done.status in scenario.well, f"{scenario.name} ended with {done.status}: {done.out}{done.err}"
        outside = self._outside(call for call, _ in self.calls)
        assert not outside, outside
        self.changes = sum(call.changes for call, _ in self.calls)
        self.points = {kind.name: sum(kind.applies(*c) for c in self.calls) for kind in KINDS}

    def stop_at(self, kind: Kind, number: int) -> Verdict:
        """Run, stop at the `number`-th call (from 1) of this kind, and judge."""
        self._restore()
        stopping = _Stopping(kind, number)
        done = self.scenario.run(self._box, self.scenario.args, stopping)
        if stopping.hit is None:
            return Verdict(self.scenario.name, kind.name, number, "not reached", done.status, ())
        wrong = [*self._after(done, stopping), *self._outside(stopping.seen), *self._next(number)]
        return Verdict(self.scenario.name, kind.name, number, self._shown(stopping.hit), done.status, tuple(wrong))

    def _record(self, call: Call, first: int) -> Answer:
        self.calls.append((call, call.pid == first))
        return GO_ON

    def _restore(self) -> None:
        for place in self._ready.iterdir():
            if place.name not in ("origins", "index"):
                copy_folder(place, self._box.folder / place.name)
        for place in self._box.folder.iterdir():
            if not (self._ready / place.name).exists():
                shutil.rmtree(place)

    def _end(self, steps: Any) -> Any:
        self._restore()
        for args in steps:
            done = self.scenario.run(self._box, args)
            assert done.status in self.scenario.well, f"{args} ended with {done.status}: {done.out}{done.err}"
        return self.scenario.observe(self._box)

    def _after(self, done: Ended, stopping: _Stopping) -> list[str]:
        """What is wrong before anybody did anything about it."""
        wrong = []
        if done.hung:
            wrong.append("it did not end")
        wrong += (faults := _faults(self.scenario.args, done))
        if not faults and done.status >= 0 and done.status not in (*self.scenario.codes, *self.scenario.well):
            wrong.append(f"it ended with {done.status}: {done.err[-1500:]}")
        if done.status in self.scenario.well:
            wrong += self._unlike(self.scenario.end, f"it ended with {done.status}")
            wrong += _unsaid(self.scenario.says, done)
        if self.scenario.kept(self._box) != self._kept:
            wrong.append("something of the user's was changed")
        return wrong + self.scenario.torn(self._box)

    def _next(self, number: int) -> list[str]:
        for step in self.scenario.ways[number % len(self.scenario.ways)]:
            done = self.scenario.run(self._box, step.args)
            wrong = _faults(step.args, done)
            if not wrong and done.status not in step.codes:
                wrong.append(f"the next command, {_line(step)}, ended with {done.status}: {done.err[-1500:]}")
            if not wrong and done.status in self.scenario.well and step.end is not None:
                wrong += self._unlike(step.end, f"{_line(step)} ended well")
                wrong += _unsaid(step.says, done)
                wrong += self.scenario.healthy(self._box)
            if self.scenario.kept(self._box) != self._kept:
                wrong.append(f"{_line(step)} changed something of the user's")
            if wrong:
                return wrong
        return []

    def _unlike(self, ends: str, what: str) -> list[str]:
        have = self.scenario.observe(self._box)
        if any(have == self._ends[end] for end in ends.split("|")):
            return []
        return [f"{what} and is not as it shall be: {self._difference(ends.split('|')[0])}"]

    def _difference(self, end: str) -> str:
        have, wanted = self.scenario.observe(self._box), self._ends[end]
        if isinstance(have, dict) and isinstance(wanted, dict):
            return str(sorted(p for p in have.keys() | wanted.keys() if have.get(p) != wanted.get(p))[:8])
        return f"{have!s:.600} instead of {wanted!s:.600}"

    def _outside(self, calls: Any) -> list[str]:
        roots = (*(f"{self._box.folder}/{root}" for root in self.scenario.roots), *_TEMPORARY)
        written = {c.path for c in calls if c.kind == "file" and c.changes and not self._is_probe(c)}
        out = [p for p in sorted(written) if not any(p == r or p.startswith(f"{r}/") for r in roots)]
        return [f"written outside: {p}" for p in out[:5]]

    def _is_probe(self, call: Any) -> bool:
        """Where no folder for temporary files can be written, Python's tempfile tries the current one: with an empty file, then with
        one that has no name and so leaves nothing."""
        if call.path == f"{self._box.folder}/home" and call.flags & os.O_TMPFILE == os.O_TMPFILE:
            return True
        folder, _, name = call.path.rpartition("/")
        return folder == f"{self._box.folder}/home" and re.fullmatch(r"[a-z0-9_]{8}", name) is not None

    def _shown(self, call: Call) -> str:
        return f"{call.name} {call.path.replace(str(self._box.folder), '')}"


class _Stopping:
    """Counts the calls to which a kind applies, and stops the run at one of them."""

    def __init__(self, kind: Kind, number: int) -> None:
        self._kind = kind
        self._left = number
        self.hit: Call | None = None
        self.seen: list[Call] = []

    def __call__(self, call: Call, first: int) -> Answer:
        self.seen.append(call)
        if self.hit is not None:
            return Answer(self._kind.error) if self._kind.error and self._kind.then(call) else GO_ON
        if not self._kind.applies(call, call.pid == first):
            return GO_ON
        self._left -= 1
        if self._left:
            return GO_ON
        self.hit = call
        if self._kind.error:
            return Answer(self._kind.error)
        if self._kind.name == "all":
            return Answer(kill=(-first, *{c.pid for c in self.seen if c.pid != first}))
        return Answer(kill=(call.pid,) if self._kind.name == "child" else (first,))


def _faults(args: tuple[str, ...], done: Ended) -> list[str]:
    if "Traceback" in done.err + done.out or done.status == 70:
        return [f"a fault ({done.status}) of patchctl {' '.join(args)}: {(done.err or done.out)[-2500:]}"]
    return []


def _unsaid(text: str, done: Ended) -> list[str]:
    return [] if text in done.out else [f"it did not print {text!r}: {done.out[-600:]}"]


def _line(step: Step) -> str:
    return "patchctl " + " ".join(step.args)
