"""Contents of a workspace as an in-toto statement: which trees, made of which bases and patches, by what.

in-toto Statement v1 with SLSA's provenance v1 as predicate. A subject is a patched tree by git's ids, a resolved dependency a base,
a patch or a carried file. There is no time and no machine in it: the same workspace gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from patchctl.errors import WrongUse
from patchctl.sbom.contents import BomFile, BomUpstream, Contents

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "patchctl:apply:1"


def as_in_toto(contents: Contents) -> str:
    """Return the statement's text, ending with a newline. Raises WrongUse if the contents are not a workspace's."""
    trees = [one for one in contents.upstreams if "tip:tree" in dict(one.facts)]
    if ("of", "a workspace") not in contents.facts:
        raise WrongUse("an in-toto statement is of trees that were made", hint="name their workspace: --workspace DIR")
    skipped = [value for key, value in contents.facts if key == "skipped"]
    asked = {"profile": contents.profile, "release": contents.release, "skipped": skipped}
    left_out = {one.name: found for one in trees if (found := [v for k, v in one.facts if k == "left-out"])}
    statement = {
        "_type": STATEMENT,
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
