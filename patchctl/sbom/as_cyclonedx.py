"""Contents as CycloneDX 1.6 JSON: upstreams with their patches as pedigree, locked packages, and the tool.

A patch has no properties in CycloneDX: its digest, switch, licence and proof are those of a file component inside its upstream's.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import (
    AttachedText,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from license_expression import ExpressionError, get_spdx_licensing
from packageurl import PackageURL

from patchctl.sbom.contents import BomFile, BomPackage, BomPatch, BomUpstream, Contents, Pairs


def as_cyclonedx(contents: Contents) -> str:
    """Return the document's text, ending with a newline. The same contents give the same bytes."""
    whole = Component(
        name=contents.profile,
        type=ComponentType.APPLICATION,
        version=contents.release,
        description=contents.summary,
        bom_ref=f"profile:{contents.profile}",
        properties=_properties(contents.all_facts),
    )
    tool = Component(name="patchctl", type=ComponentType.APPLICATION, version=contents.tool, bom_ref="tool:patchctl")
    parts = [*map(_upstream, contents.upstreams), *map(_package, contents.packages)]
    bom = Bom(
        components=parts,
        serial_number=uuid5(NAMESPACE_URL, contents.digest),
        metadata=BomMetaData(component=whole, tools=ToolRepository(components=[tool]), timestamp=contents.made),
    )
    bom.register_dependency(whole, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _upstream(one: BomUpstream) -> Component:
    patches = [_patch(patch) for patch in one.patches]
    return Component(
        name=one.name,
        version=one.version,
        description=one.summary,
        bom_ref=f"upstream:{one.name}",
        purl=PackageURL.from_string(one.purl),
        licenses=_licences(one.license),
        pedigree=Pedigree(patches=patches) if patches else None,
        components=[_file(one.name, *row) for row in one.files],
        external_references=list(_references(one)),
        properties=_properties(one.facts),
    )


def _references(one: BomUpstream) -> Iterator[ExternalReference]:
    if one.download:
        yield ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(one.download))
    if one.sdist:
        purl, sha256 = one.sdist
        digest = HashType(alg=HashAlgorithm.SHA_256, content=sha256)
        yield ExternalReference(type=ExternalReferenceType.SOURCE_DISTRIBUTION, url=XsUri(purl), hashes=[digest])


def _patch(one: BomPatch) -> Patch:
    kind = IssueClassification.DEFECT if one.kind == "bugfix" else IssueClassification.ENHANCEMENT
    resolves = IssueType(type=kind, id=one.feature, name=one.subject, description=one.need)
    return Patch(
        type=PatchClassification.UNOFFICIAL, diff=Diff(text=AttachedText(content=one.diff)), resolves=[resolves]
    )


def _file(upstream: str, whose: str, one: BomFile, facts: Pairs) -> Component:
    return Component(
        name=one.path,
        type=ComponentType.FILE,
        bom_ref=f"file:{upstream}:{whose}:{one.path}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)],
        licenses=_licences(one.license),
        properties=_properties(facts),
    )


def _package(one: BomPackage) -> Component:
    return Component(
        name=one.name,
        type=ComponentType.LIBRARY if one.purl else ComponentType.PLATFORM,
        version=one.version,
        bom_ref=f"package:{one.name}@{one.version}",
        purl=PackageURL.from_string(one.purl) if one.purl else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256) for sha256 in one.hashes],
        properties=_properties(one.facts),
    )


def _licences(expression: str | None) -> list[LicenseExpression | DisjunctiveLicense]:
    """A licence in words of its own is a name."""
    if not expression:
        return []
    try:
        get_spdx_licensing().parse(expression)
    except ExpressionError:
        return [DisjunctiveLicense(name=expression)]
    return [LicenseExpression(expression)]


def _properties(facts: Pairs) -> list[Property]:
    return [Property(name=f"patchctl:{name}", value=value) for name, value in facts]
