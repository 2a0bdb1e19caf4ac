"""What proves a feature on a stack: where its tests and mutations lie, and the record of the run that found them red and
green.

    patches/<upstream>/<stack>/<feature>/tests/test_*.py    with the probes and modules that are theirs alone
    patches/<upstream>/<stack>/<feature>/mutants/*.yaml
    patches/<upstream>/<stack>/<feature>/evidence.json      written by `patchctl prove` and by nobody else
    tests/behaviour/                                        what serves several features: harness, probes, stand-ins

A feature without tests, or without mutations, has those that it has in the stack which its own extends or `comes_from`.
A record (patchctl.catalog.evidence_file) says what was run (pin, what the patch and its carried files change, by digest, sha256 of
every test, probe and mutation), on what, and what came of it. It holds as long as all of that is as it was; whatever changed makes the
feature unproven here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from patchctl.catalog.evidence_file import Proof, Record, read_record
from patchctl.errors import BadManifest
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, TESTS, descent
from patchctl.manifest.types import Stack
from patchctl.stack.patches import StackPatch

BEHAVIOUR = Path("tests") / "behaviour"


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
        tests = tests_of(self.dist, stack, patch.feature)
        for file in mutants_of(self.dist, stack, patch.feature):
            name = Path(file).stem
            proof = record.mutants.get(name)
            lacking = f"mutation {name} was not run"
            stale[name] = lacking if proof is None else self._stale(proof, stack, patch, tests, mutation=file)
        return stale

    def _stale(
        self, proof: Proof, stack: Stack, patch: StackPatch, tests: Sequence[str], mutation: str | None = None
    ) -> str | None:
        if proof.pin != stack.pin.identity:
            return "the record is of another pin"
        if proof.patch != patch.change_digest:
            return "the patch or a file that it carries has changed"
        if not self._keeps_tests:
            return None  # the tests are where the distribution was made
        if mutation is not None and self._digest(mutation) != proof.mutation:
            return f"{mutation} has changed"
        wanted = tests if mutation is None else ()
        return next(self._changed(proof.files, wanted), None)

    def _changed(self, files: Mapping[str, str], wanted: Iterable[str]) -> Iterator[str]:
        for name in wanted:
            if name not in files:
                yield f"{name} was not run"
        for name, digest in sorted(files.items()):
            if self._digest(name) != digest:
                yield f"{name} has changed" if self._digest(name) != "absent" else f"{name} is gone"

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = _digest(self.root / name)
        return self._digests[name]
