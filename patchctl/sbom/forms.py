"""The forms that a bill of materials is written in, and one of them: an in-toto statement, which is also read and compared with trees.

in-toto Statement v1 with SLSA's provenance v1 as predicate: which trees a workspace has, made of which bases and patches, by what. A subject
is a patched tree by git's ids, a resolved dependency a base, a patch or a carried file. There is no time and no machine in it: the same workspace
gives the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchctl import extension
from patchctl.bundle.reader import opened
from patchctl.bundle.signature import STATEMENT, Trust, check_signature
from patchctl.errors import NotTrusted, WrongUse
from patchctl.findings import Finding
from patchctl.sbom.contents import BomFile, BomUpstream, Contents
from patchctl.workspace.state import WorkspaceState, in_profile

# By form: what writes it, the ending of its files, and the package of the extra `sbom` that this needs, with its import name.
_FORMS = {
    "cyclonedx": ("patchctl.sbom.as_cyclonedx:as_cyclonedx", ".cdx.json", ("cyclonedx-python-lib", "cyclonedx")),
    "spdx": ("patchctl.sbom.as_spdx:as_spdx", ".spdx.json", ("spdx-tools", "spdx_tools")),
    "in-toto": ("patchctl.sbom.forms:as_in_toto", ".intoto.json", None),
}
_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "patchctl:apply:1"
LIMIT = 16 << 20  # of a statement that is read


def check_form(form: str) -> None:
    """Raise WrongUse if the package that writes the form is not installed."""
    needs = _FORMS[form][2]
    if needs and importlib.util.find_spec(needs[1]) is None:
        what = f"{needs[0]}, which writes {form}, is not installed"
        raise WrongUse(what, hint=f"{sys.executable} -m pip install {needs[0]}")


def name_of(contents: Contents, form: str) -> str:
    """The usual name of a file with these contents."""
    return contents.profile + _FORMS[form][1]


def render(contents: Contents, form: str) -> bytes:
    """Return the contents in this form; equal contents give equal bytes. Raises WrongUse as `check_form`."""
    check_form(form)
    text: str = extension.load(_FORMS[form][0])(contents)
    return text.encode()


def as_in_toto(contents: Contents) -> str:
    """Return the statement's text, ending with a newline. Raises WrongUse if the contents are not a workspace's."""
    trees = [one for one in contents.upstreams if "tip:tree" in dict(one.facts)]
    if ("of", "a workspace") not in contents.facts:
        raise WrongUse("an in-toto statement is of trees that were made", hint="name their workspace: --workspace DIR")
    skipped = [value for key, value in contents.facts if key == "skipped"]
    asked = {"profile": contents.profile, "release": contents.release, "skipped": skipped}
    left_out = {one.name: found for one in trees if (found := [v for k, v in one.facts if k == "left-out"])}
    statement = {
        "_type": _TYPE,
        "subject": [_subject(one.name, one.facts, "tip") for one in trees],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": asked | {"leftOut": left_out},
                "resolvedDependencies": [made for one in trees for made in _dependencies(one)],
            },
            "runDetails": {"builder": {"id": f"patchctl:{contents.tool}", "version": _version(contents)}},
        },
    }
    return json.dumps(statement, indent=1) + "\n"


def _version(contents: Contents) -> dict[str, str]:
    return {"patchctl": contents.tool, **({"distribution": contents.commit} if contents.commit else {})}


def _subject(name: str, facts: tuple[tuple[str, str], ...], end: str) -> dict[str, Any]:
    ids = dict(facts)
    return {"name": name, "digest": {"gitCommit": ids[f"{end}:commit"], "gitTree": ids[f"{end}:tree"]}}


def _dependencies(one: BomUpstream) -> Iterator[dict[str, Any]]:
    yield {**_subject(f"{one.name}: base", one.facts, "base"), "uri": one.purl}
    for patch in one.patches:
        yield from map(_file, (patch.file, *patch.carried))
    yield from map(_file, one.generated)


def _file(one: BomFile) -> dict[str, Any]:
    return {"name": one.path, "digest": {"sha256": one.sha256}}


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
    if statement["predicateType"] != PREDICATE:
        raise ValueError(f"its predicateType is {statement['predicateType']!r:.80}")
    if len({one["name"] for one in statement["subject"]}) < len(statement["subject"]):
        raise ValueError("two of its subjects have one name")
    return {str(one["name"]): (one["digest"]["gitCommit"], one["digest"]["gitTree"]) for one in statement["subject"]}
