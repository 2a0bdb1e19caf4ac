"""`apply` on every node, in phases.

All nodes are looked at, then every writing node prepares everything (sources obtained, stacks built and compared with
the lock, edits looked for), and only if all succeed is the first file written.

Nodes that share a workspace on a network file system are recognised by the folder's identity: one of them writes, the
others are then asked whether they see it. A node that does not, because its folder only looked the same, writes then.
Two that write to the same folder after all meet at its lock, and the later one is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from patchctl.cluster.facts import NodeFacts, Verb
from patchctl.cluster.fanout import Answer, ClusterNode, NoAnswer
from patchctl.errors import DONE, FINDINGS, WorkspaceBusy

Ask = Callable[[Verb, Sequence[ClusterNode]], Mapping[ClusterNode, Answer]]
_DEAD = "restart Ray there; --nodes N accepts N live nodes, --skip-unreachable any number"
State = Literal["applied", "unchanged", "would-change", "shared", "held-back", "failed"]


@dataclass(frozen=True)
class DeployResult:
    """The result of a node. `writer` wrote a shared workspace; `why` and exit `code` belong to a failure."""

    state: State
    facts: NodeFacts | None = None
    writer: str | None = None
    why: str | None = None
    code: int = DONE


@dataclass
class Deployment:
    """Results by node.

    `gone` are skipped nodes with the reason: dead before the run, or unreachable with --skip-unreachable. `missing`
    says that there are too few nodes.
    """

    results: dict[ClusterNode, DeployResult] = field(default_factory=dict)
    gone: dict[ClusterNode, str] = field(default_factory=dict)
    missing: str | None = None

    @property
    def failed(self) -> dict[ClusterNode, DeployResult]:
        return {n: r for n, r in self.results.items() if r.state == "failed"}

    @property
    def exit_code(self) -> int:
        """0, or the code that all failures share, else 1."""
        codes = {r.code for r in self.failed.values()} | ({FINDINGS} if self.missing else set())
        return DONE if not codes else codes.pop() if len(codes) == 1 else FINDINGS


def deploy(
    ask: Ask, nodes: Sequence[ClusterNode], *, expected: int | None, dry_run: bool, skip_unreachable: bool
) -> Deployment:
    """Apply to all nodes, writing nothing unless every one of them is ready.

    A node that died before the run fails like one that dies during it, unless it is skipped or `expected` nodes are
    up without it.
    """
    out = Deployment()
    alive = [n for n in nodes if n.alive]
    dead = {n: n.reason for n in nodes if not n.alive}
    if expected is not None and len(alive) < expected:
        out.missing = f"{len(alive)} of {expected} nodes are up"
        out.gone = dead
        return _held_back(out, alive)
    if expected is not None or skip_unreachable:
        out.gone = dead
    elif dead:
        out.results = {n: DeployResult("failed", why=f"{why} (try: {_DEAD})", code=FINDINGS) for n, why in dead.items()}
        return _held_back(out, alive)
    looked = ask("look", alive)
    for node, answer in looked.items():
        if isinstance(answer, NoAnswer) and skip_unreachable:
            out.gone[node] = answer.what
        elif (failure := _failure(answer)) is not None:
            out.results[node] = failure
    answered = sum(node not in out.gone for node in alive)
    if expected is not None and answered < expected:
        out.missing = f"{answered} of {expected} nodes answer"
    if out.failed or out.missing:
        return _held_back(out, alive)
    groups = _groups(looked)
    writers = [group[0] for group in groups]
    prepared = dict(ask("preview", writers)) if writers else {}
    while skip_unreachable and (lost := {n: a.what for n, a in prepared.items() if isinstance(a, NoAnswer)}):
        # Another node of a group takes the place of the one that was lost.
        out.gone |= lost
        groups = [left for group in groups if (left := [n for n in group if n not in lost])]
        writers = [group[0] for group in groups]
        prepared = {n: a for n, a in prepared.items() if n not in lost}
        prepared |= ask("preview", [n for n in writers if n not in prepared])
    here = sum(map(len, groups))
    if not groups or (expected is not None and here < expected):
        out.missing = f"{here} of {expected} nodes answer" if expected is not None else "no node answers"
    out.results.update({n: r for n, a in prepared.items() if (r := _failure(a)) is not None})
    if out.failed or out.missing:
        return _held_back(out, alive)
    if dry_run:
        out.results.update({n: _done(a, "would-change") for n, a in prepared.items()})
        shared = {n: DeployResult("shared", writer=g[0].title) for g in groups for n in g[1:]}
        out.results.update(shared)
        return out
    _write(out, ask, writers)
    _look_again(out, ask, groups)
    return out


def _groups(looked: Mapping[ClusterNode, Answer]) -> list[list[ClusterNode]]:
    """Group the nodes that see the same folder."""
    found: dict[tuple[str, ...], list[ClusterNode]] = {}
    for node, answer in looked.items():
        if isinstance(answer, NodeFacts):
            found.setdefault(tuple(answer.identity), []).append(node)
    return list(found.values())


def _write(out: Deployment, ask: Ask, writers: Sequence[ClusterNode]) -> None:
    answers = dict(ask("apply", writers))
    busy = [
        n for n, a in answers.items() if isinstance(a, NodeFacts) and a.failed and a.failed.kind == WorkspaceBusy.kind
    ]
    if busy:
        answers.update(ask("apply", busy))
    for node, answer in answers.items():
        out.results[node] = _failure(answer) or _done(answer, "applied")


def _look_again(out: Deployment, ask: Ask, groups: Iterable[Sequence[ClusterNode]]) -> None:
    """Check that nodes which did not write see what their group's writer wrote."""
    writer_of = {node: group[0] for group in groups for node in group[1:]}
    wrote = {n: w for n, w in writer_of.items() if out.results[w].state != "failed"}
    for node in (node for node in writer_of if node not in wrote):
        writer = writer_of[node]
        out.results[node] = DeployResult(
            "held-back", writer=writer.title, why=f"shares the workspace of {writer.title}"
        )
    not_there = []
    for node, answer in (ask("status", list(wrote)) if wrote else {}).items():
        if isinstance(answer, NodeFacts) and _tips(answer) == _tips(out.results[wrote[node]].facts):
            out.results[node] = DeployResult("shared", answer, writer=wrote[node].title)
        elif isinstance(answer, NoAnswer):
            out.results[node] = DeployResult("failed", why=answer.what, code=FINDINGS)
        else:
            not_there.append(node)
    if not_there:
        _write(out, ask, not_there)


def _tips(facts: NodeFacts | None) -> dict[str, str]:
    return {t.upstream: t.tip_commit for t in facts.trees} if facts else {}


def _failure(answer: Answer) -> DeployResult | None:
    if isinstance(answer, NoAnswer):
        return DeployResult("failed", why=answer.what, code=FINDINGS)
    if answer.failed is None:
        return None
    return DeployResult("failed", answer, why=str(answer.failed), code=answer.failed.exit_code)


def _done(answer: Answer, word: State) -> DeployResult:
    assert isinstance(answer, NodeFacts)
    return DeployResult(word if answer.changed else "unchanged", answer)


def _held_back(out: Deployment, nodes: Iterable[ClusterNode]) -> Deployment:
    """Mark nodes that were ready as held back: nothing is written anywhere."""
    for node in nodes:
        if node not in out.results and node not in out.gone:
            why = out.missing or "nothing is written because another node is not ready"
            out.results[node] = DeployResult("held-back", why=why)
    return out
