"""Contents as SPDX 2.3 JSON: a package per upstream and locked package, a file per patch and carried file.

SPDX has no place for a diff: a patch is a file with its digests, PATCH_FOR its upstream; facts are in comments.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from uuid import NAMESPACE_URL, uuid5

from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.file import File
from spdx_tools.spdx.model.package import ExternalPackageRef, ExternalPackageRefCategory, Package
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from patchctl.sbom.contents import BomFile, BomPackage, BomUpstream, Contents, Pairs

_DOCUMENT = "SPDXRef-DOCUMENT"


def as_spdx(contents: Contents) -> str:
    """Return the document's text, ending with a newline. The same contents give the same bytes."""
    serial = uuid5(NAMESPACE_URL, contents.digest)
    head = CreationInfo(
        "SPDX-2.3",
        _DOCUMENT,
        f"patchctl-{contents.profile}",
        f"https://spdx.org/spdxdocs/patchctl-{contents.profile}-{serial}",
        [Actor(ActorType.TOOL, f"patchctl-{contents.tool}")],
        contents.made,
    )
    whole = Package(
        _id("profile", contents.profile),
        contents.profile,
        SpdxNoAssertion(),
        version=contents.release,
        files_analyzed=False,
        summary=contents.summary,
        comment=_comment(contents.all_facts),
    )
    document = Document(
        head, [whole], relationships=[Relationship(_DOCUMENT, RelationshipType.DESCRIBES, whole.spdx_id)]
    )
    for upstream in contents.upstreams:
        _add(document, whole, _upstream(upstream))
        for whose, one, facts in upstream.files:
            file = _file(upstream, whose, one, facts)
            document.files.append(file)
            how = RelationshipType.PATCH_FOR if facts[0][0] == "feature" else RelationshipType.FILE_ADDED
            document.relationships.append(Relationship(file.spdx_id, how, _id("upstream", upstream.name)))
    for package in contents.packages:
        _add(document, whole, _package(package))
    stream = io.StringIO()
    write_document_to_stream(document, stream, validate=False)
    return stream.getvalue() + "\n"


def _add(document: Document, whole: Package, package: Package) -> None:
    document.packages.append(package)
    document.relationships.append(Relationship(whole.spdx_id, RelationshipType.DEPENDS_ON, package.spdx_id))


def _file(upstream: BomUpstream, whose: str, one: BomFile, facts: Pairs) -> File:
    return File(
        f"./{one.path}",
        _id("file", upstream.name, whose, one.path),
        [Checksum(ChecksumAlgorithm.SHA1, one.sha1), Checksum(ChecksumAlgorithm.SHA256, one.sha256)],
        license_concluded=_licence(one.license),
        comment=_comment(facts),
    )


def _upstream(one: BomUpstream) -> Package:
    return Package(
        _id("upstream", one.name),
        one.name,
        one.download or SpdxNoAssertion(),
        version=one.version,
        files_analyzed=False,
        license_declared=_licence(one.license),
        summary=one.summary,
        comment=_comment(one.facts),
        external_references=_references([one.purl, *([one.sdist[0]] if one.sdist else [])]),
        checksums=[Checksum(ChecksumAlgorithm.SHA256, one.sdist[1])] if one.sdist else [],
    )


def _package(one: BomPackage) -> Package:
    return Package(
        _id("package", one.name, one.version),
        one.name,
        SpdxNoAssertion(),
        version=one.version,
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, sha256) for sha256 in one.hashes],
        comment=_comment(one.facts),
        external_references=_references([one.purl] if one.purl else []),
    )


def _references(purls: Iterable[str]) -> list[ExternalPackageRef]:
    return [
        ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl) for purl in dict.fromkeys(purls)
    ]


def _licence(expression: str | None) -> LicenseExpression | SpdxNoAssertion:
    """A licence in words of its own has no place in SPDX."""
    try:
        return get_spdx_licensing().parse(expression) if expression else SpdxNoAssertion()
    except ExpressionError:
        return SpdxNoAssertion()


def _comment(facts: Pairs) -> str:
    return "\n".join(f"patchctl:{name}: {value}" for name, value in facts)


def _id(*parts: str) -> str:
    """Return an SPDX identifier: letters, digits, '.' and '-' alone; what else is there becomes its code, so that two never meet."""
    text = "-".join(parts)
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", lambda found: f"-{ord(found[0]):x}-", text)
