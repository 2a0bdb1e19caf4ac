"""`patchctl verify --workspace DIR --statement FILE`: whether an in-toto statement describes the trees that are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from patchctl.bundle.reader import opened
from patchctl.bundle.signature import STATEMENT, Trust, check_signature
from patchctl.errors import NotTrusted
from patchctl.findings import Finding
from patchctl.workspace.state import WorkspaceState, in_profile

_TYPE = "https://in-toto.io/Statement/v1"
LIMIT = 16 << 20


def read_statement(file: Path, trust: Trust | None) -> bytes:
    """Return a statement's bytes. Raises NotTrusted if `trust` requires a signature and none counts, WrongUse if it cannot be read."""
    with opened(file, STATEMENT.name) as (stream, _):
        data = stream.read(LIMIT)
        if trust is not None and trust.required:
            signature = check_signature(file, stream, trust, STATEMENT)
            if signature.sha256 != hashlib.sha256(data).hexdigest():
                raise NotTrusted("the statement is not what was signed", where=str(file))
    return data


def statement_findings(data: bytes, file: Path, state: WorkspaceState) -> Iterator[Finding]:
    """Yield where the statement's subjects and the trees that the workspace's state names differ.

    `verify` compares the trees themselves with the state.
    """
    try:
        said = _subjects(data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else "a part of it is missing, or is not what it should be"
        yield Finding("statement", f"this is not a statement of `patchctl sbom --format in-toto`: {why}", str(file))
        return
    there = {name: (tree.tip_commit, tree.tip_tree) for name, tree in state.trees.items() if in_profile(tree)}
    for name in sorted({*said, *there}):
        if said.get(name) == there.get(name):
            continue
        stated = f"has tree {said[name][1]} of {name}" if name in said else f"does not have {name}"
        here = f"is {there[name][1]}" if name in there else "is none"
        message = f"the statement {stated}, and here {here}: it is of other trees"
        yield Finding("statement", message, str(file), upstream=name)


def _subjects(data: bytes) -> dict[str, tuple[str, str]]:
    """Return commit and tree by name."""
    statement = json.loads(data)
    if statement["_type"] != _TYPE:
        raise ValueError(f"its _type is {statement['_type']!r:.80}")
    return {str(one["name"]): (one["digest"]["gitCommit"], one["digest"]["gitTree"]) for one in statement["subject"]}
