"""What proves a feature on a stack: where its tests and mutations lie, and the record of the run that found them red and
green.

    patches/<upstream>/<stack>/<feature>/tests/test_*.py    with the probes and modules that are theirs alone
    patches/<upstream>/<stack>/<feature>/mutants/*.yaml
    patches/<upstream>/<stack>/<feature>/evidence.json      written by `patchctl prove` and by nobody else
    tests/behaviour/                                        what serves several features: harness, probes, stand-ins

A feature without tests, or without mutations, has those that it has in the stack which its own extends or `comes_from`.
A record says what was run (pin, what the patch and its carried files change, by digest, sha256 of every test, probe and
mutation), on what, and what came of it. It holds as long as all of that is as it was; whatever changed makes the feature unproven here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, Where
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, RECORD, TESTS, descent
from patchctl.manifest.types import Stack
from patchctl.stack.patches import StackPatch

BEHAVIOUR = Path("tests") / "behaviour"
SCHEMA = "patchctl.evidence/1"


@dataclass(frozen=True)
class Proof:
    """One run that ended as it must. `files` are its tests and probes by sha256, `trees` what each tree was: its stack and
    tree id; `results` maps what was run to [mark, result] of a test, or to the test that a mutation turned red."""

    pin: str
    patch: str
    files: dict[str, str]
    results: dict[str, dict[str, str]]
    environment: dict[str, str]
    trees: dict[str, str]
    date: str


@dataclass(frozen=True)
class Record:
    """What was shown of one feature on one stack. Tests (red on the base, green on the patched tree) and each mutation
    are runs of their own: `tests` is None until the first has ended well, `mutants` is by the mutation's name."""

    upstream: str
    stack: str
    feature: str
    tests: Proof | None = None
    mutants: dict[str, Proof] = field(default_factory=dict)


def tests_of(dist: Distribution, stack: Stack, feature: str) -> tuple[str, ...]:
    """The behaviour tests of a feature on a stack, below the root."""
    return _found(dist, stack, f"{feature}/{TESTS}/test_*.py")


def mutants_of(dist: Distribution, stack: Stack, feature: str) -> tuple[str, ...]:
    """The mutations that turn these tests red."""
    return _found(dist, stack, f"{feature}/{MUTANTS}/*.yaml")


def _found(dist: Distribution, stack: Stack, pattern: str) -> tuple[str, ...]:
    """Those of the nearest stack that has some."""
    for one in descent(stack, dist.stacks):
        if found := sorted((dist.root / "patches" / one.upstream / one.name).glob(pattern)):
            return tuple(file.relative_to(dist.root).as_posix() for file in found)
    return ()


def keeps_tests(root: Path) -> bool:
    """Whether the distribution has its tests with it: elsewhere, or in none, nothing is lacking."""
    return (root / BEHAVIOUR).is_dir() or next(root.glob(f"patches/*/*/*/{TESTS}"), None) is not None


def record_file(root: Path, upstream: str, stack: str, feature: str) -> Path:
    """Where the record of a feature on a stack lies."""
    return root / "patches" / upstream / stack / feature / RECORD


def read_record(root: Path, upstream: str, stack: str, feature: str) -> Record | None:
    """None when there is none. Raises BadManifest for a file that is no record, or another feature's."""
    file = record_file(root, upstream, stack, feature)
    try:
        data = json.loads(file.read_bytes())
        if data.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        tests = None if data["tests"] is None else _proof(data["tests"])
        mutants = {str(name): _proof(one) for name, one in data["mutants"].items()}
        record = Record(data["upstream"], data["stack"], data["feature"], tests, mutants)
        if (record.upstream, record.stack, record.feature) != (upstream, stack, feature):
            raise ValueError(f"it is of {record.feature} on {record.upstream}/{record.stack}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"this is no record that patchctl wrote: {error}"
        raise BadManifest(
            what, where=Where(str(file)), hint="delete it, and `patchctl prove` writes another"
        ) from error
    return record


def _proof(data: Mapping[str, Any]) -> Proof:
    proof = Proof(**data)
    texts = [proof.pin, proof.patch, proof.date]
    for table in (proof.files, proof.environment, proof.trees):
        texts += table.values()
    if not all(isinstance(text, str) for text in texts) or not isinstance(proof.results, dict):
        raise ValueError("a value is no text")
    return proof


def write_record(root: Path, record: Record) -> Path:
    """Write it whole; the same record gives the same bytes. One in which nothing is proven has no file."""
    file = record_file(root, record.upstream, record.stack, record.feature)
    if record.tests is None and not record.mutants:
        file.unlink(missing_ok=True)
        return file
    text = json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1, sort_keys=True, ensure_ascii=True)
    replace_file(file, text.encode() + b"\n")
    return file


def with_tests(record: Record, proof: Proof | None) -> Record:
    return replace(record, tests=proof)


def with_mutant(record: Record, name: str, proof: Proof | None) -> Record:
    rest = {known: one for known, one in record.mutants.items() if known != name}
    return replace(record, mutants=rest if proof is None else {**rest, name: proof})


def digests(root: Path, files: Iterable[str]) -> dict[str, str]:
    """sha256 by path below the root; "absent" for what is not there."""
    return {name: _digest(root / name) for name in sorted(set(files))}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "absent"


class Evidence:
    """The records of a distribution held against what is there. Every file is hashed once."""

    def __init__(self, dist: Distribution) -> None:
        self.dist, self.root = dist, dist.root
        self._keeps_tests = keeps_tests(dist.root)
        self._digests: dict[str, str] = {}

    def unproven(self, stack: Stack, patch: StackPatch, beside: Stack | None = None) -> str | None:
        """Why the feature is not proven on this stack, in a line that names what is lacking or has changed; None if it is. With
        `beside`, on trees that had that stack of another upstream."""
        try:
            record = read_record(self.root, stack.upstream, stack.name, patch.feature)
        except BadManifest as error:
            return error.what
        if record is None:
            return "no record"
        ran_on = record.tests.trees.get(beside.upstream, "none").partition(" ")[0] if beside and record.tests else None
        if beside is not None and ran_on != beside.name:
            return f"its trees had {beside.upstream} {ran_on}, and not {beside.name}"
        mutants = self.mutants_stale(record, stack, patch)
        lacking = None if mutants or not self._keeps_tests else "it has no mutation"
        return next(filter(None, [self.tests_stale(record, stack, patch), lacking, *mutants.values()]), None)

    def tests_stale(self, record: Record, stack: Stack, patch: StackPatch) -> str | None:
        """Why the record does not show that the feature's tests are red without it and green with it."""
        tests = tests_of(self.dist, stack, patch.feature)
        if record.tests is None:
            return "its tests were not run"
        lacking = not tests and self._keeps_tests
        return "it has no test" if lacking else self._stale(record.tests, stack, patch, tests)

    def mutants_stale(self, record: Record, stack: Stack, patch: StackPatch) -> dict[str, str | None]:
        """The same of each mutation, by its name."""
        stale: dict[str, str | None] = {}
        for file in mutants_of(self.dist, stack, patch.feature):
            name = Path(file).stem
            proof = record.mutants.get(name)
            lacking = f"mutation {name} was not run"
            stale[name] = lacking if proof is None else self._stale(proof, stack, patch, [file])
        return stale

    def _stale(self, proof: Proof, stack: Stack, patch: StackPatch, wanted: Iterable[str]) -> str | None:
        if proof.pin != stack.pin.identity:
            return "the record is of another pin"
        if proof.patch != patch.change_digest:
            return "the patch or a file that it carries has changed"
        if not self._keeps_tests:
            return None  # the tests are where the distribution was made
        return next(self._changed(proof.files, wanted), None)

    def _changed(self, files: Mapping[str, str], wanted: Iterable[str]) -> Iterator[str]:
        for name in wanted:
            if name not in files:
                yield f"{name} was not run"
        for name, digest in sorted(files.items()):
            if name not in self._digests:
                self._digests[name] = _digest(self.root / name)
            if self._digests[name] != digest:
                yield f"{name} has changed" if self._digests[name] != "absent" else f"{name} is gone"
