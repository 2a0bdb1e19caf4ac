"""Reads the steps of a training run from what verl printed, out of a log of any size, in bounded memory.

verl's LocalLogger (verl/utils/logger/aggregate_logger.py) prints `step:N - key:value - key:value`, one line a step. In a
real log that line stands behind Ray's `(TaskRunner pid=7)`, between colours, after a progress bar that ended in no line
end, beside lines of a thousand workers, and more than once where a run was resumed.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from log.wrapped import Pieces

from patchctl.blame.blame import plain, without_note

# More than any line of metrics has. A longer line (a dumped batch) is read in parts, so that memory stays bounded.
_LONGEST = 1 << 20
_LONGEST_NAME = 2000  # characters of a metric's, which may hold the separator
# Not `training/global_step:5 - `, which is a metric; but behind the 1/9 of a progress bar.
_STEP = re.compile(r"(?<![A-Za-z_/])step:(?P<step>\d{1,15}) - ")
_MAY_BE_STEP = re.compile(rb"step:\d+ - ")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf|nan)|True|False"
# numpy 2 writes np.float64(0.5) and np.True_ where numpy 1 wrote 0.5 and True.
_VALUE = rf"(?:np\.(?P<truth>True|False)_|np\.\w+\((?P<repr>{_NUMBER})\)|(?P<plain>{_NUMBER}))"
_PLAIN = re.compile(rf"(?P<key>[^\s:]+):{_VALUE}")
_ITEM = re.compile(rf"(?P<key>\S.*):{_VALUE}")
_TORN = re.compile(rf"(?P<key>[^\s:]+):{_VALUE}(?![0-9A-Za-z_.])")
# These keys hold the data set's name, which may hold anything, the separator included.
_NAMED_BY_DATA = "val-"
_TRUTH = {"True": 1.0, "False": 0.0}


@dataclass(frozen=True)
class StepLine:
    """One printed step: `number` is the line of the file, from 1; `rest` is what stood behind the last value."""

    number: int
    step: int
    values: Mapping[str, float]
    rest: str


@dataclass
class Run:
    """The steps of one run, the latest attempt at each, and what a reader of them has to know."""

    name: str
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    last: int = -1

    def add(self, line: StepLine) -> None:
        """Take a printed step. One that goes back begins a new attempt, which replaces all steps from there on."""
        known = self.steps.get(line.step)
        if known is not None and all(same(known.get(key), value) for key, value in line.values.items()):
            return  # the same line twice: the driver's output and a node's in one file
        again = known is not None and any(k in known for k in line.values if not k.startswith(_NAMED_BY_DATA))
        dropped = [step for step in self.steps if step > line.step or (again and step == line.step)]
        if dropped:
            begins = min(dropped)
            what = f"step {begins}" if begins == self.last else f"steps {begins} to {self.last}"
            self.notes.append(
                f"line {line.number}: back at step {line.step}, a resumed run: the earlier {what} left out"
            )
        for step in dropped:
            del self.steps[step]
        if line.rest:
            self.notes.append(
                f"line {line.number}: step {line.step} runs into other text; its last value may be cut off"
            )
        self.steps.setdefault(line.step, {}).update((sys.intern(key), value) for key, value in line.values.items())
        self.last = line.step

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """The steps that have the metric, in order, and its values."""
        points = [(step, values[key]) for step, values in sorted(self.steps.items()) if key in values]
        return [step for step, _ in points], [value for _, value in points]

    def of_actor(self, key: str) -> str:
        """The name that the run has a worker's metric under: verl 0.9 puts actor/ before what it is in 0.6."""
        named = f"actor/{key}"
        return named if any(named in values for values in self.steps.values()) else key

    def metrics(self) -> list[str]:
        """Every metric that some step has, as they came."""
        return list(dict.fromkeys(key for _, values in sorted(self.steps.items()) for key in values))

    def missing(self) -> Iterator[int]:
        """Steps between the first and the last with training metrics that have none."""
        trained = sorted(s for s, values in self.steps.items() if any(not k.startswith(_NAMED_BY_DATA) for k in values))
        for step, after in itertools.pairwise(trained):
            yield from range(step + 1, after)


def same(left: float | None, right: float) -> bool:
    """Equal, or both not a number."""
    return left == right or (left is not None and math.isnan(left) and math.isnan(right))


def read_run(path: Path, name: str, advance: Callable[[int], None] = lambda count: None) -> Run:
    """Read a log, or standard input for `-`; *.gz is unpacked. `advance` is told the bytes of each part that was read.

    Raises OSError, EOFError or zlib.error when the file cannot be read to its end.
    """
    run = Run(name)
    if str(path) == "-":
        _read(sys.stdin.buffer, run, advance)
    elif path.suffix == ".gz":
        with gzip.open(path) as stream:
            _read(cast(IO[bytes], stream), run, advance)
    else:
        with path.open("rb") as stream:
            _read(stream, run, advance)
    gaps = list(itertools.islice(run.missing(), 11))
    if gaps:
        run.notes.append(f"no line for step {', '.join(map(str, gaps[:10]))}{', ...' if len(gaps) > 10 else ''}")
    return run


def _read(stream: IO[bytes], run: Run, advance: Callable[[int], None]) -> None:
    joined = 0
    for found in _candidates(stream, advance):
        line = parse_line(found.text, found.number)
        if line is not None:
            run.add(line)
            joined += found.count > 1
    if joined:
        run.notes.append(f"{joined} lines of metrics came in pieces, as a terminal wraps them, and were put together")


def _candidates(stream: IO[bytes], advance: Callable[[int], None]) -> Iterator[Pieces]:
    """What may hold a step, with the lines below it that belong to it. A progress bar's redrawn states count as one line."""
    number, carried = 1, b""
    held: Pieces | None = None
    while part := stream.readline(_LONGEST):
        advance(len(part))
        text, carried = carried + part, b""
        ended = part.endswith(b"\n")
        if not ended:
            text, _, carried = text.rpartition(b"\r")
            if len(carried) > _LONGEST:
                carried = b""
        is_step = b"step:" in text and _MAY_BE_STEP.search(text) is not None
        if held is not None and text and (is_step or not held.take(text)):
            yield held
            held = None
        for one in text.split(b"\r") if is_step else ():
            if _MAY_BE_STEP.search(one):
                if held is not None:
                    yield held
                held = Pieces(number, one, _PLAIN, _ITEM)
        number += ended
    if held is not None:
        yield held
    if _MAY_BE_STEP.search(carried):
        yield Pieces(number, carried, _PLAIN, _ITEM)


def parse_line(text: str, number: int) -> StepLine | None:
    """The step that a line holds; None when it holds none."""
    text = without_note(plain(text)).strip()
    begin = _STEP.search(text)
    if begin is None:
        return None
    values: dict[str, float] = {}
    held = rest = ""
    # Another step in the same line: what follows is that step's, even where a data set's name could hold it.
    other = _STEP.search(text, begin.end())
    end = other.start() if other else len(text)
    for piece in text[begin.end() : end].split(" - "):
        by_data = (held or piece).startswith(_NAMED_BY_DATA)
        item = (_ITEM if by_data else _PLAIN).fullmatch(held + piece)
        if item is None and by_data and len(held) < _LONGEST_NAME:
            held += piece + " - "
            continue
        if item is None:
            rest = piece
            item = _TORN.match(piece)
        if item is not None:
            values[item["key"]] = _number(item)
        held = ""
        if rest:
            break
    return StepLine(number, int(begin["step"]), values, rest or held or text[end:]) if values else None


def _number(item: re.Match[str]) -> float:
    text = item["truth"] or item["repr"] or item["plain"]
    return _TRUTH[text] if text in _TRUTH else float(text)
