"""Answers of nodes held against the lock, the recipe and each other. The answers are made here; what real nodes answer is in
test_node.py, and all of it together over Ray in test_raylets.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import formats
import pytest
from distribution import Made, make_distribution, write_files

from patchctl.catalog.chosen_release import on_release
from patchctl.cluster.compare import ClusterExpectation, Compared, compare
from patchctl.cluster.deploy import Deployment, DeployResult, deploy
from patchctl.cluster.facts import Failed, NodeFacts, NodeFault, SeenPackage, TreeFacts
from patchctl.cluster.fanout import Answer, ClusterNode, NoAnswer
from patchctl.findings import RENDERERS, Shown
from patchctl.manifest.distribution import Distribution
from patchctl.report.cluster import compared_text, deployment_text
from patchctl.terminal.text import Style


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("compare"), lock=True)
    made.edit(
        "manifests/upstreams.yaml",
        "schema: 1\n",
        "schema: 1\nrequirements:\n  words: {summary: Words., kind: python}\n",
    )
    made.edit("manifests/profiles/full.yaml", "stacks:\n", 'runtime: {words: "1.*"}\nstacks:\n')
    return made


@pytest.fixture(scope="module")
def wanted(made: Made) -> ClusterExpectation:
    return ClusterExpectation(Distribution.load(made.root), "d" * 64)


@pytest.fixture(scope="module")
def good(made: Made, tmp_path_factory: pytest.TempPathFactory) -> NodeFacts:
    """A node as it should be, with the trees that the lock promises."""
    found = []
    for name, stack in (("greeter", "v1"), ("clock", "v2")):
        lock = json.loads((made.root / "manifests" / "locks" / name / f"{stack}.json").read_text())
        form = next(r for r in lock["results"] if not r["without"])["forms"]["git"]
        tree = form["tip_tree"]
        found.append(TreeFacts(name, stack, "git", name, form["tip_commit"], tree, tree, 1, [], "equal"))
    seen = [
        SeenPackage(v, n, n, f"/ws/{n}/{n}/__init__.py", True, None, None)
        for n in ("greeter", "clock")
        for v in ("worker", "spawned")
    ]
    return NodeFacts(
        host="h",
        workspace="/ws",
        identity=["1", "2", ""],
        python="/py",
        python_version="3.11.7",
        ray="2.48.0",
        interpreter="/py",
        packages={"words": "1.0"},
        environment={"QUEUE": "1"},
        seen=seen,
        applied=True,
        profile="full",
        root="/nowhere",
        trees=found,
    )


def node(name: str, *, alive: bool = True) -> ClusterNode:
    return ClusterNode(f"{name}-id", name, "10.0.0.1", 1, alive, "it was stopped")


def compared(wanted: ClusterExpectation, answers: Mapping[str, Answer]) -> Compared:
    return compare({node(n): a for n, a in answers.items()}, wanted)


def rows(found: Compared, level: str = "error") -> set[tuple[str, str]]:
    """Rule and nodes of every difference."""
    return {(d.rule, " ".join(d.nodes)) for d in found.differences if d.level == level}


def one_odd(wanted: ClusterExpectation, good: NodeFacts, odd: Answer) -> Compared:
    return compared(wanted, {"a": good, "b": good, "c": odd})


def with_tree(facts: NodeFacts, upstream: str, **changes: Any) -> NodeFacts:
    return replace(facts, trees=[replace(t, **changes) if t.upstream == upstream else t for t in facts.trees])


def test_nodes_that_are_alike(wanted: ClusterExpectation, good: NodeFacts) -> None:
    found = compared(wanted, {"a": good, "b": good})
    assert (found.clean, found.differences, found.profile) == (True, (), "full")


def test_the_lock_is_the_truth_and_not_the_majority(wanted: ClusterExpectation, good: NodeFacts) -> None:
    wrong = with_tree(good, "greeter", tree="0" * 40)
    found = compared(wanted, {"a": wrong, "b": wrong, "c": good})
    assert rows(found) == {("tree-differs", "a b")}
    assert found.differences[0].reference == "lock"
    assert [found.state(n) for n in found.answers] == ["odd", "odd", "ok"]


def test_nodes_on_two_releases(made: Made, good: NodeFacts, tmp_path: Path) -> None:
    """A state that names no release was written before there were any, and is of the oldest."""
    root = Path(shutil.copytree(made.root, tmp_path / "d"))
    stacks = "stacks: {greeter: v1, clock: v2}"
    sets = {
        f"manifests/releases/{n}.yaml": f'schema: 1\nname: "{n}"\nsummary: S.\n{stacks}\n'
        for n in ("2001.02", "2001.11")
    }
    full = "schema: 1\nname: full\nsummary: On both.\nreleases: {'2001.02': {}, '2001.11': {}}\n"
    write_files(root, {**sets, "manifests/profiles/full.yaml": full})
    dist = Distribution.load(root)
    newer = replace(good, release="2001.11")
    found = compare(
        {node("a"): newer, node("b"): good, node("c"): replace(good, release="2001.02")},
        ClusterExpectation(dist, "d" * 64),
    )
    assert rows(found) == {("other-profile", "a")}
    found = compare({node("a"): newer, node("b"): good}, ClusterExpectation(dist, "d" * 64))
    assert rows(found) == {("other-profile", "a"), ("other-profile", "b")}, "nobody can tell which of two is right"
    asked = ClusterExpectation(on_release(dist, "2001.11", print), "d" * 64, "full")
    found = compare({node("a"): newer, node("b"): good}, asked)
    assert [(d.rule, d.nodes, d.message) for d in found.differences if d.level == "error"] == [
        ("other-profile", ("b",), "has full on 2001.02; full on 2001.11 is requested")
    ]


def test_without_a_lock_it_is_the_majority(good: NodeFacts, made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.root, tmp_path / "d")
    shutil.rmtree(tmp_path / "d" / "manifests" / "locks")
    bare = ClusterExpectation(Distribution.load(tmp_path / "d"), "d" * 64)
    odd = with_tree(good, "clock", tree="0" * 40)
    found = compare({node("a"): odd, node("b"): good, node("c"): good}, bare)
    assert rows(found) == {("tree-differs", "a")}
    assert found.differences[0].reference == "majority"
    found = compare({node("a"): odd, node("b"): good}, bare)
    assert rows(found) == {("tree-differs", "a"), ("tree-differs", "b")}, "nobody can tell which of two is right"


def test_the_file_is_named_once_for_all_nodes_that_have_it(wanted: ClusterExpectation, good: NodeFacts) -> None:
    fault = NodeFault("file-changed", "the file differs", "greeter/greeter/hello.py", upstream="greeter")
    odd = replace(with_tree(good, "greeter", tree="0" * 40), faults=[fault])
    found = compared(wanted, {"a": odd, "b": good, "c": odd, "d": good})
    assert rows(found) == {("file-changed", "a c")}, "the file says why the tree is another one"
    assert {d.file for d in found.differences} == {"greeter/greeter/hello.py"}


@pytest.mark.parametrize(
    ("version", "rule"), [("0.9", "package-differs"), (None, "package-differs"), ("1.1", "package-differs")]
)
def test_another_package(wanted: ClusterExpectation, good: NodeFacts, version: str | None, rule: str) -> None:
    found = one_odd(wanted, good, replace(good, packages={"words": version}))
    assert rows(found) == {(rule, "c")}


def test_the_profile_says_which_version_is_right(wanted: ClusterExpectation, good: NodeFacts) -> None:
    old = replace(good, packages={"words": "0.9"})
    assert rows(compared(wanted, {"a": old, "b": old, "c": good})) == {("package-differs", "a b")}


def test_every_format_names_the_nodes_and_what_to_do(wanted: ClusterExpectation, good: NodeFacts) -> None:
    fault = NodeFault("file-changed", "the file differs", "greeter/greeter/hello.py", upstream="greeter")
    odd = replace(with_tree(good, "greeter", tree="0" * 40), faults=[fault])
    found = compared(wanted, {"a": odd, "b": good, "c": odd, "d": good, "e": NoAnswer("dead", "it was stopped")})
    shown = Shown(found.report(), "cluster.verify")
    changed, dead = "a, c: greeter: greeter/greeter/hello.py: the file differs (try: ", "e: it was stopped (try: "
    results = {r["ruleId"]: r for r in formats.sarif(RENDERERS["sarif"](shown))}
    assert results.keys() == {"file-changed", "node-dead"}
    names = [place["logicalLocations"][0]["fullyQualifiedName"] for place in results["file-changed"]["locations"]]
    assert (names, results["file-changed"]["message"]["text"].startswith(changed)) == (["a", "c"], True)
    assert [(level, p) for level, p, _ in formats.github(RENDERERS["github"](shown))] == [
        ("error", {"title": "node-dead"}),
        ("error", {"title": "file-changed"}),
    ]
    failures = {case.get("name"): case.find("failure") for case in formats.junit(RENDERERS["junit"](shown))}
    assert failures.keys() == {"e", "a, c: greeter/greeter/hello.py", "5 nodes"} and failures["5 nodes"] is None
    assert [
        f.get("message", "").startswith(w)
        for f, w in zip(failures.values(), (dead, changed), strict=False)
        if f is not None
    ] == [True, True]
    assert {i["check_name"]: i["severity"] for i in formats.gitlab(RENDERERS["gitlab"](shown))} == dict.fromkeys(
        results, "critical"
    )


def test_a_version_that_all_share_is_a_note(wanted: ClusterExpectation, good: NodeFacts) -> None:
    old = replace(good, packages={"words": "0.9"})
    found = compared(wanted, {"a": old, "b": old})
    assert found.clean and rows(found, "note") == {("other-runtime", "a b")}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"profile": "plain"}, "other-profile"),
        ({"profile": None}, "other-profile"),
        ({"without": ["loud"]}, "other-profile"),
        ({"applied": False}, "not-applied"),
        ({"python_version": "3.10.1"}, "package-differs"),
        ({"environment": {"QUEUE": "2"}}, "environment-differs"),
        ({"environment": {"QUEUE": None}}, "environment-differs"),
        ({"lock_digest": "e" * 64}, "other-lock"),
        ({"failed": Failed("manifest", 2, "the state cannot be used")}, "node-failed"),
    ],
)
def test_one_thing_is_another(wanted: ClusterExpectation, good: NodeFacts, change: dict[str, Any], rule: str) -> None:
    found = one_odd(wanted, good, replace(good, **change))
    assert rows(found) == {(rule, "c")}
    assert [found.state(n) for n in found.answers] == ["ok", "ok", "odd"]


def test_the_profile_that_is_asked_for(wanted: ClusterExpectation, good: NodeFacts) -> None:
    found = compare({node(n): good for n in "ab"}, replace(wanted, profile="plain"))
    assert ("other-profile", "a b") in rows(found)


def test_a_recipe_says_what_the_environment_is(wanted: ClusterExpectation, good: NodeFacts) -> None:
    recipe = replace(wanted, environment={"QUEUE": "2"}, of_each_node={"PORT": "a free port"})
    set_port = replace(good, environment={"QUEUE": "1", "PORT": "1"})
    right = replace(good, environment={"QUEUE": "2", "PORT": "2"})
    found = compare(
        {node("a"): set_port, node("b"): right, node("c"): replace(right, environment={"QUEUE": "2"})}, recipe
    )
    assert rows(found) == {("environment-differs", "a"), ("environment-unset", "c")}


def test_an_engine_that_imports_another_tree_than_its_worker(wanted: ClusterExpectation, good: NodeFacts) -> None:
    seen = [
        replace(s, place="/usr/greeter/__init__.py", ours=False) if (s.view, s.package) == ("spawned", "greeter") else s
        for s in good.seen
    ]
    found = one_odd(wanted, good, replace(good, seen=seen))
    assert rows(found) == {("views-differ", "c")}
    (one,) = found.differences
    assert "greeter at WORKSPACE/greeter/greeter/__init__.py, spawned at /usr/greeter/__init__.py" in one.message
    found = one_odd(wanted, good, replace(good, unseen={"spawned": "it said nothing"}))
    assert rows(found) == {("views-differ", "c")}


def test_one_cause_is_one_finding(wanted: ClusterExpectation, good: NodeFacts) -> None:
    nowhere = [replace(s, place=None, ours=False) for s in good.seen]
    found = one_odd(wanted, good, replace(good, seen=nowhere))
    assert rows(found) == {("imports-elsewhere", "c")} and len(found.differences) == 1, "PYTHONPATH is not set"
    assert "greeter not found; clock not found" in found.differences[0].message
    gone = [NodeFault("tree-missing", "the tree is not there", n, upstream=n) for n in ("greeter", "clock")]
    bare = replace(good, seen=nowhere, faults=gone, trees=[replace(t, tree=None) for t in good.trees])
    found = one_odd(wanted, good, bare)
    assert [(d.rule, d.nodes) for d in found.differences] == [("tree-missing", ("c",))]
    assert found.differences[0].message == "trees are missing: clock, greeter" and found.differences[0].todo
    at_base = [replace(t, tree="1" * 40, left_out=["typo"]) for t in good.trees]
    for reverted in (replace(good, profile=None, trees=at_base), replace(good, profile=None, trees=[])):
        found = one_odd(wanted, good, reverted)
        assert [(d.rule, d.nodes) for d in found.differences] == [("other-profile", ("c",))]
    found = one_odd(wanted, good, replace(good, trees=[]))
    assert [(d.rule, d.message) for d in found.differences] == [("tree-differs", "has no tree of greeter, clock")]


def test_workspaces_of_other_names_are_no_difference(wanted: ClusterExpectation, good: NodeFacts) -> None:
    seen = [replace(s, place=(s.place or "").replace("/ws/", "/other/"), ours=False) for s in good.seen]
    elsewhere = [replace(s, ours=False) for s in good.seen]
    found = compared(wanted, {"a": replace(good, seen=elsewhere), "b": replace(good, workspace="/other", seen=seen)})
    assert rows(found) == {("imports-elsewhere", "a b")}


@pytest.mark.parametrize(
    ("kind", "rule"), [("dead", "node-dead"), ("silent", "node-silent"), ("broken", "node-broken")]
)
def test_a_node_without_an_answer(wanted: ClusterExpectation, good: NodeFacts, kind: Any, rule: str) -> None:
    found = one_odd(wanted, good, NoAnswer(kind, "why"))
    assert rows(found) == {(rule, "c")} and not found.clean
    assert found.state(list(found.answers)[2]) == kind


def test_how_many_nodes_there_have_to_be(wanted: ClusterExpectation, good: NodeFacts) -> None:
    gone = {node("a"): good, node("b"): good, node("c", alive=False): NoAnswer("dead", "it was stopped")}
    assert rows(compare(gone, replace(wanted, nodes=3))) == {("node-dead", "c"), ("nodes-missing", "")}
    enough = compare(gone, replace(wanted, nodes=2))
    assert enough.clean and rows(enough, "note") == {("node-dead", "c")}, "one that was replaced"


def test_the_table_names_the_odd_one(wanted: ClusterExpectation, good: NodeFacts) -> None:
    answers: dict[str, Answer] = {f"n{i:03}": good for i in range(100)}
    answers["n050"] = with_tree(good, "greeter", tree="0" * 40)
    answers["n051"] = NoAnswer("dead", "its raylet \x1b[31mis gone")
    text = "\n".join(compared_text(compared(wanted, answers), "10.0.0.1:1", Style(False)))
    assert len(text.splitlines()) < 15, text
    assert "n000 and 97 more" in text and "n050" in text and "000000000000" in text and "\x1b" not in text
    assert "98 of 100 nodes as they should be" in text


def test_what_all_nodes_lack_does_not_hide_the_odd_one(wanted: ClusterExpectation, good: NodeFacts) -> None:
    recipe = replace(wanted, of_each_node={"PORT": "a free port"})
    answers: dict[ClusterNode, Answer] = {node(f"n{i:03}"): good for i in range(100)}
    answers[node("n050")] = replace(good, python_version="3.10.1")
    lines = list(compared_text(compare(answers, recipe), "10.0.0.1:1", Style(False)))
    assert [line.split("  ")[0] for line in lines[2:4]] == ["n000 and 98 more", "n050"], lines
    assert any("all 100 nodes" in line and "PORT" in line for line in lines)


def in_groups(good: NodeFacts, groups: Sequence[str]) -> dict[ClusterNode, NodeFacts]:
    return {node(n): replace(good, identity=[str(i)]) for i, names in enumerate(groups) for n in names}


class ScriptedNodes:
    """Nodes that answer from a table, and what they were asked, in order."""

    def __init__(self, found: Mapping[ClusterNode, NodeFacts], **special: Mapping[str, list[Answer]]) -> None:
        self.found = found
        self.special = {verb: {n: list(a) for n, a in of.items()} for verb, of in special.items()}
        self.log: list[tuple[str, str]] = []

    def __call__(self, verb: Any, nodes: Sequence[ClusterNode]) -> dict[ClusterNode, Answer]:
        self.log.append((verb, "".join(n.title for n in nodes)))
        special = self.special.get(verb, {})
        done = {n: replace(self.found[n], changed=["greeter"]) for n in nodes}
        return {n: special[n.title].pop(0) if special.get(n.title) else a for n, a in done.items()}


def rolled(ask: ScriptedNodes, *, dead: str = "", **options: Any) -> Deployment:
    defaults = {"expected": None, "dry_run": False, "skip_unreachable": False}
    nodes = [*ask.found, *(node(n, alive=False) for n in dead)]
    return deploy(ask, nodes, **{**defaults, **options})


def states(out: Deployment) -> dict[str, str]:
    return {n.title: r.state for n, r in out.results.items()}


def test_all_are_prepared_before_one_is_written(good: NodeFacts) -> None:
    ask = ScriptedNodes(in_groups(good, ["a", "b"]))
    out = rolled(ask)
    assert ask.log == [("look", "ab"), ("preview", "ab"), ("apply", "ab")]
    assert states(out) == {"a": "applied", "b": "applied"} and out.exit_code == 0


@pytest.mark.parametrize("verb", ["look", "preview"])
def test_one_that_cannot_holds_all_back(good: NodeFacts, verb: str) -> None:
    edits: Answer = replace(good, failed=Failed("local-edits", 5, "hello.py", "stash"))
    ask = ScriptedNodes(in_groups(good, ["a", "b"]), **{verb: {"b": [edits]}})
    out = rolled(ask)
    assert [v for v, _ in ask.log] == ["look", "preview"][: 1 + (verb == "preview")]
    assert states(out) == {"a": "held-back", "b": "failed"} and out.exit_code == 5
    text = "\n".join(deployment_text(out, "full", Style(False), dry_run=False))
    assert "nothing was written on any node" in text and "hello.py" in text


def test_a_node_that_does_not_answer_holds_all_back_unless_told(good: NodeFacts) -> None:
    silent: Answer = NoAnswer("silent", "no answer in 5 s")
    assert states(rolled(ScriptedNodes(in_groups(good, ["a", "b"]), look={"b": [silent]}))) == {
        "a": "held-back",
        "b": "failed",
    }
    out = rolled(ScriptedNodes(in_groups(good, ["a", "b"]), look={"b": [silent]}), skip_unreachable=True)
    assert states(out) == {"a": "applied"} and [n.title for n in out.gone] == ["b"] and out.exit_code == 0


def test_a_node_lost_while_it_prepares_is_skipped_as_well_and_another_takes_its_place(good: NodeFacts) -> None:
    silent: Answer = NoAnswer("silent", "no answer in 5 s")
    ask = ScriptedNodes(in_groups(good, ["ab", "c", "d"]), preview={"a": [silent], "c": [silent]})
    out = rolled(ask, skip_unreachable=True)
    assert ask.log == [("look", "abcd"), ("preview", "acd"), ("preview", "b"), ("apply", "bd")]
    assert states(out) == {"b": "applied", "d": "applied"} and [n.title for n in out.gone] == ["a", "c"]
    lost: dict[str, list[Answer]] = {"a": [silent], "b": [silent]}
    few = rolled(ScriptedNodes(in_groups(good, ["a", "b"]), preview=lost), skip_unreachable=True, expected=2)
    assert (few.missing, few.exit_code) == ("0 of 2 nodes answer", 1)


def test_one_of_those_that_share_a_workspace_writes(good: NodeFacts) -> None:
    ask = ScriptedNodes(in_groups(good, ["abc", "d"]))
    out = rolled(ask)
    assert ask.log == [("look", "abcd"), ("preview", "ad"), ("apply", "ad"), ("status", "bc")]
    assert states(out) == {"a": "applied", "d": "applied", "b": "shared", "c": "shared"}


def test_a_folder_that_only_looked_the_same_is_written_too(good: NodeFacts) -> None:
    other: Answer = with_tree(good, "greeter", tip_commit="0" * 40)
    ask = ScriptedNodes(in_groups(good, ["abc"]), status={"b": [other]})
    out = rolled(ask)
    assert ask.log[-1] == ("apply", "b")
    assert states(out) == {"a": "applied", "b": "applied", "c": "shared"}


def test_two_that_met_at_the_lock_are_asked_again(good: NodeFacts) -> None:
    busy: Answer = replace(good, failed=Failed("busy", 6, "another run holds the workspace"))
    out = rolled(ScriptedNodes(in_groups(good, ["a", "b"]), apply={"b": [busy]}))
    assert states(out) == {"a": "applied", "b": "applied"}
    out = rolled(ScriptedNodes(in_groups(good, ["a", "b"]), apply={"b": [busy, busy]}))
    assert states(out) == {"a": "applied", "b": "failed"} and out.exit_code == 6


def test_too_few_nodes_and_dead_ones(good: NodeFacts) -> None:
    ask = ScriptedNodes(in_groups(good, ["a"]))
    out = rolled(ask, dead="b", expected=2)
    assert (ask.log, out.exit_code, states(out)) == ([], 1, {"a": "held-back"})
    for asked in ({"skip_unreachable": True}, {"expected": 1}):
        out = rolled(ScriptedNodes(in_groups(good, ["a"])), dead="b", **asked)
        assert (states(out), [n.title for n in out.gone], out.exit_code) == ({"a": "applied"}, ["b"], 0)


def test_nodes_that_do_not_answer_count_as_none(good: NodeFacts) -> None:
    silent: Answer = NoAnswer("silent", "no answer in 5 s")
    ask = ScriptedNodes(in_groups(good, ["a", "b"]), look={"b": [silent]})
    out = rolled(ask, expected=2, skip_unreachable=True)
    assert (out.missing, states(out), out.exit_code) == ("1 of 2 nodes answer", {"a": "held-back"}, 1)
    assert [verb for verb, _ in ask.log] == ["look"]


def test_no_node_at_all_is_no_success(good: NodeFacts) -> None:
    silent: Answer = NoAnswer("silent", "no answer in 5 s")
    out = rolled(ScriptedNodes(in_groups(good, ["a"]), look={"a": [silent]}), dead="b", skip_unreachable=True)
    assert (states(out), out.missing, out.exit_code) == ({}, "no node answers", 1)


def test_a_node_that_died_before_the_run_fails_it(good: NodeFacts) -> None:
    ask = ScriptedNodes(in_groups(good, ["a"]))
    out = rolled(ask, dead="b")
    assert (ask.log, states(out), out.exit_code) == ([], {"b": "failed", "a": "held-back"}, 1)
    text = "\n".join(deployment_text(out, "full", Style(False), dry_run=False))
    assert "it was stopped (try: restart Ray there; --nodes N" in text and "--skip-unreachable" in text
    assert "1 node failed; nothing was written on any node" in text


def test_a_dry_run_asks_nobody_to_write(good: NodeFacts) -> None:
    ask = ScriptedNodes(in_groups(good, ["ab"]))
    assert states(rolled(ask, dry_run=True)) == {"a": "would-change", "b": "shared"}
    assert "apply" not in [v for v, _ in ask.log]


def test_other_failures_are_findings(good: NodeFacts) -> None:
    edits: Answer = replace(good, failed=Failed("local-edits", 5, "hello.py"))
    lost: Answer = NoAnswer("dead", "it died during the run")
    out = rolled(ScriptedNodes(in_groups(good, ["a", "b", "c"]), apply={"a": [edits], "b": [lost]}))
    assert (states(out), out.exit_code) == ({"a": "failed", "b": "failed", "c": "applied"}, 1)
    assert isinstance(next(iter(out.failed.values())), DeployResult)
