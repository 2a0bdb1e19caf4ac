"""evidence.json: the record of one feature on one stack.

What runs share is stored once below `shared`, under a key made from its own digest, and runs refer to the keys:

    "shared": {"environment": {KEY: {...}}, "files": {KEY: {PATH: SHA256}}, "patch": {KEY: {...}}, "trees": {KEY: {...}}}
    "tests":  {"results": {TEST: {"base": ..., "patched": ...}}, "run": {"date": ..., "environment": KEY, "files": KEY, ...}}

So a key never means two things, the same record gives the same bytes, and two branches that prove different mutations
add lines in different places. A key that does not match its entry, or has none, comes from a manual edit or a merge:
the record is refused, since it is unknown what ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, Where
from patchctl.manifest.series import RECORD

SCHEMA = "patchctl.evidence/2"
_SHARED = ("environment", "files", "patch", "trees")
# 48 bits: a record has a dozen entries, so collisions do not occur.
_KEY_CHARS = 12
# Fits a path with its digest, or a whole run, on one line.
_WIDTH = 160


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


def with_tests(record: EvidenceRecord, proof: Proof | None) -> EvidenceRecord:
    return replace(record, tests=proof)


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
    replace_file(file, _laid_out(data).encode() + b"\n")
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


def _laid_out(value: Any, depth: int = 0, before: int = 0) -> str:
    """Render JSON for readable diffs: an object on one line if it fits _WIDTH, else one line per member.

    `before` is how many characters precede it on its line.
    """
    line = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict) or before + len(line) <= _WIDTH:
        return line
    members = []
    for name in sorted(value):
        start = f"{' ' * (depth + 1)}{json.dumps(name)}: "
        members.append(start + _laid_out(value[name], depth + 1, len(start)))
    return "{\n" + ",\n".join(members) + f"\n{' ' * depth}}}"


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
