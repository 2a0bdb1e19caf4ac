"""Text and JSON output of the `cluster` verbs. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from patchctl.cluster.facts import NodeFacts
from patchctl.doc import Doc
from patchctl.report.catalog import columns_of
from patchctl.terminal.text import Style, counted, one_line, visible_line

if TYPE_CHECKING:
    from patchctl.cluster.compare import Compared
    from patchctl.cluster.deploy import Deployment, DeployResult
    from patchctl.cluster.fanout import ClusterNode
    from patchctl.findings import Finding

_SHOWN = 8  # the most node names to list: of good nodes, and of one difference
_LONGEST = 1000
_ABSENT = {"dead": "DEAD", "silent": "NO ANSWER", "broken": "FAILED"}


@dataclass(frozen=True)
class NodeDifference:
    """A difference between nodes, or between a node and its reference."""

    rule: Annotated[str, Doc("rule id from docs/cluster.md; for a finding of a node's own check, from lint-rules.md")]
    message: Annotated[str, Doc("description of the difference")]
    nodes: Annotated[tuple[str, ...], Doc("affected nodes; empty for the whole cluster")]
    severity: Annotated[str, Doc("`error` or `note`")]
    upstream: Annotated[str | None, Doc("upstream name")]
    file: Annotated[str | None, Doc("path relative to the workspace")]
    reference: Annotated[
        str | None,
        Doc(
            "what the nodes were compared with: `lock`, `profile`, `recipe` or `majority`; null if the correct value"
            " is unknown"
        ),
    ]
    todo: Annotated[str | None, Doc("suggested action")]


@dataclass(frozen=True)
class NodeOutput:
    """A node of the cluster."""

    node: Annotated[str, Doc("node name in Ray, plus part of its id if the name is not unique")]
    address: Annotated[str, Doc("node address")]
    id: Annotated[str, Doc("Ray node id")]
    state: Annotated[
        str, Doc("`ok`, `odd`, `dead` (raylet gone), `silent` (no answer in time) or `broken` (task failed)")
    ]
    why: Annotated[str | None, Doc("reason for `dead`, `silent` or `broken`")]
    facts: Annotated[NodeFacts | None, Doc("the node's answer; null if there is none")]


@dataclass(frozen=True)
class ClusterOutput:
    """What `cluster verify` and `cluster status` print."""

    address: Annotated[str, Doc("cluster address, as given")]
    ray: Annotated[str, Doc("version of the Ray client")]
    profile: Annotated[str | None, Doc("requested profile; otherwise the profile on most nodes")]
    clean: Annotated[bool, Doc("true if no difference has severity `error`; exit code 0")]
    nodes: Annotated[list[NodeOutput], Doc("all nodes of the cluster, sorted by name")]
    differences: Annotated[list[NodeDifference], Doc("differences between nodes, or from the reference")]


def cluster_output(compared: Compared, address: str, ray: str) -> ClusterOutput:
    """Return every node, and the differences."""
    nodes = [_node(compared, node) for node in compared.answers]
    differences = [
        NodeDifference(d.rule, d.message, d.nodes, d.level, d.upstream, d.file or None, d.reference, d.todo)
        for d in compared.differences
    ]
    return ClusterOutput(address, ray, compared.profile, compared.clean, nodes, differences)


def _node(compared: Compared, node: ClusterNode) -> NodeOutput:
    answer, named = compared.answers[node], (node.title, node.address, node.id, compared.state(node))
    if not isinstance(answer, NodeFacts):
        return NodeOutput(*named, answer.what, None)
    packages = {n: v for n, v in answer.packages.items() if v is not None}
    environment = {n: v for n, v in answer.environment.items() if v is not None}
    return NodeOutput(*named, None, replace(answer, packages={**packages}, environment={**environment}))


def compared_text(compared: Compared, address: str, style: Style) -> Iterator[str]:
    """Yield a table of nodes, with identical ones combined; then the differences with their nodes, and what to do."""
    names = sorted({t.upstream for a in compared.answers.values() if isinstance(a, NodeFacts) for t in a.trees})
    rows = [["node", "state", "profile", *names], *_rows(compared, names)]
    total = len(compared.answers)
    yield f"cluster {visible_line(address)}, {counted(total, 'node')}"
    for row, text in zip(rows, columns_of(rows), strict=True):
        yield text if row[1] in ("state", "ok") else style.bad(text)
    yield from _differences(compared, style)
    good = sum(compared.state(node) == "ok" for node in compared.answers)
    if compared.clean:
        yield style.good(f"{counted(good, 'node')}, all as they should be")
    else:
        yield style.bad(f"{good} of {counted(total, 'node')} as they should be")


def _rows(compared: Compared, names: list[str]) -> Iterator[list[str]]:
    """Yield one row per node; large groups of identical nodes share one, so that the others stand out."""
    errors: dict[str, list[int]] = {}
    for number, d in enumerate(compared.differences):
        for title in d.nodes if d.blocks else ():
            errors.setdefault(title, []).append(number)
    groups: dict[tuple[object, ...], list[list[str]]] = {}
    for node in compared.answers:
        answer, state = compared.answers[node], compared.state(node)
        row = [_ABSENT.get(state, ""), "-", *("-" for _ in names)]
        if isinstance(answer, NodeFacts):
            trees = (answer.tree(name) for name in names)
            ids = [(t.tree or "unreadable")[:12] if t else "-" for t in trees]
            row = [state if state == "ok" else "ODD", answer.profile or "-", *ids]
        groups.setdefault((tuple(errors.get(node.title, ())), *row), []).append([visible_line(node.title), *row])
    for rows in groups.values():
        if len(rows) <= _SHOWN:
            yield from rows
        else:
            yield [f"{rows[0][0]} and {len(rows) - 1} more", *rows[0][1:]]


def _differences(compared: Compared, style: Style) -> Iterator[str]:
    total = len(compared.answers)
    for rank in ("error", "note"):
        for d in (d for d in compared.differences if d.level == rank):
            mark = style.bad("error") if rank == "error" else style.note("note ")
            upstream = f"{d.upstream}: " if d.upstream else ""
            file = f"{visible_line(d.file)}: " if d.file else ""
            yield f"{mark}  {_who(d, total)}  {upstream}{file}{one_line(d.message, _LONGEST)}  {style(f'[{d.rule}]', dim=True)}"
            if d.todo and rank == "error":
                yield f"       try: {d.todo}"


def _who(d: Finding, total: int) -> str:
    if not d.nodes:
        return "the cluster"
    if len(d.nodes) == total and total > 1:
        return f"all {total} nodes"
    shown = " ".join(visible_line(n) for n in d.nodes[:_SHOWN])
    return shown if len(d.nodes) <= _SHOWN else f"{shown} and {len(d.nodes) - _SHOWN} more"


@dataclass(frozen=True)
class AppliedNode:
    """The result on one of the nodes to apply to."""

    node: Annotated[str, Doc("node name, as in `cluster verify`")]
    address: Annotated[str, Doc("node address")]
    id: Annotated[str, Doc("Ray node id")]
    state: Annotated[str, Doc("`applied`, `unchanged`, `would-change`, `shared`, `held-back` or `failed`")]
    why: Annotated[str | None, Doc("reason for `failed` or `held-back`")]
    exit_code: Annotated[int, Doc("for `failed`: exit code that `patchctl apply` would return on the node")]
    writer: Annotated[str | None, Doc("for `shared`: node that wrote the workspace")]
    workspace: Annotated[str | None, Doc("workspace path on the node")]
    changed: Annotated[list[str], Doc("upstreams whose trees changed")]
    stashed: Annotated[dict[str, str], Doc("branch that keeps local edits, by upstream")]
    trees: Annotated[dict[str, str], Doc("current tree id, by upstream")]
    skipped: Annotated[list[str], Doc("unavailable upstreams, with the sources tried")]
    seconds: Annotated[dict[str, float], Doc("duration of each part, in seconds")]


@dataclass(frozen=True)
class GoneNode:
    """A skipped node."""

    node: Annotated[str, Doc("node name, as in `cluster verify`")]
    address: Annotated[str, Doc("node address")]
    why: Annotated[str, Doc("reason for skipping the node")]


@dataclass(frozen=True)
class ClusterApplyOutput:
    """What `cluster apply` prints."""

    address: Annotated[str, Doc("cluster address, as given")]
    ray: Annotated[str, Doc("version of the Ray client")]
    profile: Annotated[str, Doc("profile name")]
    dry_run: Annotated[bool, Doc("true if nothing was written")]
    missing: Annotated[
        str | None,
        Doc(
            "why nothing was applied: too few live nodes for `--nodes`, or no answer with `--skip-unreachable`; null"
            " otherwise"
        ),
    ]
    nodes: Annotated[list[AppliedNode], Doc("nodes applied to, without those in `gone`")]
    gone: Annotated[list[GoneNode], Doc("absent nodes, skipped because of `--nodes` or `--skip-unreachable`")]


def applied_output(out: Deployment, address: str, ray: str, profile: str, *, dry_run: bool) -> ClusterApplyOutput:
    """Return every node."""
    nodes = [_applied(node, result) for node, result in out.results.items()]
    gone = [GoneNode(node.title, node.address, why) for node, why in out.gone.items()]
    return ClusterApplyOutput(address, ray, profile, dry_run, out.missing, nodes, gone)


def _applied(node: ClusterNode, result: DeployResult) -> AppliedNode:
    row = (node.title, node.address, node.id, result.state, result.why, result.code, result.writer)
    if (facts := result.facts) is None:
        return AppliedNode(*row, None, [], {}, {}, [], {})
    trees = {t.upstream: t.tip_tree for t in facts.trees}
    return AppliedNode(*row, facts.workspace, facts.changed, facts.stashed, trees, facts.not_checked, facts.seconds)


def deployment_text(out: Deployment, profile: str, style: Style, *, dry_run: bool) -> Iterator[str]:
    """Yield one line per node, with what changed there or why nothing did."""
    width = max((len(n.title) for n in (*out.results, *out.gone)), default=0)
    for node, result in out.results.items():
        word = {"failed": style.bad, "held-back": style.note}.get(result.state, style.good)(f"{result.state:<12}")
        facts = result.facts
        told = result.why or (f"by {result.writer}, which shares the workspace" if result.writer else "")
        told = told or (", ".join(facts.changed) if facts else "")
        yield f"{visible_line(node.title):<{width}}  {word}  {one_line(told, _LONGEST)}".rstrip()
        for name, branch in (facts.stashed if facts else {}).items():
            yield f"{'':<{width}}    {name}: edits kept on branch {visible_line(branch)}"
        for text in facts.not_checked if facts else ():
            yield f"{'':<{width}}    {style.note('skipped')} {one_line(text, _LONGEST)}"
    for node, why in out.gone.items():
        yield f"{visible_line(node.title):<{width}}  {style.note('passed by   ')}  {one_line(why, _LONGEST)}"
    if out.missing:
        yield style.bad(f"{out.missing}; nothing was written on any node")
        return
    if out.failed:
        states = {r.state for r in out.results.values()}
        nothing = "held-back" in states and not states & {"applied", "unchanged", "shared"}
        more = "; nothing was written on any node" if nothing else ""
        yield style.bad(f"{counted(len(out.failed), 'node')} failed{more}")
    else:
        releases = {r.facts.release for r in out.results.values() if r.facts is not None and r.facts.release}
        on = f" on release {', '.join(sorted(releases))}" if releases else ""
        yield f"profile {profile}{on} {'would be' if dry_run else 'is'} on {counted(len(out.results), 'node')}"
