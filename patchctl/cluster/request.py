"""What is sent to nodes: requests, and patchctl's modules with the distribution in one archive; and what answers are compared with.

A node needs only Python and git: manifests are sent validated (manifest.files), so that yaml is not imported, and
verify, status and apply from git, a cache or a bundle use only the standard library. The same distribution and
patchctl give the same bytes.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

from patchctl.cluster.compare import ClusterExpectation
from patchctl.cluster.facts import CACHE, CODE, DISTRIBUTION, SECRET, ApplyOptions, Request, Verb
from patchctl.cluster.fanout import Answer, Cluster, ClusterNode, own_paths
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import distribution_digest, distribution_files
from patchctl.terminal.progress import Progress

PACKAGE = Path(__file__).resolve().parent.parent
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Payload:
    """The archive, and the digest of the distribution in it."""

    data: bytes
    distribution_digest: str


def make_payload(dist: Distribution) -> Payload:
    """Build the payload, reading each file once. Raises InvalidManifest if the manifests became invalid."""
    own = {p.relative_to(PACKAGE): p for p in PACKAGE.rglob("*.py")}
    # An installed tool has the distribution beside its modules.
    members = {
        f"{CODE}/patchctl/{name.as_posix()}": path
        for name, path in own.items()
        if not {"__pycache__", "_distribution"} & set(name.parts)
    }
    members |= {f"{DISTRIBUTION}/{name}": path for name, path in distribution_files(dist.root)}
    with tempfile.TemporaryDirectory(prefix="patchctl-payload-") as name:
        cache = Path(name)
        Distribution.load(dist.root, cache)
        members |= {f"{CACHE}/{p.relative_to(cache).as_posix()}": p for p in cache.rglob("*") if p.is_file()}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, path in sorted(members.items()):
                archive.writestr(zipfile.ZipInfo(member, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
        return Payload(out.getvalue(), distribution_digest(dist.root))


# Variables that decide which code a process finds, whatever a recipe sets.
_ALWAYS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")


@dataclass(frozen=True)
class ExpectedEnvironment:
    """What nodes' environments are compared with.

    `variables` are read, `values` must be the same on all nodes, `of_each_node` must be set on each, with the reason.
    `start` is the upstream, and the folder in its tree, in which training starts.
    """

    profile: str | None = None
    variables: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    of_each_node: Mapping[str, str] = field(default_factory=dict)
    start: tuple[str, str] | None = None


def plain_request(verb: Verb, dist: Distribution, workspace: Path | None, fallback: Path, seconds: float) -> Request:
    """Return a minimal request, for `look` and as the base for `apply`."""
    named = str(workspace.absolute()) if workspace is not None else None
    root = str(dist.root)
    return Request(verb, named, str(fallback.absolute()), None, root, None, seconds, drop=own_paths())


def looking_request(
    plain: Request, dist: Distribution, environment: ExpectedEnvironment, python: str | None
) -> Request:
    """Return the request of `status` and `verify`."""
    variables = list(dict.fromkeys([*_ALWAYS, *environment.variables]))
    names = {p: u.sdist or name for name, u in dist.upstreams.items() for p in u.packages}
    return replace(
        plain,
        profile=environment.profile,
        python=python,
        names=names,
        packages={name: dict(u.packages) for name, u in dist.upstreams.items() if u.packages},
        requirements={n: (r.distribution or n) if r.kind == "python" else None for n, r in dist.requirements.items()}
        | ({"python": None} if "python" not in dist.requirements else {}),
        variables=variables,
        secret=[v for v in variables if SECRET.search(v)],
        start=list(environment.start) if environment.start else None,
    )


def wanted_of(
    dist: Distribution, payload: Payload, environment: ExpectedEnvironment, nodes: int | None
) -> ClusterExpectation:
    """Return what answers are compared with. Raises WrongUse for an unknown profile."""
    if environment.profile is not None:
        dist.profile(environment.profile)
    return ClusterExpectation(
        dist, payload.distribution_digest, environment.profile, nodes, environment.values, environment.of_each_node
    )


@dataclass
class Applying:
    """Sends the requests of an `apply`; payload and bundle go to the object store once."""

    cluster: Cluster
    dist: InitVar[Distribution]
    plain: Request
    options: ApplyOptions
    bundle: Any
    progress: Progress

    def __post_init__(self, dist: Distribution) -> None:
        self.payload = self.cluster.put(make_payload(dist).data)
        self.bundle = self.cluster.put(self.bundle) if self.bundle is not None else None

    def __call__(self, verb: Verb, nodes: Sequence[ClusterNode]) -> Mapping[ClusterNode, Answer]:
        writes = verb in ("preview", "apply")
        request = replace(self.plain, verb=verb, apply=self.options if writes else None)
        self.progress.start(f"cluster {verb}", None)
        try:
            requests, bundle = dict.fromkeys(nodes, request), self.bundle if writes else None
            return self.cluster.ask(requests, self.payload, self.progress, bundle=bundle)
        finally:
            self.progress.finish()
