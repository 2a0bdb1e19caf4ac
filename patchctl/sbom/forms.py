"""The forms that a bill of materials is written in, and one of them: an in-toto statement.

in-toto Statement v1 with SLSA's provenance v1 as predicate: which trees a workspace has, made of which bases and patches, by what. A subject
is a patched tree by git's ids, a resolved dependency a base, a patch or a carried file. There is no time and no machine in it: the same workspace
gives the same bytes.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

from patchctl import extension
from patchctl.errors import WrongUse
from patchctl.sbom.contents import BomFile, BomUpstream, Contents

# By form: what writes it, the ending of its files, and the package of the extra `sbom` that this needs, with its import name.
_FORMS = {
    "cyclonedx": ("patchctl.sbom.as_cyclonedx:as_cyclonedx", ".cdx.json", ("cyclonedx-python-lib", "cyclonedx")),
    "spdx": ("patchctl.sbom.as_spdx:as_spdx", ".spdx.json", ("spdx-tools", "spdx_tools")),
    "in-toto": ("patchctl.sbom.forms:as_in_toto", ".intoto.json", None),
}
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "patchctl:apply:1"


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
