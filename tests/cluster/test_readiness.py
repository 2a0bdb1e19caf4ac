"""`patchctl cluster preflight`: recordings of machines as the answers of nodes, and two raylets of which one is odd."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import formats
import pytest
from distribution import make_distribution
from raylets import Raylets
from recipes import with_recipes
from test_raylets import Nodes, states

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "preflight"))
from machines import ENVIRONMENT, hccn, ip_addr, operators, pip_list, texts
from preflight_cases import case_of

from patchctl.cluster.facts import Failed, MachineFacts, NodeFacts
from patchctl.cluster.fanout import Answer, ClusterNode, NoAnswer
from patchctl.findings import RENDERERS, Finding, Shown
from patchctl.terminal.text import Style
from patchctl.training.preflight.live import paths_here
from patchctl.training.preflight.readiness import Odd, Readiness, readiness
from patchctl.training.report.preflight import readiness_text

RECIPE = "qwen3-235b/grpo"


def node(number: int, *, alive: bool = True) -> ClusterNode:
    return ClusterNode(f"id{number}", f"n{number}", f"192.0.2.{number}", 1, alive, "gone")


def machine(number: int, **changed: str) -> NodeFacts:
    """A good node with an address of its own and devices with theirs."""
    files = {name.partition(".")[0].replace("-", "_"): name for name in texts()}
    own = {
        "ip-addr.json": json.dumps(ip_addr(address=f"192.0.2.{number}")),
        "hccn.txt": hccn().replace("10.20.0.", f"10.20.{number}."),
        "hccn-conf.txt": "",
    }
    found = {**texts(), **own, **{files[name]: text for name, text in changed.items()}}
    found.pop("machine.json")
    return NodeFacts(
        host="h",
        workspace="/ws",
        identity=[],
        python="/py",
        python_version="3.11",
        ray="2.48.0",
        interpreter="/py",
        packages={},
        environment={},
        machine=MachineFacts(found, {}, 1.79e9),
    )


def look(answers: Mapping[ClusterNode, Answer], accepted: tuple[str, ...] = (), nodes: int | None = None) -> Readiness:
    return readiness(answers, lambda found: case_of(RECIPE, found), accepted, nodes)


def named(found: Readiness) -> list[tuple[str, tuple[str, ...], bool]]:
    return [(o.trait, o.nodes, o.stops) for o in found.odd]


def test_nodes_that_are_alike_are_ready() -> None:
    found = look({node(n): machine(n) for n in (1, 2, 3)}, nodes=3)
    assert found.ready and found.odd == ()
    assert {found.state(n) for n in found.answers} == {"ready"}


@pytest.mark.parametrize(
    ("changed", "trait", "stops"),
    [
        ({"driver": "Version=25.3.rc2\n"}, "driver", True),
        ({"hccn": hccn().replace("10.20.0.", "10.20.3.").replace("switch[0]", "switch[1]")}, "TLS of devices", True),
        ({"pip_list": pip_list(torch="2.9.0+cpu.2")}, "packages", True),
        ({"environment": json.dumps({**ENVIRONMENT, "MASTER_ADDR": "192.0.2.3"})}, "MASTER_ADDR", True),
        ({"meminfo": "MemTotal: 1048576000 kB\n"}, "memory", False),
        ({"hccn": hccn().replace("10.20.0.", "10.20.1.")}, "addresses of devices", True),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_odd_one_is_named(changed: dict[str, str], trait: str, stops: bool) -> None:
    """Each is fine by itself."""
    found = look({node(1): machine(1), node(2): machine(2), node(3): machine(3, **changed)})
    having = ("n1", "n3") if trait == "addresses of devices" else ("n3",)
    assert (trait, having, stops) in named(found)
    assert found.ready is not stops
    assert look(found.answers, accepted=(trait,)).ready


def test_the_first_node_is_any_where_it_is_known_by_name() -> None:
    little = "MemTotal: 629145600 kB\n"
    for first, short in (("192.0.2.1", {"n1"}), ("node1", {"n1", "n2"})):
        environment = json.dumps({**ENVIRONMENT, "MASTER_ADDR": first})
        found = look({node(n): machine(n, environment=environment, meminfo=little) for n in (1, 2)})
        blocked = {
            title for title, rows in found.findings.items() for f in rows if f.name == "controller memory" and f.blocks
        }
        assert blocked == short, first


def test_without_a_majority_every_value_is_named() -> None:
    found = look({node(1): machine(1), node(2): machine(2, driver="Version=25.3.rc2\n")})
    assert [(o.value, o.most, o.nodes) for o in found.odd] == [
        ("25.3.rc1", None, ("n1",)),
        ("25.3.rc2", None, ("n2",)),
    ]


def test_a_fault_of_one_node_is_that_nodes() -> None:
    answers = {node(1): machine(1), node(2): machine(2, operators=operators("x.so"))}
    found = look(answers)
    assert {n.title: found.state(n) for n in answers} == {"n1": "ready", "n2": "not ready"}
    lines = list(readiness_text(found, case_of(RECIPE).run, "h:1", Style(False)))
    assert any(line.startswith("wrong    n2  compiled operators: no vllm_ascend_C") for line in lines)
    assert lines[-1] == "1 of 2 nodes are ready"
    assert look(answers, accepted=("compiled operators",)).ready


def test_every_format_has_the_findings_of_each_node_and_what_is_odd() -> None:
    dead = {node(4, alive=False): NoAnswer("dead", "gone")}
    odd = machine(3, driver="Version=25.3.rc2\n")
    found = look({node(1): machine(1), node(2): machine(2, operators=operators("x.so")), node(3): odd, **dead}, nodes=4)
    report = found.report()
    assert not found.ready and report.exit_code() == 1
    stops = {(f.id, f.nodes) for f in report.findings if f.blocks}
    assert stops == {("odd/driver", ("n3",)), ("software/compiled operators", ("n2",)), ("nodes-missing", ())}
    shown = Shown(report, "cluster.preflight")
    cases = {(case.get("classname"), case.get("name")): case for case in formats.junit(RENDERERS["junit"](shown))}
    assert cases["patchctl.software", "n2: compiled operators"].find("failure") is not None
    assert len(cases["patchctl.software", "n1: compiled operators"]) == 0
    assert cases["patchctl.node-dead", "n4"].find("system-out") is not None, "dead nodes count as missing"
    levels = {(p["title"], text.split(":")[0]): level for level, p, text in formats.github(RENDERERS["github"](shown))}
    assert levels["odd/driver", "n3"] == levels["nodes-missing", "1 node too few"] == "error"
    assert levels["node-dead", "n4"] == "warning"
    assert formats.sarif(RENDERERS["sarif"](shown)) and formats.gitlab(RENDERERS["gitlab"](shown))


def test_what_is_said_first_of_a_node_blocks_nothing() -> None:
    answers: dict[ClusterNode, Answer] = {node(n): machine(n) for n in (1, 2)}
    told = Finding("recipe", "another release fits", level="warning", name="release", needed=False)
    found = readiness(answers, lambda m: case_of(RECIPE, m), (), 2, lambda case, findings: [told])
    assert found.ready and all(findings[0] is told for findings in found.findings.values())


def test_the_controllers_memory_is_the_first_nodes() -> None:
    """MASTER_ADDR is 192.0.2.1."""
    small = "MemTotal: 600000000 kB\n"
    found = look({node(1): machine(1), node(2): machine(2, meminfo=small)})
    assert "controller memory" not in {f.name for f in found.findings["n2"]}
    first = look({node(1): machine(1, meminfo=small), node(2): machine(2)})
    assert any(f.name == "controller memory" and f.blocks for f in first.findings["n1"])


def test_nodes_that_say_nothing() -> None:
    lost: dict[ClusterNode, Answer] = {node(1): machine(1), node(2): NoAnswer("silent", "no answer in 9 s")}
    assert not look(lost).ready and look(lost).state(node(2)) == "silent"
    dead: dict[ClusterNode, Answer] = {node(1): machine(1), node(2, alive=False): NoAnswer("dead", "gone")}
    assert look(dead, nodes=1).ready
    assert not look(dead, nodes=2).ready and look(dead, nodes=2).missing == 1
    failed = NodeFacts(**{**vars(machine(2)), "machine": None, "failed": Failed("usage", 2, "no such thing")})
    assert look({node(1): machine(1), node(2): failed}).state(node(2)) == "failed"


def test_paths_are_each_nodes_own() -> None:
    asked: dict[str, list[str | None]] = {"a": [None, "A", "/a"], "b": ["/given", "B", None], "c": [None, "C", None]}
    assert paths_here(asked, {"A": "/mine", "B": "/no"}) == {"a": "/mine", "b": "/given", "c": None}


def test_over_ray_each_node_answers_for_itself(ray_python: str, tmp_path: Path) -> None:
    """Two raylets of one machine: one was started with a variable that stops HCCL."""
    made = with_recipes(make_distribution(tmp_path, lock=True))
    with Raylets(ray_python) as raylets:
        nodes = Nodes(made, raylets, tmp_path)
        kept = {"HOME": str(tmp_path), "PATCHCTL_WORKSPACE": str(tmp_path / "ws"), "QUEUE": "1", "GREETER_LOUD": "3"}
        raylets.head("a", kept)
        raylets.node("b", {**kept, "HCCL_WHITELIST_DISABLE": "0", "BOOK_PATH": "/nowhere/book"})
        found: dict[str, Any] = nodes.json("preflight", "--profile", "full", "--recipe", "loud", code=1)
    assert states(found) == {"a": "not ready", "b": "not ready"}  # no NPU is here
    by_node = {n["node"]: {f["name"]: f for f in n["findings"] if f["area"] != "device memory"} for n in found["nodes"]}
    assert "HCCL_WHITELIST_DISABLE" not in by_node["a"] and by_node["b"]["HCCL_WHITELIST_DISABLE"]["blocks"]
    assert by_node["b"]["model"]["what"] == "/nowhere/book: nothing is there"
    assert by_node["a"]["model"]["what"] == "not given"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in by_node["a"]
    assert by_node["a"]["workspace"]["what"].startswith("nothing was applied to")


def test_an_odd_value_is_printed_with_what_most_have() -> None:
    odd = Odd("driver", "25.2", "25.3", ("n9",), True)
    found = Readiness({node(n): machine(n) for n in (1, 9)}, {}, (odd,), 0)
    lines = list(readiness_text(found, case_of(RECIPE).run, "h:1", Style(False)))
    assert "odd      n9  driver: 25.2; most have 25.3" in lines
