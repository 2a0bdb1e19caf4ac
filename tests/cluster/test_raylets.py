"""Four real raylets on this machine, as four nodes: trees are applied to all, then one has an altered file, one lacks a package
version, and one dies during the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, Made, make_distribution, write_files
from raylets import QUIET, Raylets
from recipes import with_recipes
from test_json import check_output

NAMES = ("a", "b", "c", "d")
HELLO = "greeter/greeter/hello.py"
_RUN_SECONDS = 600
# What a node is given to answer in: its workers import all anew, which takes a minute where the machine does something else as well.
_ANSWER_SECONDS = 480


@dataclass(frozen=True)
class Nodes:
    """A cluster whose nodes have a workspace each, but for d, which shares that of c."""

    made: Made
    raylets: Raylets
    folder: Path

    def workspace(self, name: str) -> Path:
        return self.folder / f"ws-{'c' if name == 'd' else name}"

    def run(self, *args: str, address: str | None = None) -> subprocess.CompletedProcess[str]:
        """`patchctl cluster ARGS`, with the Python that has ray."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "RAY_", "PYTHON", "PIP_"))}
        verb, *rest = args
        return subprocess.run(
            [
                self.raylets.python,
                "-m",
                "patchctl",
                f"--root={self.made.root}",
                f"--cache={self.made.cache}",
                "cluster",
                verb,
                "--address",
                address or self.raylets.address,
                *rest,
            ],
            env={
                **kept,
                **QUIET,
                "HOME": str(home),
                "PYTHONPATH": path_of_driver(self.folder),
                "PIP_NO_INDEX": "1",
                "PATCHCTL_NO_PROGRESS": "1",
            },
            cwd=home,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )

    def json(self, *args: str, code: int = 0, **more: Any) -> dict[str, Any]:
        done = self.run(*args, "--json", **more)
        assert done.returncode == code, f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        check_output(found, f"patchctl.cluster.{args[0]}/1")
        return found


def path_of_driver(folder: Path) -> str:
    """patchctl, and those of its dependencies that Ray's interpreter need not have. Links, one by one: the rest of this
    environment stays out of sight, since it is another Python's."""
    links = folder / "dependencies"
    if not links.is_dir():
        links.mkdir()
        for name in ("click", "git", "gitdb", "smmap", "packaging", "pyflakes", "unearth", "unidiff"):
            __import__(name)
            (links / name).symlink_to(Path(str(sys.modules[name].__file__)).parent)
    return f"{REPO}:{links}"


def make_words(folder: Path, version: str) -> Path:
    """What importlib.metadata takes for an installed distribution."""
    write_files(
        folder / f"words-{version}.dist-info", {"METADATA": f"Metadata-Version: 2.1\nName: words\nVersion: {version}\n"}
    )
    return folder


def make_slow_git(folder: Path) -> Path:
    """A git that waits for nobody while a file is there: a node that is in the middle of its work for as long as we like."""
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    write_files(
        folder / "bin",
        {
            "git": f'#!/bin/sh\nif test -e "{folder}/slow"; then : > "{folder}/here"; sleep {_RUN_SECONDS}; fi\nexec {real} "$@"\n'
        },
    )
    (folder / "bin" / "git").chmod(0o755)
    return folder / "bin"


def make_nodes(raylets: Raylets, folder: Path) -> Nodes:
    made = with_recipes(make_distribution(folder))
    made.edit(
        "manifests/upstreams.yaml",
        "schema: 1\n",
        "schema: 1\nrequirements:\n  words: {summary: Words., kind: python}\n",
    )
    made.edit("manifests/profiles/full.yaml", "stacks:\n", 'runtime: {words: "1.*"}\nstacks:\n')
    made.good("lock")
    nodes = Nodes(made, raylets, folder)
    words = {version: make_words(folder / f"site-{version}", version) for version in ("1.0", "0.9")}
    for name in NAMES:
        ws = nodes.workspace(name)
        env = {
            "PATCHCTL_WORKSPACE": str(ws),
            "PATCHCTL_CACHE": str(folder / f"cache-{name}"),
            "PYTHONPATH": f"{ws}/greeter:{ws}/clock:{words['0.9' if name == 'c' else '1.0']}",
            "QUEUE": "1",
            "GREETER_LOUD": "3",
            "GREETER_PORT": "1",
            "HOME": str(folder),
        }
        if name == "d":
            env["PATH"] = f"{make_slow_git(folder / 'd')}:{os.environ['PATH']}"
        (raylets.node if raylets.address else raylets.head)(name, env)
    return nodes


@pytest.fixture(scope="module")
def nodes(ray_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Raylets(ray_python) as raylets:
        yield make_nodes(raylets, tmp_path_factory.mktemp("nodes"))


def differences(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(d["rule"], " ".join(d["nodes"])) for d in found["differences"] if d["severity"] == "error"}


def states(found: dict[str, Any]) -> dict[str, str]:
    return {n["node"]: n["state"] for n in found["nodes"]}


def test_apply_to_all_where_one_of_two_that_share_a_workspace_writes(nodes: Nodes) -> None:
    found = nodes.json("apply", "--profile", "full", "--nodes", "4")
    assert states(found) == {"a": "applied", "b": "applied", "c": "applied", "d": "shared"}
    assert [n["writer"] for n in found["nodes"]] == [None, None, None, "c"]
    for name in NAMES:
        assert "GREETER_POLITE" in (nodes.workspace(name) / HELLO).read_text()
    assert not (nodes.folder / "cache-d").exists(), "who does not write needs no sources"


def test_an_altered_file_a_package_and_a_death_during_the_run(nodes: Nodes) -> None:
    write_files(nodes.workspace("b"), {HELLO: "x = 1\n"})
    (nodes.folder / "d" / "slow").touch()
    killed = threading.Thread(target=when_there, args=(nodes.folder / "d" / "here", lambda: nodes.raylets.kill("d")))
    killed.start()
    began = time.monotonic()
    found = nodes.json("verify", "--profile", "full", "--recipe", "loud", f"--timeout={_ANSWER_SECONDS}", code=1)
    took = time.monotonic() - began
    killed.join()
    assert states(found) == {"a": "ok", "b": "odd", "c": "odd", "d": "dead"}
    assert differences(found) == {("file-changed", "b"), ("package-differs", "c"), ("node-dead", "d")}
    by_rule = {d["rule"]: d for d in found["differences"]}
    assert by_rule["file-changed"]["file"] == HELLO
    assert by_rule["package-differs"]["message"].startswith("words is 0.9; 1.0 on the others")
    assert "during the run" in by_rule["node-dead"]["message"]
    assert took < _ANSWER_SECONDS, "a node that dies is no wait for its whole time"
    for node in found["nodes"][:3]:
        assert {(s["view"], s["ours"]) for s in node["facts"]["seen"]} == {("worker", True), ("spawned", True)}


def test_the_table_after_it(nodes: Nodes) -> None:
    done = nodes.run("status", f"--timeout={_ANSWER_SECONDS}")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines if line[:2].strip() in NAMES] == [
        ["a", "ok"],
        ["b", "ODD"],
        ["c", "ODD"],
        ["d", "DEAD"],
    ]
    assert any("b" in line and HELLO in line and "[file-changed]" in line for line in lines)
    assert lines[-1] == "1 of 4 nodes as they should be"
    assert done.stderr == ""


def test_apply_fails_at_a_dead_node_unless_told_otherwise(nodes: Nodes) -> None:
    line = ("apply", "--profile", "full", "--stash")
    found = nodes.json(*line, code=1)
    assert states(found) == {"a": "held-back", "b": "held-back", "c": "held-back", "d": "failed"}
    assert found["gone"] == [] and (nodes.workspace("b") / HELLO).read_text() == "x = 1\n", "nothing was written"
    found = nodes.json(*line, "--skip-unreachable")
    assert states(found) == {"a": "unchanged", "b": "applied", "c": "unchanged"}
    assert [g["node"] for g in found["gone"]] == ["d"]
    await_known(nodes, "d")
    assert states(nodes.json(*line, code=1))["d"] == "failed"
    found = nodes.json(*line, "--nodes", "3")
    assert [g["node"] for g in found["gone"]] == ["d"]
    assert nodes.json(*line, "--nodes", "4", code=1)["missing"] == "3 of 4 nodes are up"


def test_a_message_of_several_lines_is_one(nodes: Nodes) -> None:
    """No source has a distribution on the package index: each node says so, with the places tried, line by line."""
    where = ("--workspace", str(nodes.folder / "new"), "--skip-unreachable")
    done = nodes.run("apply", "--profile", "full", "--source", "sdist", "--offline", *where)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "\\n" not in done.stdout and "; tried " in done.stdout


def test_a_node_whose_trees_are_gone_is_one_finding(nodes: Nodes) -> None:
    for name in ("greeter", "clock"):
        shutil.rmtree(nodes.workspace("a") / name)
    for verb in ("verify", "status"):
        found = nodes.json(verb, "--profile", "full", "--nodes", "3", f"--timeout={_ANSWER_SECONDS}", code=1)
        assert differences(found) == {("tree-missing", "a"), ("package-differs", "c")}, found["differences"]
        assert sum(d["severity"] == "error" for d in found["differences"]) == 2, found["differences"]


def await_known(nodes: Nodes, dead: str) -> None:
    """Until the cluster itself knows of a death: it learns of it up to half a minute late."""
    end = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < end:
        (row,) = (n for n in nodes.json("status", f"--timeout={_ANSWER_SECONDS}", code=1)["nodes"] if n["node"] == dead)
        if "during the run" not in row["why"]:
            return
        time.sleep(2)
    raise AssertionError(f"the cluster never learned that {dead} is dead")


def when_there(file: Path, act: Callable[[], None]) -> None:
    """Do it as soon as a file is there."""
    end = time.monotonic() + _RUN_SECONDS
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    act()
