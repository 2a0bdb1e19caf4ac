"""The requests to nodes and their answers: plain data, sent as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from patchctl.doc import Doc
from patchctl.manifest.typeinfo import build

CODE, DISTRIBUTION, CACHE = "code", "distribution", "cache"  # folders of what is sent to a node
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

    rule: Annotated[str, Doc("rule id from lint-rules.md")]
    message: Annotated[str, Doc("description of the fault")]
    file: Annotated[str, Doc("path, relative to the workspace if inside it")]
    severity: Annotated[str, Doc("`error` or `note`")] = "error"
    upstream: Annotated[str | None, Doc("upstream name")] = None


@dataclass(frozen=True)
class TreeFacts:
    """A tree of a node."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    folder: Annotated[str, Doc("folder of the tree")]
    tip_commit: Annotated[str, Doc("commit of the last patch, according to the state file")]
    tip_tree: Annotated[str, Doc("tree id of that commit, according to the state file")]
    tree: Annotated[str | None, Doc("tree id of the files on disk; null if they cannot be read")]
    patches: Annotated[int, Doc("number of applied patches")]
    left_out: Annotated[list[str], Doc("features not in the tree")]
    lock: Annotated[str, Doc("`equal`, `silent`, or a description of the difference")]


@dataclass(frozen=True)
class SeenPackage:
    """An import package as one kind of process resolves it."""

    view: Annotated[
        str,
        Doc("process kind: `worker`, `spawned` (started by a worker, as engines are) or `python` (with `--python`)"),
    ]
    upstream: Annotated[str, Doc("upstream that owns the package")]
    package: Annotated[str, Doc("package name")]
    place: Annotated[str | None, Doc("location of the package; null if not found")]
    ours: Annotated[bool, Doc("true if the location is in the workspace's tree")]
    version: Annotated[str | None, Doc("version in the package metadata")]
    error: Annotated[str | None, Doc("why the package cannot be found")]


@dataclass(frozen=True)
class Failed:
    """A patchctl error on a node."""

    kind: Annotated[str, Doc("error kind, as in `patchctl.error/1`")]
    exit_code: Annotated[int, Doc("exit code that `patchctl` would return on the node")]
    what: Annotated[str, Doc("error message")]
    hint: Annotated[str | None, Doc("suggested action")] = None

    def __str__(self) -> str:
        return self.what if self.hint is None else f"{self.what} (try: {self.hint})"


@dataclass(frozen=True)
class NodeFacts:
    """Everything that a node reports.

    `identity` identifies the workspace's folder on its file system, so that nodes sharing it are recognised. `changed`
    and `stashed` are set by `apply`.
    """

    host: Annotated[str, Doc("host name")]
    workspace: Annotated[str, Doc("workspace path on the node")]
    identity: list[str]
    python: Annotated[str, Doc("Python interpreter of the node's workers")]
    python_version: Annotated[str, Doc("version of that interpreter")]
    ray: Annotated[str, Doc("version of Ray in a worker")]
    interpreter: Annotated[str, Doc("Python interpreter whose packages were inspected")]
    packages: Annotated[
        dict[str, str | None], Doc("installed version by requirement; uninstalled requirements are omitted")
    ]
    environment: Annotated[
        dict[str, str | None],
        Doc("environment variables that are set; the workspace path is replaced by WORKSPACE, secrets by `(set)`"),
    ]
    seen: Annotated[list[SeenPackage], Doc("locations of the trees' packages")] = field(default_factory=list)
    unseen: Annotated[dict[str, str], Doc("why a view could not be inspected, by view")] = field(default_factory=dict)
    applied: Annotated[bool, Doc("true if there is a workspace")] = False
    profile: Annotated[str | None, Doc("profile in the workspace; null after `revert`")] = None
    without: Annotated[list[str], Doc("features left out with `--without`")] = field(default_factory=list)
    root: Annotated[str | None, Doc("distribution that the workspace was created from")] = None
    lock_digest: Annotated[str | None, Doc("digest of that distribution's locks; null if it is not on the node")] = None
    distribution_digest: Annotated[str | None, Doc("digest of its manifests, locks, patches and carried files")] = None
    trees: Annotated[list[TreeFacts], Doc("trees, sorted by name")] = field(default_factory=list)
    faults: Annotated[list[NodeFault], Doc("findings of the node's own check, at most 20 of a kind per tree")] = field(
        default_factory=list
    )
    not_checked: Annotated[list[str], Doc("what could not be checked on the node")] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    stashed: dict[str, str] = field(default_factory=dict)
    failed: Annotated[Failed | None, Doc("error that ended the check; null if it completed")] = None
    seconds: Annotated[dict[str, float], Doc("duration of each part, in seconds")] = field(default_factory=dict)
    machine: MachineFacts | None = None
    release: Annotated[str | None, Doc("release that the workspace is on")] = None

    def tree(self, upstream: str) -> TreeFacts | None:
        return next((t for t in self.trees if t.upstream == upstream), None)


def facts_of(data: Any) -> NodeFacts:
    """Parse a node's answer. Raises TypeError or KeyError if it is malformed."""
    found: NodeFacts = build(NodeFacts, data)
    return found
