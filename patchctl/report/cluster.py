"""What `cluster` found and did, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from patchctl.cluster.facts import NodeFacts
from patchctl.terminal.text import counted, one_line, visible_line

if TYPE_CHECKING:
    from patchctl.cluster.compare import Compared
    from patchctl.cluster.deploy import Deployment
    from patchctl.cluster.fanout import ClusterNode
    from patchctl.findings.report import Finding
    from patchctl.terminal.style import Style

_SHOWN = 8  # nodes that are as they should be, by name; and nodes of one difference
_LONGEST = 1000
_ABSENT = {"dead": "DEAD", "silent": "NO ANSWER", "broken": "FAILED"}


def compared_json(compared: Compared, address: str, ray: str) -> dict[str, Any]:
    """The shapes patchctl.cluster.verify/1 and patchctl.cluster.status/1 (docs/json.md)."""
    return {
        "address": address,
        "ray": ray,
        "profile": compared.profile,
        "clean": compared.clean,
        "nodes": [_node_json(compared, node) for node in compared.answers],
        "differences": [_difference_json(d) for d in compared.differences],
    }


def _difference_json(d: Finding) -> dict[str, Any]:
    return {
        "rule": d.rule,
        "message": d.message,
        "nodes": list(d.nodes),
        "severity": d.level,
        "upstream": d.upstream,
        "file": d.file or None,
        "reference": d.reference,
        "todo": d.todo,
    }


def _node_json(compared: Compared, node: ClusterNode) -> dict[str, Any]:
    answer = compared.answers[node]
    facts = answer.as_json() if isinstance(answer, NodeFacts) else None
    if facts is not None:
        for key in ("identity", "changed", "stashed", "machine"):
            del facts[key]
        for key in ("packages", "environment"):
            facts[key] = {name: value for name, value in facts[key].items() if value is not None}
    why = None if isinstance(answer, NodeFacts) else answer.what
    return {
        "node": node.title,
        "address": node.address,
        "id": node.id,
        "state": compared.state(node),
        "why": why,
        "facts": facts,
    }


def compared_text(compared: Compared, address: str, style: Style) -> Iterator[str]:
    """A table of the nodes, many that are alike in one line; then what differs, the nodes by name, and what to do."""
    names = sorted({t.upstream for a in compared.answers.values() if isinstance(a, NodeFacts) for t in a.trees})
    rows = [["node", "state", "profile", *names], *_rows(compared, names)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    total = len(compared.answers)
    yield f"cluster {visible_line(address)}, {counted(total, 'node')}"
    for row in rows:
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        yield text if row[1] in ("state", "ok") else style.bad(text)
    yield from _differences(compared, style)
    good = sum(compared.state(node) == "ok" for node in compared.answers)
    if compared.clean:
        yield style.good(f"{counted(good, 'node')}, all as they should be")
    else:
        yield style.bad(f"{good} of {counted(total, 'node')} as they should be")


def _rows(compared: Compared, names: list[str]) -> Iterator[list[str]]:
    """A row a node; of more than a few that hold and lack the same, one for all, so that the others are seen."""
    errors: dict[str, list[int]] = {}
    for number, d in enumerate(compared.differences):
        for title in d.nodes if d.blocks else ():
            errors.setdefault(title, []).append(number)
    groups: dict[tuple[object, ...], list[list[str]]] = {}
    for node in compared.answers:
        row = _row(compared, node, compared.state(node), names)
        groups.setdefault((tuple(errors.get(node.title, ())), *row[1:]), []).append(row)
    for rows in groups.values():
        if len(rows) <= _SHOWN:
            yield from rows
        else:
            yield [f"{rows[0][0]} and {len(rows) - 1} more", *rows[0][1:]]


def _row(compared: Compared, node: ClusterNode, state: str, names: list[str]) -> list[str]:
    answer = compared.answers[node]
    if not isinstance(answer, NodeFacts):
        return [visible_line(node.title), _ABSENT[state], "-", *("-" for _ in names)]
    trees = (answer.tree(name) for name in names)
    ids = [(t.tree or "unreadable")[:12] if t else "-" for t in trees]
    return [visible_line(node.title), state if state == "ok" else "ODD", answer.profile or "-", *ids]


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


def deployment_json(out: Deployment, address: str, ray: str, profile: str, *, dry_run: bool) -> dict[str, Any]:
    """The shape patchctl.cluster.apply/1 (docs/json.md)."""
    rows = []
    for node, result in out.results.items():
        facts = result.facts
        rows.append(
            {
                "node": node.title,
                "address": node.address,
                "id": node.id,
                "state": result.state,
                "why": result.why,
                "exit_code": result.code,
                "writer": result.writer,
                "workspace": facts.workspace if facts else None,
                "changed": facts.changed if facts else [],
                "stashed": facts.stashed if facts else {},
                "trees": {t.upstream: t.tip_tree for t in facts.trees} if facts else {},
                "skipped": facts.not_checked if facts else [],
                "seconds": facts.seconds if facts else {},
            }
        )
    gone = [{"node": node.title, "address": node.address, "why": why} for node, why in out.gone.items()]
    return {
        "address": address,
        "ray": ray,
        "profile": profile,
        "dry_run": dry_run,
        "missing": out.missing,
        "nodes": rows,
        "gone": gone,
    }


def deployment_text(out: Deployment, profile: str, style: Style, *, dry_run: bool) -> Iterator[str]:
    """One line a node, with what was changed there or why it was not."""
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
    failed = len(out.failed)
    held = any(r.state == "held-back" for r in out.results.values())
    if failed:
        more = "; nothing was written on any node" if held and not _wrote(out) else ""
        yield style.bad(f"{counted(failed, 'node')} failed{more}")
    else:
        yield f"profile {profile} {'would be' if dry_run else 'is'} on {counted(len(out.results), 'node')}"


def _wrote(out: Deployment) -> bool:
    return any(r.state in ("applied", "unchanged", "shared") for r in out.results.values())
