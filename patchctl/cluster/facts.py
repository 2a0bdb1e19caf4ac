"""The requests to nodes and their answers: plain data, sent as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from patchctl.manifest.typeinfo import build

Verb = Literal["look", "status", "verify", "probe", "preview", "apply"]
WORKER, SPAWNED = "worker", "spawned"
SECRET = re.compile(r"(?i)key|token|secret|passw|credential|auth")
"""Names of variables whose values must not leave their node."""


@dataclass(frozen=True)
class ApplyOptions:
    """The options of `apply`, the same for every node.

    `bundle` is a name; its bytes are sent with the request. `release` is chosen here, where the evidence is.
    """

    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: dict[str, list[str]] = field(default_factory=dict)
    offline: bool = False
    without: list[str] = field(default_factory=list)
    skip_unavailable: bool = False
    stash: bool = False
    bundle_sha256: str | None = None
    release: str | None = None


@dataclass(frozen=True)
class MachineRequest:
    """What an extension's probe looks at on a node. `paths` by name: the given value, the variable, the default."""

    variables: list[str] = field(default_factory=list)
    paths: dict[str, list[str | None]] = field(default_factory=dict)
    start: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MachineFacts:
    """What a probe saw: texts by name, and why others are absent."""

    texts: dict[str, str]
    absent: dict[str, str]
    time: float


@dataclass(frozen=True)
class Request:
    """A request. Without `workspace`, a node uses its own PATCHCTL_WORKSPACE, else `fallback`.

    `names` maps import packages to look for to their distributions, `packages` per upstream import packages to
    folders in the tree, `requirements` a profile's requirements to distributions, None if not a Python package. The
    values of `variables` in `secret` stay on the node. `start` is the upstream, and the folder in its tree, in which
    training starts. `drop` is what Ray adds to a worker's sys.path because of where this driver runs. `seconds` is
    the time limit.
    """

    verb: Verb
    workspace: str | None
    fallback: str
    profile: str | None
    root: str
    python: str | None
    seconds: float
    names: dict[str, str] = field(default_factory=dict)
    packages: dict[str, dict[str, str]] = field(default_factory=dict)
    requirements: dict[str, str | None] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    secret: list[str] = field(default_factory=list)
    start: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    apply: ApplyOptions | None = None
    machine: MachineRequest | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class NodeFault:
    """A finding of a node's own check: a rule of lint-rules.md. `file` is below the workspace if it is inside."""

    rule: str
    message: str
    file: str
    severity: str = "error"
    upstream: str | None = None


@dataclass(frozen=True)
class TreeFacts:
    """A tree of a node.

    `tree` is the id computed from the files on disk, None if unreadable; `tip_tree` is the state's. `lock` as in
    `status`: equal, silent, or the difference.
    """

    upstream: str
    stack: str
    form: str
    folder: str
    tip_commit: str
    tip_tree: str
    tree: str | None
    patches: int
    left_out: list[str]
    lock: str


@dataclass(frozen=True)
class Seen:
    """An import package as one kind of process finds it.

    `view` is worker, spawned (by a worker's multiprocessing spawn, like an engine) or python (`--python`). `ours`
    says whether it is the workspace's tree.
    """

    view: str
    upstream: str
    package: str
    place: str | None
    ours: bool
    version: str | None
    error: str | None


@dataclass(frozen=True)
class Failed:
    """A patchctl error on a node: kind and exit code as in docs/exit-codes.md, message and hint."""

    kind: str
    exit_code: int
    what: str
    hint: str | None = None


@dataclass(frozen=True)
class NodeFacts:
    """Everything that a node reports.

    `identity` identifies the workspace's folder on its file system, so that nodes sharing it are recognised;
    `interpreter` is the Python whose packages were looked at. `changed` and `stashed` are of `apply`. `seconds` is by
    part of the work.
    """

    host: str
    workspace: str
    identity: list[str]
    python: str
    python_version: str
    ray: str
    interpreter: str
    packages: dict[str, str | None]
    environment: dict[str, str | None]
    seen: list[Seen] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    applied: bool = False
    profile: str | None = None
    without: list[str] = field(default_factory=list)
    root: str | None = None
    lock_digest: str | None = None
    distribution_digest: str | None = None
    trees: list[TreeFacts] = field(default_factory=list)
    faults: list[NodeFault] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    stashed: dict[str, str] = field(default_factory=dict)
    failed: Failed | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    machine: MachineFacts | None = None
    release: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def tree(self, upstream: str) -> TreeFacts | None:
        return next((t for t in self.trees if t.upstream == upstream), None)


def facts_of(data: Any) -> NodeFacts:
    """Parse a node's answer. Raises TypeError or KeyError if it is malformed."""
    found: NodeFacts = build(NodeFacts, data)
    return found


def request_of(data: Any) -> Request:
    """Parse a request. Raises like `facts_of`."""
    found: Request = build(Request, data)
    return found
