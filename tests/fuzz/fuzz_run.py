"""Gives readers changed bytes, many times, and says what came of it: `make fuzz`, and a short share of it in the tests.

Case NUMBER of a reader is the same for the same seed, whatever ran before: --first goes on where a run was stopped, and
--first NUMBER --cases 1 shows one case again. What is at fault is kept below --keep.

Needs a file system in memory to be quick (--folder); Linux only.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

sys.path.extend(str(Path(__file__).parents[1] / p) for p in ("", "unit/patch", "unit/source", "hostile/patch"))

from fuzz_am import PatchReader
from fuzz_archives import MAKERS as ARCHIVES
from fuzz_readers import MAKERS as READERS
from fuzz_readers import Reader

# Of a thousand cases: those readers get most that have most to decide, and that are quick.
SHARES = {
    "patch": 300,
    "state": 120,
    "journal": 80,
    "lock": 100,
    "memo": 80,
    "manifest cache": 20,
    "cache record": 60,
    "RECORD": 60,
    "manifest": 60,
    "bundle": 30,
    "tar archive": 40,
    "zip archive": 40,
    "index page": 10,
}
CASES = 1_000_000
SEED = 20261122
SECONDS = 10.0  # for one case
MEMORY = 2 << 30


class TooLong(BaseException):
    """A case took more than SECONDS. No Exception, so that no reader takes it for its own."""


@dataclass
class Result:
    """What came of a reader's cases. `faults` holds (number, or -1 where many were looked at together; its bytes; what)."""

    reader: str
    cases: int
    seconds: float = 0.0
    taken: int = 0
    slowest: float = 0.0
    said: str = ""
    faults: list[tuple[int, bytes, str]] = field(default_factory=list)

    def line(self) -> str:
        refused = self.cases - self.taken - sum(n >= 0 for n, _, _ in self.faults)
        faults = f"{len(self.faults)} AT FAULT" if self.faults else "none at fault"
        more = f"; {self.said}" if self.said else ""
        return (
            f"{self.reader}: {self.cases} cases in {self.seconds:.0f} s, {self.taken} taken, {refused} refused, {faults}; "
            f"the slowest took {self.slowest * 1000:.0f} ms{more}"
        )


def makers() -> dict[str, Callable[[Path], Reader]]:
    """Every reader by its name."""
    found: dict[str, Callable[[Path], Reader]] = {"patch": PatchReader}
    for maker in (*READERS, *ARCHIVES):
        assert isinstance(maker, type) and issubclass(maker, Reader)
        found[maker.name] = maker
    return found


def fuzz(name: str, folder: Path, seed: int, numbers: Sequence[int], seconds: float | None = None) -> Result:
    """Run these cases of a reader, in `folder`, which is new; fewer when `seconds` are over."""
    folder.mkdir(parents=True)
    reader = makers()[name](folder)
    result = Result(name, 0)
    start = time.monotonic()
    with _alarm():
        for number in numbers:
            if seconds is not None and time.monotonic() - start > seconds:
                break
            result.cases += 1
            one(reader, seed, number, result)
            if reader.due:
                result.faults += [(-1, data, why) for data, why in reader.rest()]
        result.faults += [(-1, data, why) for data, why in reader.rest()]
    result.seconds = time.monotonic() - start
    result.said = reader.said()
    reader.close()
    return result


def one(reader: Reader, seed: int, number: int, result: Result) -> None:
    """Run one case, within its time."""
    data = reader.case(random.Random(f"{seed} {reader.name} {number}"))
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        result.taken += reader.read(data)
    except (Exception, TooLong):
        result.faults.append((number, data, traceback.format_exc()))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    result.slowest = max(result.slowest, time.monotonic() - begun)


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def shares(cases: int, names: Sequence[str]) -> dict[str, int]:
    """How many of `cases` each of these readers gets."""
    total = sum(SHARES[n] for n in names)
    return {n: max(1, cases * SHARES[n] // total) for n in names}


def _keep(result: Result, folder: Path, seed: int) -> None:
    for count, (number, data, why) in enumerate(result.faults):
        file = folder / f"{result.reader.replace(' ', '-')}-{seed}-{number if number >= 0 else f'batch-{count}'}"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        print(f"AT FAULT: {file}\n{why[-2000:]}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help="in total [%(default)s]")
    parser.add_argument("--seed", type=int, default=SEED, help="[%(default)s]")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of each reader's cases [0]")
    parser.add_argument("--reader", action="append", choices=list(SHARES), help="only these; again for more of them")
    parser.add_argument("--mirrors", type=Path, metavar="DIR", help="repositories whose history gives more patches")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to work [/dev/shm, or the system's for temporary files]"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build/fuzz"), metavar="DIR", help="where faults go [%(default)s]"
    )
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    PatchReader.mirrors = given.mirrors
    shared = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(prefix="patchctl-fuzz-", dir=given.folder or (shared if shared.is_dir() else None)))
    results = []
    try:
        for name, cases in shares(given.cases, given.reader or list(SHARES)).items():
            numbers = range(given.first, given.first + cases)
            result = fuzz(name, top / name.replace(" ", "-"), given.seed, numbers)
            shutil.rmtree(top / name.replace(" ", "-"))
            print(result.line(), flush=True)
            _keep(result, given.keep, given.seed)
            results.append(result)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    faults, count = sum(len(r.faults) for r in results), sum(r.cases for r in results)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    seconds = sum(r.seconds for r in results)
    print(
        f"seed {given.seed}, from case {given.first}: {count} cases, {faults} at fault, {seconds:.0f} s, at most {peak} MB"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
