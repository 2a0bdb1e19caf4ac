"""What a node is asked, and what it answers. Plain data both ways: it crosses from one machine to another as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from patchctl.manifest.typeinfo import build

Verb = Literal["look", "status", "verify", "probe", "preview", "apply"]
WORKER, SPAWNED = "worker", "spawned"
SECRET = re.compile(r"(?i)key|token|secret|passw|credential|auth")
"""Names of variables whose values stay on their node."""


@dataclass(frozen=True)
class ApplyOptions:
    """What `apply` is told, the same for every node. `bundle` is a name; its bytes travel beside the request. `release` is settled
    here, where the evidence is."""

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
    """What an extension's probe is to look at on a node. `paths` by name: what was given, the variable, the default; null for
    none."""

    variables: list[str] = field(default_factory=list)
    paths: dict[str, list[str | None]] = field(default_factory=dict)
    start: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MachineFacts:
    """What a probe saw: texts by name, and why others are not there."""

    texts: dict[str, str]
    absent: dict[str, str]
    time: float


@dataclass(frozen=True)
class Request:
    """One question. `workspace` None: the node's own PATCHCTL_WORKSPACE, else `fallback`.

    `names`: the import packages to look for, and what each is installed as. `packages` by upstream: import package to its
    folder in the tree. `requirements`: a profile's requirement to its distribution on the package index, None for what
    is no Python package. Of `variables`, the values of those in `secret` stay on the node. `start`: the upstream, and the
    folder in its tree, that training is started in. `drop`: what Ray puts on a worker's sys.path because of where this
    driver was started. `seconds` is the time limit.
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
    """Something that a node's own check found: a rule of lint-rules.md. `file` is below the workspace where it lies there."""

    rule: str
    message: str
    file: str
    severity: str = "error"
    upstream: str | None = None


@dataclass(frozen=True)
class TreeFacts:
    """One tree of a node. `tree` is the id that its files on disk give, None where they cannot be read; `tip_tree` what
    the state says. `lock` as in `status`: equal, silent, or what is different."""

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
    """An import package as one kind of process finds it. `view` is worker, spawned (what a worker's multiprocessing
    spawn starts: an engine) or python (`--python`). `ours` says whether that is the workspace's tree."""

    view: str
    upstream: str
    package: str
    place: str | None
    ours: bool
    version: str | None
    error: str | None


@dataclass(frozen=True)
class Failed:
    """An error of the tool on that node: its kind and exit code as in docs/exit-codes.md, and the message."""

    kind: str
    exit_code: int
    what: str
    hint: str | None = None


@dataclass(frozen=True)
class NodeFacts:
    """Everything that one node says of itself.

    `identity` names the workspace's folder on its file system, so that nodes which share one are known; `interpreter` is
    the Python whose packages were looked at. `changed` and `stashed` are of `apply`. `seconds` by part of the work.
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
    """Raises TypeError or KeyError for what no node of ours says."""
    found: NodeFacts = build(NodeFacts, data)
    return found


def request_of(data: Any) -> Request:
    """As `facts_of`."""
    found: Request = build(Request, data)
    return found
