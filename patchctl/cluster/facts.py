"""The requests to nodes and their answers: plain data, sent as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from patchctl.doc import Doc
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
    """A finding of a node's own check."""

    rule: Annotated[str, Doc("an id of lint-rules.md")]
    message: Annotated[str, Doc("the fault")]
    file: Annotated[str, Doc("below the workspace, where it lies there")]
    severity: Annotated[str, Doc("error or note")] = "error"
    upstream: Annotated[str | None, Doc("whose")] = None


@dataclass(frozen=True)
class TreeFacts:
    """A tree of a node."""

    upstream: Annotated[str, Doc("its name")]
    stack: Annotated[str, Doc("the stack's name")]
    form: Annotated[str, Doc("git or sdist")]
    folder: Annotated[str, Doc("where it lies")]
    tip_commit: Annotated[str, Doc("the last patch's commit, by the state")]
    tip_tree: Annotated[str, Doc("its tree, by the state")]
    tree: Annotated[str | None, Doc("the tree that the files on disk make; null where they cannot be read")]
    patches: Annotated[int, Doc("how many are applied")]
    left_out: Annotated[list[str], Doc("the features that are not in the tree")]
    lock: Annotated[str, Doc("equal, silent, or what is different")]


@dataclass(frozen=True)
class SeenPackage:
    """An import package as one kind of process finds it."""

    view: Annotated[
        str, Doc("worker; spawned, a process that a worker spawned, as engines are; python, with `--python`")
    ]
    upstream: Annotated[str, Doc("whose package")]
    package: Annotated[str, Doc("its name")]
    place: Annotated[str | None, Doc("where it is found")]
    ours: Annotated[bool, Doc("that is the workspace's tree")]
    version: Annotated[str | None, Doc("as its metadata has it")]
    error: Annotated[str | None, Doc("why it cannot be found")]


@dataclass(frozen=True)
class Failed:
    """A patchctl error on a node."""

    kind: Annotated[str, Doc("as in patchctl.error/1")]
    exit_code: Annotated[int, Doc("what `patchctl` would end with there")]
    what: Annotated[str, Doc("the message")]
    hint: Annotated[str | None, Doc("what to try")] = None


@dataclass(frozen=True)
class NodeFacts:
    """Everything that a node reports.

    `identity` identifies the workspace's folder on its file system, so that nodes sharing it are recognised.
    `changed` and `stashed` are of `apply`.
    """

    host: Annotated[str, Doc("the host's name")]
    workspace: Annotated[str, Doc("the workspace there")]
    identity: list[str]
    python: Annotated[str, Doc("the interpreter of its workers")]
    python_version: Annotated[str, Doc("its version")]
    ray: Annotated[str, Doc("the version of Ray in a worker")]
    interpreter: Annotated[str, Doc("the Python whose packages were looked at")]
    packages: Annotated[dict[str, str | None], Doc("by requirement: the version; what is not installed is left out")]
    environment: Annotated[
        dict[str, str | None],
        Doc("the variables that are set; the workspace's folder is written WORKSPACE, a secret `(set)`"),
    ]
    seen: Annotated[list[SeenPackage], Doc("where the packages of the trees are found")] = field(default_factory=list)
    unseen: Annotated[dict[str, str], Doc("by view: why nobody could tell")] = field(default_factory=dict)
    applied: Annotated[bool, Doc("there is a workspace")] = False
    profile: Annotated[str | None, Doc("what it holds; null after a revert")] = None
    without: Annotated[list[str], Doc("features left out with `--without`")] = field(default_factory=list)
    root: Annotated[str | None, Doc("the distribution that it was made from")] = None
    lock_digest: Annotated[str | None, Doc("over the locks of that distribution, where it is on the node")] = None
    distribution_digest: Annotated[str | None, Doc("over its manifests, locks, patches and carried files")] = None
    trees: Annotated[list[TreeFacts], Doc("by name")] = field(default_factory=list)
    faults: Annotated[list[NodeFault], Doc("what the node's own check found, at most 20 of a kind in a tree")] = field(
        default_factory=list
    )
    not_checked: Annotated[list[str], Doc("what could not be checked there")] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    stashed: dict[str, str] = field(default_factory=dict)
    failed: Annotated[Failed | None, Doc("why there is no more")] = None
    seconds: Annotated[dict[str, float], Doc("how long the parts took")] = field(default_factory=dict)
    machine: MachineFacts | None = None
    release: Annotated[str | None, Doc("the release that it is on")] = None

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
