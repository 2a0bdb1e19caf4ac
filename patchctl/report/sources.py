"""Text and JSON output of `fetch`, `use` and `bundle`. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from patchctl.bundle.layout import BundledSource, BundleMember, Index
from patchctl.bundle.signature import Signature
from patchctl.doc import Doc, Spread
from patchctl.errors import Tried
from patchctl.manifest.default_roots import Used
from patchctl.source.types import Base
from patchctl.stack.plan import Skipped
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import Style, visible_line

if TYPE_CHECKING:
    from patchctl.bundle.create import Created
    from patchctl.bundle.reader import Bundle


@dataclass(frozen=True)
class FetchedSource:
    """A base that is now in the cache."""

    base: Annotated[Base, Spread()]
    from_cache: Annotated[bool, Doc("true if it was cached and nothing was fetched")]
    bytes: Annotated[int, Doc("number of bytes fetched")]
    objects: Annotated[int, Doc("number of objects read back and verified")]
    seconds: Annotated[float, Doc("duration in seconds")]


@dataclass(frozen=True)
class FetchOutput:
    """What `fetch` prints."""

    profile: Annotated[str, Doc("profile name")]
    root: Annotated[Path, Doc("distribution folder; with `--bundle`, the folder that the bundle was unpacked to")]
    sources: Annotated[Sequence[FetchedSource], Doc("bases, in the order of upstreams.yaml")]
    skipped: Annotated[Sequence[Skipped], Doc("with `--skip-unavailable`: unavailable upstreams")]


@dataclass(frozen=True)
class UsedRow:
    """A distribution that `use` fetched."""

    used: Annotated[Used, Spread()]
    root: Annotated[Path, Doc("folder with its files")]
    default: Annotated[bool, Doc("true if runs outside a distribution take it")]


@dataclass(frozen=True)
class UseOutput:
    """What `use` prints."""

    distributions: Annotated[Sequence[UsedRow], Doc("fetched distributions, sorted by commit")]
    default: Annotated[Path | None, Doc("folder that runs outside a distribution take, or null if there is none")]
    fetched: Annotated[bool, Doc("true if this run fetched the default")]


@dataclass(frozen=True)
class MissingForm:
    """A source form that the bundle lacks."""

    upstream: Annotated[str, Doc("upstream name")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    tried: Annotated[
        Sequence[Tried] | None,
        Doc("`bundle create` only: sources tried, with the reason for each failure", optional=True, pairs=True),
    ] = None


@dataclass(frozen=True)
class UnpackOutput:
    """What `bundle unpack` prints."""

    file: Annotated[Path, Doc("path of the bundle")]
    sha256: Annotated[str, Doc("sha256 of the bundle")]
    folder: Annotated[Path, Doc("folder that the distribution was unpacked to")]
    files: Annotated[int, Doc("number of files unpacked")]


@dataclass(frozen=True)
class _OfBundle:
    file: Annotated[
        Path,
        Doc("path of the bundle; a modified bundle gives an error of kind `source-mismatch` that names the change"),
    ]
    size: Annotated[int, Doc("size in bytes")]
    sha256: Annotated[str, Doc("sha256 of the bundle, for `--sha256`")]
    profile: Annotated[str, Doc("profile name")]
    release: Annotated[str | None, Doc("release of the profile")]
    sources: Annotated[Sequence[BundledSource], Doc("sources in the bundle")]
    signature: Annotated[
        Signature | None,
        Doc(
            "with `--sign`: the new signature; when reading, the valid signatures if `--allowed-signers` or the"
            " configuration requires them"
        ),
    ]


@dataclass(frozen=True)
class CreateOutput(_OfBundle):
    """What `bundle create` prints."""

    missing: Annotated[Sequence[MissingForm], Doc("source forms that were unavailable")]
    skipped: Annotated[Sequence[Skipped], Doc("with `--skip-unavailable`: upstreams with no available source form")]


def created_output(created: Created) -> CreateOutput:
    """Return the contents, and where missing forms were looked for."""
    tried = {(m.upstream, str(m.form)): m.failure.tried for m in created.missing}
    missing = [MissingForm(*one, tried.get(one, [])) for one in created.index.missing]
    return CreateOutput(*_head(created), missing, created.plan.skipped)


def created_text(created: Created, style: Style) -> Iterator[str]:
    """Yield the contents, what is missing and where it was looked for, and the digest to pass on with the file."""
    yield from _sources(created.index, style)
    for missing in created.missing:
        yield f"{missing.upstream:<12} {missing.form:<6} {style.note('not in it')}"
        yield from _tried(t for t in missing.failure.tried if not t.place.startswith("cache "))
    for skipped in created.plan.skipped:
        yield f"{skipped.upstream:<12} {style.note('skipped')}: its source could not be had"
        yield from _tried(skipped.tried)
    for planned in created.plan.stacks:
        for left in planned.omitted:
            yield f"{planned.upstream:<12} {style.note('left out')} {left.patch.feature}: {visible_line(left.reason)}"
    yield from _end(created, style)


def _tried(places: Iterable[Tried]) -> Iterator[str]:
    yield from (f"    tried {visible_line(t.place)}: {visible_line(t.reason)}" for t in places)


@dataclass(frozen=True)
class BundleOutput(_OfBundle):
    """What `bundle verify` and `bundle show` print."""

    distrust: Annotated[str | None, Doc("why no signature is valid; only if the user configuration says `warn`")]
    missing: Annotated[Sequence[MissingForm], Doc("source forms not in the bundle")]
    members: Annotated[Sequence[BundleMember] | None, Doc("with `--members`: files in the bundle", optional=True)]


def bundle_output(bundle: Bundle, *, members: bool) -> BundleOutput:
    """Return the bundle's description of itself."""
    missing = [MissingForm(*one) for one in bundle.index.missing]
    distrust = None if bundle.distrust is None else str(bundle.distrust)
    return BundleOutput(*_head(bundle), distrust, missing, bundle.index.members if members else None)


def show_text(bundle: Bundle, style: Style, *, members: bool) -> Iterator[str]:
    """Yield profile, sources, missing forms, size and digest; with `members`, every file."""
    yield f"profile      {bundle.index.profile}"
    if bundle.index.release:
        yield f"release      {bundle.index.release}"
    yield from _sources(bundle.index, style)
    yield from (f"{u:<12} {f:<6} {style.note('not in it')}" for u, f in bundle.index.missing)
    if members:
        yield from (f"{m.sha256}  {m.size:>10}  {visible_line(m.name)}" for m in bundle.index.members)
    yield from _end(bundle, style)


def verify_text(bundle: Bundle, style: Style) -> Iterator[str]:
    """Yield one line: the bundle is intact."""
    members = len(bundle.index.members)
    yield f"{visible_line(str(bundle.path))}: {style.good('every byte is as it was written')}, {members} members"
    yield from _signed(bundle.signature, style)
    if bundle.unread:
        yield style.note(
            f"{visible_line(bundle.unread.name)} was not looked at: --allowed-signers FILE says whose signatures count"
        )
    yield f"sha256 {bundle.sha256}"


def _signed(signature: Signature | None, style: Style) -> Iterator[str]:
    for signer in signature.signers if signature else ():
        who = f" by {visible_line(signer.principal)}" if signer.principal else ""
        yield f"{style.good('signed')}{who} with {signer.key}"


def _head(one: Created | Bundle) -> tuple[Path, int, str, str, str | None, Sequence[BundledSource], Signature | None]:
    index = one.index
    return one.path, one.size, one.sha256, index.profile, index.release, index.sources, one.signature


def _sources(index: Index, style: Style) -> Iterator[str]:
    sizes = {m.name: m.size for m in index.members}
    for source in index.sources:
        what = source.commit if source.form == "git" else f"version {source.version}"
        yield f"{source.upstream:<12} {source.form:<6} {what}  {size_text(sizes[source.member])}"


def _end(one: Created | Bundle, style: Style) -> Iterator[str]:
    yield f"{visible_line(str(one.path))}: {size_text(one.size)} in {len(one.index.members)} members"
    yield from _signed(one.signature, style)
    yield f"sha256 {one.sha256}"
