"""Compares the answers of all nodes: what differs, and on which nodes. Pure functions of facts.

The reference is the lock, where it has an entry, else what more than half of the nodes have. Without either, every
value is reported with its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from patchctl.cluster.facts import SPAWNED, WORKER, NodeFacts, SeenPackage
from patchctl.cluster.fanout import Answer, ClusterNode, NoAnswer
from patchctl.doctor.runtime import fits
from patchctl.findings import Finding, Level, Report
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import lock_digest, read_lock
from patchctl.manifest.types import Profile

T = TypeVar("T", bound=Hashable)
_NO_ANSWER = {"dead": "node-dead", "silent": "node-silent", "broken": "node-broken"}
_VIEWS = {WORKER: "a worker", SPAWNED: "a process spawned from a worker", "python": "--python"}
_APPLY = "`patchctl cluster apply` with the release that is wanted (--release); --stash keeps edits on a branch"
_TODO = {
    "node-dead": "check its raylet and the machine; `ray start` lets it rejoin",
    "node-silent": "use a longer --timeout; check whether the machine or its disk hangs",
    "node-broken": "the raylet's logs are in /tmp/ray/session_latest/logs on that node",
    "nodes-missing": "start Ray there, or require fewer with --nodes",
    "not-applied": "`patchctl cluster apply --release NAME`, or --workspace DIR",
    "other-profile": "`patchctl cluster apply --profile NAME --release NAME`",
    "tree-differs": _APPLY,
    "tree-missing": _APPLY,
    "file-changed": _APPLY,
    "other-lock": "copy the same distribution to that node, or remove the one there",
    "package-differs": "install the same version on every node, or use one image",
    "environment-differs": "set it before `ray start`, as `patchctl recipe env` prints it, and restart Ray on that node",
    "environment-unset": "set it on each node before `ray start`, as scripts/ray_cluster.sh does",
    "imports-elsewhere": "set PYTHONPATH at `ray start`, or use `patchctl install`; with --recipe, the folder that training starts "
    "in counts",
    "views-differ": "spawned engines inherit their worker's environment and sys.path: set PYTHONPATH before `ray start`",
}


@dataclass(frozen=True)
class ClusterExpectation:
    """What nodes are compared with besides each other. `environment` and `of_each_node` are a recipe's."""

    dist: Distribution
    distribution_digest: str
    profile: str | None = None
    nodes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    of_each_node: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """Every node's answer, and the differences. `profile` is the requested one, or that of most nodes."""

    answers: Mapping[ClusterNode, Answer]
    differences: tuple[Finding, ...]
    profile: str | None

    @property
    def clean(self) -> bool:
        return not any(d.blocks for d in self.differences)

    def report(self) -> Report:
        """Return the differences, and how many nodes were compared."""
        return Report(list(self.differences), counts=Counter(nodes=len(self.answers)))

    def state(self, node: ClusterNode) -> str:
        """Return ok, odd, dead, silent or broken."""
        answer = self.answers[node]
        if isinstance(answer, NoAnswer):
            return answer.kind
        mine = any(d.blocks and node.title in d.nodes for d in self.differences)
        return "odd" if mine else "ok"


def compare(answers: Mapping[ClusterNode, Answer], wanted: ClusterExpectation) -> Compared:
    """Compare the nodes with what is wanted and with each other."""
    facts = {n.title: a for n, a in answers.items() if isinstance(a, NodeFacts) and a.failed is None}
    applied = {t: f for t, f in facts.items() if f.applied}
    chosen = _chosen(applied, wanted)
    profile = chosen.name if chosen else wanted.profile or majority({t: f.profile for t, f in applied.items()})
    selection = list(_selection(applied, profile, chosen, wanted))
    other = {title for d in selection for title in d.nodes}  # with another profile: their trees differ for that reason
    found = [
        *_absent(answers, wanted),
        *_grouped(
            "not-applied", ((t, f"nothing was applied to {f.workspace}") for t, f in facts.items() if not f.applied)
        ),
        *selection,
        *_trees({t: f for t, f in applied.items() if t not in other}, chosen, wanted.dist),
        *_faults(applied),
        *_distributions(applied, wanted),
        *_packages(facts, chosen),
        *_environment(facts, wanted),
        *_imports(applied),
    ]
    return Compared(answers, tuple(replace(one, todo=_TODO.get(one.rule)) for one in found), profile)


def _chosen(facts: Mapping[str, NodeFacts], wanted: ClusterExpectation) -> Profile | None:
    """Return the profile, on its release, that every node should have: the requested one, else that of most nodes."""
    if wanted.profile is not None:
        return wanted.dist.profiles.get(wanted.profile)
    held = {t: (one.name, one.release) for t, f in facts.items() if (one := wanted.dist.held(f.profile, f.release))}
    most = majority({t: held.get(t) for t in facts})
    return wanted.dist.held(*most) if most else None


def _named(dist: Distribution, name: str | None, release: str | None) -> str:
    """Return a profile's name, with its release if it has several."""
    one = dist.held(name, release)
    return f"{name} on {one.release}" if one and len(dist.variants[one.name]) > 1 else name or "no profile (reverted)"


def majority(values: Mapping[str, T]) -> T | None:
    """Return the value of more than half of the nodes, or None."""
    if not values:
        return None
    value, count = Counter(values.values()).most_common(1)[0]
    return value if 2 * count > len(values) else None


def _groups(rows: Iterable[tuple[str, T]]) -> dict[T, tuple[str, ...]]:
    """Return the nodes with each value, in order."""
    found: dict[T, list[str]] = {}
    for title, value in rows:
        found.setdefault(value, []).append(title)
    return {value: tuple(titles) for value, titles in found.items()}


def _grouped(rule: str, rows: Iterable[tuple[str, str]], level: Level = "error") -> Iterator[Finding]:
    """Yield a difference for each message, with its nodes."""
    for message, nodes in _groups(rows).items():
        yield Finding(rule, message, level=level, nodes=nodes)


def _absent(answers: Mapping[ClusterNode, Answer], wanted: ClusterExpectation) -> Iterator[Finding]:
    alive = sum(not isinstance(a, NoAnswer) or a.kind != "dead" for a in answers.values())
    enough = wanted.nodes is not None and alive >= wanted.nodes
    for node, answer in answers.items():
        if isinstance(answer, NoAnswer):
            level: Level = "note" if enough and not node.alive else "error"
            yield Finding(_NO_ANSWER[answer.kind], answer.what, level=level, nodes=(node.title,))
        elif answer.failed is not None:
            yield Finding("node-failed", str(answer.failed), nodes=(node.title,))
    if wanted.nodes is not None and not enough:
        yield Finding("nodes-missing", f"{alive} of {wanted.nodes} nodes are up")


def _selection(
    facts: Mapping[str, NodeFacts], profile: str | None, chosen: Profile | None, wanted: ClusterExpectation
) -> Iterator[Finding]:
    """Compare profile, release, and features left out on the command line."""
    by = "profile" if wanted.profile else "majority"
    held = {t: _named(wanted.dist, f.profile, f.release) for t, f in facts.items()}
    if chosen is not None:
        profile = _named(wanted.dist, chosen.name, chosen.release)
    elif profile in wanted.dist.variants:
        profile = None  # its nodes are on different releases, none with a majority
    for value, nodes in _groups(held.items()).items():
        if value != profile:
            other = f"{profile} is {'requested' if wanted.profile else 'on most nodes'}" if profile else "nodes differ"
            yield Finding("other-profile", f"has {value}; {other}", nodes=nodes, reference=by)
    without = {t: ", ".join(sorted(f.without)) or "nothing" for t, f in facts.items()}
    most = majority(without)
    for left, nodes in _groups(without.items()).items():
        if left != most:
            message = f"leaves {left} out; most nodes leave {most} out" if most else f"leaves {left} out"
            yield Finding("other-profile", message, nodes=nodes, reference="majority")


def _trees(facts: Mapping[str, NodeFacts], profile: Profile | None, dist: Distribution) -> Iterator[Finding]:
    """Compare the ids of the trees on disk with the lock, else among nodes. Other forms have other trees."""
    names = list(profile.stacks) if profile else []
    names += sorted({t.upstream for f in facts.values() for t in f.trees} - set(names))
    faulty = {t: {(fault.upstream, fault.severity) for fault in f.faults} for t, f in facts.items()}
    lacking = {t: tuple(n for n in names if f.tree(n) is None) for t, f in facts.items()}
    for some, nodes in _groups((t, n) for t, n in lacking.items() if n).items():
        yield Finding("tree-differs", f"has no tree of {', '.join(some)}", upstream=_only(some), nodes=nodes)
    for upstream in names:
        trees = {title: f.tree(upstream) for title, f in facts.items()}
        for form in sorted({t.form for t in trees.values() if t}):
            same_form = {title: t for title, t in trees.items() if t and t.form == form}
            left_out = majority({title: tuple(t.left_out) for title, t in same_form.items()})
            stack = majority({title: t.stack for title, t in same_form.items()})
            locked = _locked(dist, upstream, stack, form, left_out)
            ids = {title: t.tree for title, t in same_form.items()}
            for odd in _odd_trees(upstream, ids, locked):
                told = tuple(n for n in odd.nodes if (upstream, "error") not in faulty[n])
                if told:  # the others' own checks already report what is wrong, and where
                    yield replace(odd, nodes=told)


def _gone(facts: NodeFacts) -> tuple[str, ...]:
    """Return the upstreams whose trees no longer exist."""
    return tuple(sorted(f.upstream for f in facts.faults if f.rule == "tree-missing" and f.upstream is not None))


def _only(names: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _locked(
    dist: Distribution, upstream: str, stack: str | None, form: str, left_out: Sequence[str] | None
) -> str | None:
    """Return the tree that the lock has for what most nodes have, if any."""
    if stack is None or left_out is None or (upstream, stack) not in dist.stacks:
        return None
    lock = read_lock(dist.root, dist.stacks[upstream, stack])
    expected = lock.expected(form, frozenset(left_out)) if lock else None
    return expected.tip_tree if expected else None


def _odd_trees(upstream: str, ids: Mapping[str, str | None], locked: str | None) -> Iterator[Finding]:
    reference = locked or majority(ids)
    by = "lock" if locked else "majority" if reference else None
    other = f", {'the lock has' if locked else 'most nodes have'} {reference[:12]}" if reference else ""
    for value, nodes in _groups(ids.items()).items():
        if value == reference and value is not None:
            continue
        what = f"has tree {value[:12]}{other}" if value else f"its files cannot be read{other}"
        yield Finding("tree-differs", what, upstream=upstream, nodes=nodes, reference=by)


def _faults(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield what the nodes' own checks found, once for all nodes with the same finding."""
    missing = {title: _gone(f) for title, f in facts.items() if len(_gone(f)) > 1}
    for gone, titles in _groups(missing.items()).items():
        yield Finding("tree-missing", f"trees are missing: {', '.join(gone)}", nodes=titles)
    faults = (
        (title, fault)
        for title, f in facts.items()
        for fault in f.faults
        if fault.rule != "tree-missing" or fault.upstream not in missing.get(title, ())
    )
    for fault, nodes in _groups(faults).items():
        level: Level = "note" if fault.severity == "note" else "error"
        yield Finding(fault.rule, fault.message, fault.file, None, level, fault.upstream, nodes=nodes)
    yield from _grouped("not-checked", ((t, text) for t, f in facts.items() for text in f.not_checked), "note")


def _distributions(facts: Mapping[str, NodeFacts], wanted: ClusterExpectation) -> Iterator[Finding]:
    """Compare the distribution that a workspace was made from, if it is on the node: `patchctl verify` reads it."""
    for title, f in facts.items():
        known = wanted.dist.held(f.profile, f.release)
        ours = lock_digest(wanted.dist.root, wanted.dist.stacks_of(known).values()) if known else None
        if f.lock_digest is not None and ours is not None and f.lock_digest != ours:
            what = f"the distribution on this node, {f.root}, has other locks (digest {f.lock_digest[:12]})"
            yield Finding("other-lock", what, nodes=(title,), reference="lock")
        elif f.distribution_digest not in (None, wanted.distribution_digest):
            what = f"the distribution on this node, {f.root}, differs from the one here; its locks are the same"
            yield Finding("other-distribution", what, level="note", nodes=(title,))


def _packages(facts: Mapping[str, NodeFacts], profile: Profile | None) -> Iterator[Finding]:
    """Compare versions: the profile's runtime with the profile, everything among the nodes."""
    wanted = profile.runtime if profile else {}
    names = list(dict.fromkeys(n for f in facts.values() for n in f.packages))
    for name in names:
        yield from _versions(name, {t: f.packages.get(name) for t, f in facts.items()}, wanted.get(name))
    for name, of in (("the interpreter", "python_version"), ("ray of the workers", "ray")):
        yield from _versions(name, {t: getattr(f, of) for t, f in facts.items()}, None)
    installed: dict[str, dict[str, str | None]] = {}
    for title, f in facts.items():
        for seen in f.seen:
            if seen.view == SPAWNED:
                installed.setdefault(seen.package, {})[title] = seen.version
    for name, versions in installed.items():
        yield from _versions(f"the metadata of {name}", versions, None)


def _versions(name: str, versions: Mapping[str, str | None], wanted: str | None) -> Iterator[Finding]:
    suits = f"; the profile was chosen for {wanted}" if wanted else ""
    if len(set(versions.values())) < 2:
        value = next(iter(versions.values()), None)
        if wanted and (value is None or not fits(value, wanted)):
            what = f"{name} is {value or 'not installed'} on every node{suits}"
            yield Finding("other-runtime", what, level="note", nodes=tuple(versions), reference="profile")
        return
    fitting = {t: v for t, v in versions.items() if wanted and v is not None and fits(v, wanted)}
    most = majority(fitting) or majority(versions)
    if fitting and most not in fitting.values():
        most = None
    for value, nodes in _groups(versions.items()).items():
        if value != most:
            other = f"; {most} on the others" if most else ""
            by = "profile" if fitting and most else "majority" if most else None
            what = f"{name} is {value or 'not installed'}{other}{suits}"
            yield Finding("package-differs", what, nodes=nodes, reference=by)


def _environment(facts: Mapping[str, NodeFacts], wanted: ClusterExpectation) -> Iterator[Finding]:
    """Compare a recipe's variables with the recipe, the others among the nodes."""
    for name, what in wanted.of_each_node.items():
        unset = tuple(t for t, f in facts.items() if f.environment.get(name) is None)
        if unset:
            yield Finding("environment-unset", f"{name} is not set: {what}", nodes=unset, reference="recipe")
    names = dict.fromkeys(n for f in facts.values() for n in f.environment if n not in wanted.of_each_node)
    for name in names:
        values = {t: f.environment.get(name) for t, f in facts.items()}
        says = wanted.environment.get(name)
        reference = says if says is not None else majority(values)
        by = "recipe" if says is not None else "majority"
        level: Level = "note" if name == "PYTHONPATH" else "error"
        for value, nodes in _groups(values.items()).items():
            if value == reference and (value is not None or 2 * len(nodes) > len(values)):
                continue
            is_now = f"{name} is {value!r}" if value is not None else f"{name} is not set"
            other = f"{'most nodes have' if says is None else 'the recipe has'} {reference!r}"
            what = f"{is_now}; {'nodes differ' if reference is None else other}"
            yield Finding("environment-differs", what, level=level, nodes=nodes, reference=by)


def _imports(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare which tree is imported by workers and by the processes they spawn, which can differ.

    All packages of a node are one finding, since an unset environment has one cause.
    """
    elsewhere: dict[str, tuple[tuple[str, str], ...]] = {}
    apart: dict[str, tuple[tuple[str, str], ...]] = {}
    for title, f in facts.items():
        packages: dict[tuple[str, str], dict[str, SeenPackage]] = {}
        for seen in f.seen:
            if seen.upstream not in _gone(f):
                packages.setdefault((seen.upstream, seen.package), {})[seen.view] = seen
        split = {
            key: views
            for key, views in packages.items()
            if len({_place(views[view], f.workspace) for view in (WORKER, SPAWNED) if view in views}) > 1
        }
        apart[title] = tuple(
            (upstream, f"{package} {_place(views[WORKER], f.workspace)}, spawned {_place(views[SPAWNED], f.workspace)}")
            for (upstream, package), views in split.items()
        )
        elsewhere[title] = tuple(
            (upstream, _found(package, views, f.workspace))
            for (upstream, package), views in packages.items()
            if (upstream, package) not in split and not all(s.ours for s in views.values())
        )
    unseen = (
        (title, f"cannot tell what {_VIEWS[view]} imports: {error}")
        for title, f in facts.items()
        for view, error in f.unseen.items()
    )
    yield from _grouped("views-differ", unseen)
    for rule, head, rows in (
        ("imports-elsewhere", "imports do not come from the workspace's trees: ", elsewhere),
        ("views-differ", "a worker and its spawned processes import different packages: ", apart),
    ):
        for found, nodes in _groups((title, row) for title, row in rows.items() if row).items():
            upstreams = list(dict.fromkeys(upstream for upstream, _ in found))
            what = head + "; ".join(text for _, text in found)
            yield Finding(rule, what, upstream=_only(upstreams), nodes=nodes)


def _found(package: str, views: Mapping[str, SeenPackage], workspace: str) -> str:
    """Return a package with the places outside the workspace where it is found."""
    places: dict[str, list[str]] = {}
    for view, seen in views.items():
        if not seen.ours:
            places.setdefault(_place(seen, workspace), []).append(view)
    only = (f"{place} (--python)" if by == ["python"] else place for place, by in places.items())
    return f"{package} {' and '.join(only)}"


def _place(seen: SeenPackage, workspace: str) -> str:
    """Return where a package is, with the workspace's folder replaced by WORKSPACE."""
    return f"at {seen.place.replace(workspace, 'WORKSPACE')}" if seen.place else seen.error or "not found"
