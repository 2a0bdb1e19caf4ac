"""Evidence for a feature on a stack: its tests, its mutations, and the record of the runs that proved it.

    patches/<upstream>/<stack>/<feature>/tests/test_*.py    with probes and modules of their own
    patches/<upstream>/<stack>/<feature>/mutants/*.yaml
    patches/<upstream>/<stack>/<feature>/evidence.json      written only by `patchctl prove`
    patches/<upstream>/shared/<feature>/{tests,mutants}/    the same of several stacks, each of which has them
    tests/behaviour/                                        shared by features: harness, probes, stand-ins

A feature without tests or mutations of its own inherits them from the stack that its own stack extends or `comes_from`. A record
has what was run (pin, digest of the change, sha256 of every test, probe and mutation), on what, and
the results. It is valid as long as all of that is unchanged. Files are compared by content:
one that moved, with the same bytes, to another place where the feature's tests find it, is unchanged.

evidence.json: the record of one feature on one stack.

What runs share is stored once below `shared`, under a key made from its own digest, and runs refer to the keys:

    "shared": {"environment": {KEY: {...}}, "files": {KEY: {PATH: SHA256}}, "patch": {KEY: {...}}, "trees": {KEY: {...}}}
    "tests":  {"results": {TEST: {"base": ..., "patched": ...}}, "run": {"date": ..., "environment": KEY, "files": KEY, ...}}

So a key never means two things, the same record gives the same bytes, and two branches that prove different mutations
add lines in different places. A key that does not match its entry, or has none, comes from a manual edit or a merge:
the record is refused, since it is unknown what ran.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, Where
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, RECORD, SHARED, TESTS, descent
from patchctl.manifest.typeinfo import laid_out
from patchctl.manifest.types import Stack
from patchctl.stack.patches import StackPatch

SCHEMA = "patchctl.evidence/2"
_SHARED = ("environment", "files", "patch", "trees")
# 48 bits: a record has a dozen entries, so collisions do not occur.
_KEY_CHARS = 12


@dataclass(frozen=True)
class Proof:
    """One successful run.

    `files` are its tests and probes by sha256, `trees` each tree's stack and tree id. `results` has, per side (base,
    patched or mutant), mark and result of each test; for a mutation, the test that it turned red. `mutation` is the
    mutation's sha256, None for the tests' run.
    """

    pin: str
    patch: str
    files: dict[str, str]
    results: dict[str, dict[str, str]]
    environment: dict[str, str]
    trees: dict[str, str]
    date: str
    mutation: str | None = None


@dataclass(frozen=True)
class EvidenceRecord:
    """What was proven of one feature on one stack.

    The tests (red on the base, green on the patched tree) and each mutation are separate runs: `tests` is None until
    they have succeeded once; `mutants` is by mutation name.
    """

    upstream: str
    stack: str
    feature: str
    tests: Proof | None = None
    mutants: dict[str, Proof] = field(default_factory=dict)


def with_mutant(record: EvidenceRecord, name: str, proof: Proof | None) -> EvidenceRecord:
    rest = {known: one for known, one in record.mutants.items() if known != name}
    return replace(record, mutants=rest if proof is None else {**rest, name: proof})


def record_file(root: Path, upstream: str, stack: str, feature: str) -> Path:
    """Return the path of a feature's record on a stack."""
    return root / "patches" / upstream / stack / feature / RECORD


def write_record(root: Path, record: EvidenceRecord) -> Path:
    """Write a record; equal records give equal bytes. An empty record has no file."""
    file = record_file(root, record.upstream, record.stack, record.feature)
    if record.tests is None and not record.mutants:
        file.unlink(missing_ok=True)
        return file
    shared: dict[str, dict[str, Any]] = {name: {} for name in _SHARED}
    data = {
        "schema": SCHEMA,
        "upstream": record.upstream,
        "stack": record.stack,
        "feature": record.feature,
        "tests": None if record.tests is None else _written(record.tests, shared),
        "mutants": {name: _written(one, shared) for name, one in record.mutants.items()},
        "shared": shared,
    }
    replace_file(file, laid_out(data).encode() + b"\n")
    return file


def _written(proof: Proof, shared: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a run as stored; shared parts go into `shared`."""
    parts = {
        "environment": proof.environment,
        "files": proof.files,
        "patch": {"patch": proof.patch, "pin": proof.pin},
        "trees": proof.trees,
    }
    run = {"date": proof.date}
    for name, value in parts.items():
        run[name] = _key(value)
        shared[name][run[name]] = value
    results: dict[str, dict[str, str]] = {}
    for side, found in proof.results.items():
        for test, result in found.items():
            results.setdefault(test, {})[side] = result
    return {"results": results, "run": run, **({"mutation": proof.mutation} if proof.mutation else {})}


def _key(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_KEY_CHARS]


def read_record(root: Path, upstream: str, stack: str, feature: str) -> EvidenceRecord | None:
    """Return a record, or None. Raises BadManifest for a damaged record or another feature's."""
    file = record_file(root, upstream, stack, feature)
    try:
        data = json.loads(file.read_bytes())
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        shared = {name: dict(data["shared"][name]) for name in _SHARED}
        tests = None if data["tests"] is None else _read(data["tests"], "tests", shared, file)
        mutants = {str(name): _read(one, f"mutation {name}", shared, file) for name, one in data["mutants"].items()}
        record = EvidenceRecord(data["upstream"], data["stack"], data["feature"], tests, mutants)
        if (record.upstream, record.stack, record.feature) != (upstream, stack, feature):
            raise ValueError(f"it is for {record.feature} on {record.upstream}/{record.stack}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"not a record written by patchctl: {error}"
        raise BadManifest(what, where=Where(str(file)), hint="delete it; `patchctl prove` writes a new one") from error
    return record


def _read(data: Mapping[str, Any], whose: str, shared: Mapping[str, Mapping[str, Any]], file: Path) -> Proof:
    parts = {name: _shared(name, data["run"][name], whose, shared, file) for name in _SHARED}
    results: dict[str, dict[str, str]] = {}
    for test, found in data["results"].items():
        for side, result in found.items():
            results.setdefault(side, {})[test] = result
    patch, date, mutation = parts["patch"], data["run"]["date"], data.get("mutation")
    proof = Proof(
        pin=patch["pin"],
        patch=patch["patch"],
        files=parts["files"],
        results=results,
        environment=parts["environment"],
        trees=parts["trees"],
        date=date,
        mutation=mutation,
    )
    texts = [proof.pin, proof.patch, proof.date, *([] if mutation is None else [mutation])]
    for table in (proof.files, proof.environment, proof.trees, *results.values()):
        texts += table.values()
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a value is not a string")
    return proof


def _shared(name: str, key: Any, whose: str, shared: Mapping[str, Mapping[str, Any]], file: Path) -> dict[str, Any]:
    """Return the shared part that a run refers to. Raises BadManifest if it is missing or was altered."""
    value = shared[name].get(key)
    if value is None:
        what = f"the record is incomplete: {whose} refers to {name} {key!r}, which `shared` does not have"
    elif _key(value) != key:
        what = f"the record was edited by hand or by a merge: {name} {key!r} of {whose} does not match its key"
    else:
        return dict(value)
    hint = "restore the file from one side of the merge, or delete it and run `patchctl prove` again"
    raise BadManifest(what, where=Where(str(file)), hint=hint)


BEHAVIOUR = Path("tests") / "behaviour"
# Files outside patches/ that tests of any feature read: probes and modules, stand-ins.
_FOR_ALL = ("tests", "standins")
_ABSENT = "absent"


def tests_of(dist: Distribution, stack: Stack, feature: str) -> tuple[str, ...]:
    """Return the behaviour tests of a feature on a stack, below the root."""
    return _found(dist, stack, f"{feature}/{TESTS}/test_*.py")


def mutants_of(dist: Distribution, stack: Stack, feature: str) -> tuple[str, ...]:
    """Return the mutations that turn these tests red."""
    return _found(dist, stack, f"{feature}/{MUTANTS}/*.yaml")


def _found(dist: Distribution, stack: Stack, pattern: str) -> tuple[str, ...]:
    """Return the stack's own files, else those of the nearest stack that it comes from, and those that stacks share.

    Of two files of one name its own counts, then the shared one.
    """

    def below(folder: str) -> list[Path]:
        return list((dist.root / "patches" / stack.upstream / folder).glob(pattern))

    nearest = next(filter(None, (below(one.name) for one in descent(stack, dist.stacks))), [])
    named = {file.name: file for file in [*nearest, *below(SHARED), *below(stack.name)]}
    return tuple(named[name].relative_to(dist.root).as_posix() for name in sorted(named))


def keeps_tests(root: Path) -> bool:
    """Whether the distribution includes tests. If not, none can be missing."""
    return (
        next((root / BEHAVIOUR).glob("*.py"), None) is not None
        or next(root.glob(f"patches/*/*/*/{TESTS}"), None) is not None
    )


def digests(root: Path, files: Iterable[str]) -> dict[str, str]:
    """Return sha256 by path below the root; "absent" for missing files."""
    return {name: _digest(root / name) for name in sorted(set(files))}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return _ABSENT


class Evidence:
    """Checks a distribution's records against its files. Every file is hashed once."""

    def __init__(self, dist: Distribution) -> None:
        self.dist, self.root = dist, dist.root
        self._keeps_tests = keeps_tests(dist.root)
        self._digest = functools.cache(lambda name: _digest(dist.root / name))
        self._found: dict[Path | None, dict[tuple[str, ...], list[str]]] = {}

    def unproven(self, stack: Stack, patch: StackPatch, beside: Stack | None = None) -> str | None:
        """Return why the feature is not proven on this stack, naming what is missing or has changed, or None.

        With `beside`, the record must be from trees with that stack of another upstream.
        """
        try:
            record = read_record(self.root, stack.upstream, stack.name, patch.feature)
        except BadManifest as error:
            return error.what
        if record is None:
            return "no record"
        ran_on = record.tests.trees.get(beside.upstream, "none").partition(" ")[0] if beside and record.tests else None
        if beside is not None and ran_on != beside.name:
            return f"its trees had {beside.upstream} {ran_on}, not {beside.name}"
        mutants = self.mutants_stale(record, stack, patch)
        lacking = None if mutants or not self._keeps_tests else "it has no mutation"
        return next(filter(None, [self.tests_stale(record, stack, patch), lacking, *mutants.values()]), None)

    def tests_stale(self, record: EvidenceRecord, stack: Stack, patch: StackPatch) -> str | None:
        """Return why the record does not show the tests red without the feature and green with it, or None."""
        tests = tests_of(self.dist, stack, patch.feature)
        if record.tests is None:
            return "its tests were not run"
        lacking = not tests and self._keeps_tests
        return "it has no test" if lacking else self._stale(record.tests, stack, patch, tests)

    def mutants_stale(self, record: EvidenceRecord, stack: Stack, patch: StackPatch) -> dict[str, str | None]:
        """Return the same for each mutation, by name."""
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
            return "the record is for another pin"
        if proof.patch != patch.change_digest:
            return "the patch or one of its carried files has changed"
        if not self._keeps_tests:
            return None  # the tests stayed where the distribution was created
        if mutation is not None and self._digest(mutation) != proof.mutation:
            return f"{mutation} has changed"
        return next(self._changed(proof.files, tests, every_test=mutation is None), None)

    def _changed(self, files: Mapping[str, str], tests: Sequence[str], *, every_test: bool) -> Iterator[str]:
        """Yield which of the files that a run read have changed; with `every_test`, also which tests it lacked."""
        now = {name: self._digest(name) for name in sorted(files)}
        changed = [name for name, digest in now.items() if digest != files[name]]
        gone = [name for name in changed if now[name] == _ABSENT]
        beside = {Path(test).parent for test in tests}
        left = set[Path]()
        for test in (test for test in tests if test not in files):
            # One file each: a copy next to a test that ran is an additional test.
            ran = next((name for name in gone if _is_test(name) and files[name] == self._digest(test)), None)
            if ran is not None:
                gone.remove(ran)
                left.add(Path(ran).parent)
            elif every_test:
                yield f"{test} was not run"
        yield from (f"{name} has changed" for name in changed if now[name] != _ABSENT)
        # A probe left behind in the old folder of its tests is not what they find now.
        gone += [name for name, digest in now.items() if digest != _ABSENT and (left - beside) & {*Path(name).parents}]
        taken = set(files)
        for name in gone:
            places = () if _is_test(name) else self._places(name, beside)
            place = next((one for one in places if one not in taken and self._digest(one) == files[name]), None)
            if place is None:
                yield f"{name} is gone" if now[name] == _ABSENT else f"{name} is no longer next to its tests"
            else:
                taken.add(place)
        yield from self._hidden(files, beside)

    def _places(self, name: str, beside: Iterable[Path]) -> Iterator[str]:
        """Yield where a file may have moved: same name, next to the tests or where all tests look.

        Excludes folders of other features and stacks, which are never read for this one.
        """
        for folder in (*sorted(beside), None):
            yield from self._files(folder).get(_called(name), ())

    def _hidden(self, files: Mapping[str, str], beside: Iterable[Path]) -> Iterator[str]:
        """Yield files added next to the tests that shadow what they read."""
        read: dict[tuple[str, ...], set[str]] = {}
        for name, digest in files.items():
            read.setdefault(_called(name), set()).add(digest)
        for folder in sorted(beside):
            for called, places in self._files(folder).items():
                others = (place for place in places if called in read and place not in files)
                yield from (f"{place} was not read" for place in others if self._digest(place) not in read[called])

    def _files(self, beside: Path | None) -> dict[tuple[str, ...], list[str]]:
        """Return the files of a folder of tests, or with None those shared by all features, by the name tests use."""
        if beside not in self._found:
            folders = [self.root / beside] if beside else [self.root / name for name in _FOR_ALL]
            if beside is None:
                there = sorted(self.root.glob("patches/*/*"))
                folders += [one for one in there if (one.parent.name, one.name) not in self.dist.stacks]
            found = self._found[beside] = {}
            for file in (file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()):
                found.setdefault(_called(self._shown(file)), []).append(self._shown(file))
        return self._found[beside]

    def _shown(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


def _is_test(name: str) -> bool:
    """Whether pytest collects it, and so counts only in the feature's own folder."""
    return name.rpartition("/")[2].startswith("test_")


def _called(name: str) -> tuple[str, ...]:
    """Return what a test refers to it by: the file name, for a package also the folder."""
    parts = name.split("/")
    return tuple(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
