"""What a profile consists of: upstreams, patches, carried files and locked packages, with versions, digests and proofs."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from patchctl import __version__
from patchctl.catalog.evidence import Evidence, read_record
from patchctl.catalog.features import diff_of, sections
from patchctl.distributions import commit_of
from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.manifest.requirement_types import PLATFORMS
from patchctl.manifest.types import PinnedUpstream, Profile, Stack
from patchctl.requirements.lockfile import read_lock as read_requirements
from patchctl.requirements.sets import set_of
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import Selection, select
from patchctl.workspace.state import TreeState, WorkspaceState, load_state

# In two parts, so that REUSE does not read it as this file's own.
_LICENCE = re.compile(rb"SPDX-License-" rb"Identifier: ([A-Za-z0-9(][A-Za-z0-9.+() -]*)")
_KIND = re.compile(r"[0-9]{4}-(\w+)-")

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BomFile:
    """A file: a patch, or one that is written into a tree. `path` is below the distribution's root, or the tree's."""

    path: str
    sha1: str
    sha256: str
    license: str | None


@dataclass(frozen=True)
class BomPatch:
    """A patch. `digest` covers the carried files too; `date` is the day of its header or of its proof, whichever is later."""

    file: BomFile
    feature: str
    kind: str
    subject: str
    need: str
    diff: str
    digest: str
    date: str
    carried: tuple[BomFile, ...]
    facts: Pairs


@dataclass(frozen=True)
class BomUpstream:
    """An upstream at its pin, with its patches in the order they apply. `facts`: stack, pin, trees, left-out features."""

    name: str
    summary: str
    version: str
    purl: str
    license: str | None
    download: str
    sdist: tuple[str, str] | None
    patches: tuple[BomPatch, ...] = ()
    generated: tuple[BomFile, ...] = ()
    facts: Pairs = ()

    @property
    def files(self) -> Iterator[tuple[str, BomFile, Pairs]]:
        """(feature, file, facts) of the files of the distribution that make the tree: patches, what they carry, and what upstream's build
        would write. The facts of a patch begin with its feature."""
        for number, patch in enumerate(self.patches, 1):
            facts = (("feature", patch.feature), ("kind", patch.kind), ("order", str(number)), ("digest", patch.digest))
            yield patch.feature, patch.file, (*facts, *patch.facts)
            yield from ((patch.feature, file, (("carried-by", patch.feature),)) for file in patch.carried)
        yield from (("generated", file, (("generated", "yes"),)) for file in self.generated)


@dataclass(frozen=True)
class BomPackage:
    """A locked package, with the platforms whose lock has it and the sha256 of its files; or what no index has, as CANN."""

    name: str
    version: str
    purl: str | None
    hashes: tuple[str, ...] = ()
    facts: Pairs = ()


@dataclass(frozen=True)
class Contents:
    """Everything of a profile."""

    profile: str
    summary: str
    release: str | None
    tool: str
    commit: str | None
    upstreams: tuple[BomUpstream, ...]
    packages: tuple[BomPackage, ...]
    facts: Pairs

    @property
    def all_facts(self) -> Pairs:
        """`facts`, and the commit of the distribution."""
        return (*self.facts, *((("distribution:commit", self.commit),) if self.commit else ()))

    @property
    def made(self) -> datetime:
        """The newest day that patches and records name: no clock is read."""
        days = (patch.date for upstream in self.upstreams for patch in upstream.patches)
        return datetime.fromisoformat(max(days, default="1970-01-01")).replace(tzinfo=timezone.utc)

    @property
    def digest(self) -> str:
        """sha256 of all of it; serial numbers derive from it."""
        return hashlib.sha256(repr(self).encode("utf-8", "backslashreplace")).hexdigest()


def contents_of(dist: Distribution, profile: Profile, workspace: Path | None = None) -> Contents:
    """Collect a profile's contents; with a workspace, what is applied there. Needs no source.

    Raises what `select` raises, and WrongUse if the workspace holds something else.
    """
    state = state_of(workspace) if workspace else None
    if state is not None and dist.held(state.profile, state.release) != profile:
        held = f"{state.profile}, release {state.release}" if state.release else state.profile or "no profile"
        hint = f"`patchctl apply {profile.options} --workspace {shlex.quote(str(workspace))}` moves it there"
        raise WrongUse(f"the workspace holds {held}, not {profile.options.replace('--', '')}", hint=hint)
    chosen, evidence = select(dist, profile, ()), Evidence(dist)
    stacks = {name: stack for name, stack in chosen.stacks.items() if state is None or name in state.trees}
    upstreams = [_upstream(chosen, stack, evidence, state) for stack in stacks.values()]
    pinned = dist.release(profile.release).pinned if profile.release else {}
    return Contents(
        profile.name,
        profile.summary,
        profile.release,
        __version__,
        commit_of(dist.root),
        (*upstreams, *(_pinned(name, one) for name, one in pinned.items())),
        (*_locked(dist, profile), *_runtime(dist, profile)),
        _applied(state) if state else (("of", "the distribution"),),
    )


def _applied(state: WorkspaceState) -> Pairs:
    skipped = (("skipped", f"{one.upstream}: its source was unavailable") for one in state.skipped)
    return (("of", "a workspace"), *skipped)


def _upstream(chosen: Selection, stack: Stack, evidence: Evidence, state: WorkspaceState | None) -> BomUpstream:
    dist, name, pin = evidence.dist, stack.upstream, stack.pin
    known, tree = dist.upstream(name), state.trees[name] if state else None
    patches, left_out = _patches(chosen, stack, tree)
    sdist = (
        (f"pkg:pypi/{canonicalize_name(known.sdist)}@{pin.sdist.version}", pin.sdist.sha256)
        if known.sdist and pin.sdist
        else None
    )
    ids = (("pin:commit", pin.commit), ("pin:tree", pin.tree), ("pin:tag", pin.tag))
    facts = (
        ("stack", f"{name}/{stack.name}"),
        *((key, value) for key, value in ids if value),
        *((("pin:sdist", pin.sdist.version), ("pin:sdist:sha256", pin.sdist.sha256)) if pin.sdist else ()),
        *(_tree(tree) if tree else _lock(evidence, stack, [feature for feature, _ in left_out])),
        *(("left-out", f"{feature}: {reason}") for feature, reason in left_out),
    )
    remote = [
        url for url in known.git if not url.startswith("file:")
    ]  # a folder of this machine names nothing elsewhere
    place = next((url for url in remote if "://github.com/" in url), next(iter(remote), ""))
    return BomUpstream(
        name,
        known.summary,
        pin.tag or (pin.sdist.version if pin.sdist else pin.identity),
        _git_purl(name, place, pin.commit) if pin.commit else sdist[0] if sdist else f"pkg:generic/{name}",
        known.license,
        f"git+{place}@{pin.commit}" if pin.commit and place else "",
        sdist,
        tuple(_patch(one, stack, known.license, evidence) for one in patches),
        tuple(_file(one.path, one.content.encode(), known.license) for one in stack.generated),
        facts,
    )


def _patches(chosen: Selection, stack: Stack, tree: TreeState | None) -> tuple[list[StackPatch], list[tuple[str, str]]]:
    """Return the patches that are applied, and the features that are not, with the reason. Raises WrongUse."""
    series = chosen.patches[stack.upstream]
    if tree is None:
        omitted = {id(one.patch): one for one in chosen.omitted}
        out = [(one.patch.feature, one.reason) for one in chosen.omitted if one.upstream == stack.upstream]
        return [one for one in series if id(one) not in omitted], out
    held = {one.digest for one in tree.patches}
    found = [one for one in series if one.digest in held]
    if tree.stack != stack.name or [one.digest for one in found] != [one.digest for one in tree.patches]:
        what = f"the workspace's {stack.upstream} has other patches than the distribution"
        raise WrongUse(
            what, hint="`patchctl apply` makes them the same; or name the other distribution with --root DIR"
        )
    return found, [(one.feature, one.reason) for one in tree.left_out]


def _tree(tree: TreeState) -> Pairs:
    ids = (("base:commit", tree.base_commit), ("base:tree", tree.base_tree))
    tip = (("tip:commit", tree.tip_commit), ("tip:tree", tree.tip_tree), ("as-locked", "yes" if tree.locked else "no"))
    own = (("base:not-the-pins", path) for path in tree.differing)
    return (("form", tree.form), *ids, *tip, *own)


def _lock(evidence: Evidence, stack: Stack, left_out: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the locked trees of each form that gives exactly these features."""
    lock = read_lock(evidence.root, stack)
    for result in lock.results if lock else ():
        for form, record in result.forms.items():
            if isinstance(record, LockedForm) and {*result.without, *record.unavailable} == {*left_out}:
                yield f"locked:{form}:tip:commit", record.tip_commit
                yield f"locked:{form}:tip:tree", record.tip_tree


def _patch(one: StackPatch, stack: Stack, license_: str, evidence: Evidence) -> BomPatch:
    header, kind, proof = one.header, _KIND.match(one.file.name), tuple(_proof(one, stack, evidence))
    written = datetime.fromtimestamp(int(header.date.split()[0]), timezone.utc).date().isoformat()
    facts = [("switch", ", ".join(header.listed("Switch")) or "none")]
    facts += [
        (key.lower(), value)
        for key in ("Requires", "Upstream-Status", "Drop-When")
        for value in [header.trailer(key)]
        if value
    ]
    return BomPatch(
        _file(one.shown, one.data, license_),
        one.feature,
        kind[1] if kind else "feature",
        header.subject,
        sections(one)[0],
        diff_of(one),
        one.digest,
        max([written, *(value for key, value in proof if key == "proof:date")]),
        tuple(_file(path, data, _said(data)) for path, data in sorted(one.carried.items())),
        (*facts, *proof),
    )


def _proof(one: StackPatch, stack: Stack, evidence: Evidence) -> Iterator[tuple[str, str]]:
    lacking = evidence.unproven(stack, one)
    record = None if lacking else read_record(evidence.root, stack.upstream, stack.name, one.feature)
    if record is None or record.tests is None:
        yield "proof", f"none: {lacking}"
        return
    yield "proof", f"{len(record.tests.results.get('patched', ()))} tests, {len(record.mutants)} mutations"
    yield "proof:date", record.tests.date
    yield from ((f"proof:environment:{name}", value) for name, value in sorted(record.tests.environment.items()))


def _file(path: str, data: bytes, license_: str | None) -> BomFile:
    return BomFile(path, hashlib.sha1(data).hexdigest(), hashlib.sha256(data).hexdigest(), license_)


def _said(data: bytes) -> str | None:
    found = _LICENCE.search(data[:2000])
    # What ends a comment of XML may follow.
    return found[1].partition(b" --")[0].decode("ascii").strip() if found else None


def _pinned(name: str, one: PinnedUpstream) -> BomUpstream:
    facts = (("pin:commit", one.commit), ("patched", "no"))
    download = f"git+{one.git}@{one.commit}"
    return BomUpstream(
        name,
        one.summary,
        one.tag or one.commit,
        _git_purl(name, one.git, one.commit),
        None,
        download,
        None,
        facts=facts,
    )


def _git_purl(name: str, place: str, commit: str) -> str:
    """Return pkg:github for a repository there, else pkg:generic with its address."""
    owner = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?/?", place)
    if owner:
        return f"pkg:github/{owner[1].lower()}/{owner[2].lower()}@{commit}"
    return f"pkg:generic/{name}@{commit}" + (f"?vcs_url={quote(f'git+{place}@{commit}', safe=':/')}" if place else "")


def _locked(dist: Distribution, profile: Profile) -> list[BomPackage]:
    """Return the packages of the locks of every platform, so that it does not matter where this runs."""
    named = set_of(dist, profile)
    found: dict[tuple[str, str], BomPackage] = {}
    for platform in PLATFORMS if named else ():
        assert named is not None
        for one in read_requirements(named, platform).packages.values():
            other = found.get((one.name, one.version))
            facts = (("platform", platform), *((("index", one.index),) if one.index else ()))
            have = other or BomPackage(one.name, one.version, _pypi_purl(one.name, one.version, one.index))
            hashes = tuple(sorted({*have.hashes, *(h.removeprefix("sha256:") for h in one.hashes)}))
            found[one.name, one.version] = replace(have, hashes=hashes, facts=tuple(sorted({*have.facts, *facts})))
    return [found[key] for key in sorted(found)]


def _pypi_purl(name: str, version: str, index: str | None) -> str:
    other = f"?repository_url={quote(index, safe=':/')}" if index else ""
    return f"pkg:pypi/{name}@{quote(version, safe='')}{other}"


def _runtime(dist: Distribution, profile: Profile) -> Iterator[BomPackage]:
    """Yield what the stacks were chosen for and no index has: CANN, the driver."""
    for name, version in profile.runtime.items():
        if name in dist.requirements and dist.requirements[name].kind == "system":
            yield BomPackage(name, version, None, facts=(("summary", dist.requirements[name].summary),))


def state_of(workspace: Path) -> WorkspaceState:
    """Return the state of a workspace. Raises WrongUse if nothing is applied there."""
    state = load_state(workspace)
    if state is None or state.profile is None:
        raise WrongUse(f"nothing is applied in {workspace}", hint="name the folder that `patchctl apply` was given")
    return state
