"""What runs on a node, without Ray: the task's function in this process, and patchctl as it travels, in a bare Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, Made, git, make_distribution, write_files

from patchctl.cluster import task
from patchctl.cluster.facts import ApplyOptions, MachineRequest, NodeFacts, Request, facts_of
from patchctl.cluster.request import make_payload
from patchctl.manifest.distribution import Distribution

NAMES = {"greeter": "greeter", "clock": "clock"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("node"), lock=True)


@pytest.fixture(scope="module")
def payload(made: Made) -> bytes:
    return make_payload(Distribution.load(made.root)).data


@pytest.fixture
def workspace(made: Made, tmp_path: Path) -> Path:
    made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    return tmp_path / "ws"


def request_for(workspace: Path, made: Made, **more: Any) -> Request:
    packages = {name: {name: name} for name in NAMES}
    plain = Request(
        "verify", str(workspace), "/nowhere", None, str(made.root), None, 60.0, names=NAMES, packages=packages
    )
    return replace(plain, **more)


def facts_from(payload: bytes, request: Request, bundle: bytes | None = None) -> NodeFacts:
    answer = task.answer(payload, request.as_json(), bundle)
    assert "facts" in answer, answer
    return facts_of(answer["facts"])


def test_a_node_answers_with_its_trees(payload: bytes, made: Made, workspace: Path) -> None:
    facts = facts_from(payload, request_for(workspace, made))
    assert (facts.failed, facts.faults, facts.not_checked, facts.profile) == (None, [], [], "full")
    for tree in facts.trees:
        assert tree.tree == tree.tip_tree == git(workspace / tree.upstream, "rev-parse", "HEAD^{tree}").strip()
        assert tree.lock == "equal"
    assert facts.workspace == str(workspace)
    assert {"views", "status", "verify", "patchctl", "whole"} <= facts.seconds.keys()


@pytest.mark.parametrize("verb", ["verify", "status"])
def test_a_changed_file_changes_the_tree(payload: bytes, made: Made, workspace: Path, verb: str) -> None:
    write_files(workspace / "greeter", {"greeter/hello.py": "x = 1\n", "greeter/manners.py": None})
    facts = facts_from(payload, request_for(workspace, made, verb=verb))
    assert {(f.rule, f.file) for f in facts.faults} == {
        ("file-changed", "greeter/greeter/hello.py"),
        ("file-changed", "greeter/greeter/manners.py"),
    }
    tree = facts.tree("greeter")
    git(workspace / "greeter", "add", "--all")
    assert tree is not None and tree.tree == git(workspace / "greeter", "write-tree").strip() != tree.tip_tree


def test_verify_finds_what_the_times_do_not_show(payload: bytes, made: Made, workspace: Path) -> None:
    import os

    file = workspace / "greeter" / "greeter" / "hello.py"
    times = file.stat()
    file.write_bytes(file.read_bytes().replace(b"Hello", b"Hallo"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [f.rule for f in facts_from(payload, request_for(workspace, made)).faults] == ["file-changed"]


def test_a_forged_state_is_not_believed(payload: bytes, made: Made, workspace: Path) -> None:
    state = workspace / ".patchctl" / "state.json"
    tip = git(workspace / "greeter", "rev-parse", "HEAD^{tree}").strip()
    assert state.read_text().count(tip) == 1
    state.write_text(state.read_text().replace(tip, "0" * 40))
    assert {"wrong-tip", "wrong-base"} <= {f.rule for f in facts_from(payload, request_for(workspace, made)).faults}


def test_the_kit_needs_nothing_but_python_and_git(
    payload: bytes, made: Made, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-S: no site-packages at all, which is less than any Ray node has."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setenv("PATCHCTL_CACHE", str(tmp_path / "cache"))
    assert facts_from(payload, request_for(workspace, made)).failed is None
    looked = facts_from(
        payload, request_for(workspace, made, verb="probe", machine=MachineRequest(paths={"a": ["/", None, None]}))
    )
    assert looked.failed is None and looked.machine is not None
    assert {"limits.txt", "meminfo.txt", "workspace.json"} <= looked.machine.texts.keys()
    assert json.loads(looked.machine.texts["paths.json"])["/"]["kind"] == "folder"
    fresh = request_for(tmp_path / "fresh", made, verb="apply", profile="plain", apply=ApplyOptions())
    facts = facts_from(payload, fresh)
    assert (facts.failed, facts.changed) == (None, ["greeter", "clock"])
    assert (tmp_path / "fresh" / "greeter" / "greeter" / "hello.py").read_text().count("Hello") == 1


def test_apply_out_of_a_bundle(payload: bytes, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    file = tmp_path / "full.bundle.tar"
    made.good("bundle", "create", "--profile", "full", "--out", str(file))
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    monkeypatch.setenv("PATCHCTL_CACHE", str(tmp_path / "empty cache"))
    options = ApplyOptions(mirrors={}, bundle_sha256=digest)
    request = request_for(tmp_path / "ws", made, verb="apply", profile="full", apply=options)
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    failed = facts_from(payload, request, bytes(changed)).failed
    assert failed is not None and failed.exit_code == 3
    assert not (tmp_path / "ws" / "greeter").exists()
    origins = made.origins.rename(made.origins.with_name("away"))
    try:
        assert facts_from(payload, request, data).changed == ["greeter", "clock"]
    finally:
        origins.rename(made.origins)


def test_a_preview_writes_nothing(payload: bytes, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHCTL_CACHE", str(tmp_path / "cache"))
    request = request_for(tmp_path / "ws", made, verb="preview", profile="full", apply=ApplyOptions())
    assert facts_from(payload, request).changed == ["greeter", "clock"]
    assert not (tmp_path / "ws").exists()


def test_an_apply_that_was_interrupted_is_no_refusal(
    payload: bytes, made: Made, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was killed: the next `cluster apply` looks, and ends it."""
    monkeypatch.setenv("PATCHCTL_CACHE", str(made.cache))
    state = json.loads((workspace / ".patchctl/state.json").read_text())
    journal = workspace / ".patchctl/journal.json"
    journal.write_text(json.dumps({"version": 1, "verb": "apply", "changes": [], "after": state}))
    asked = request_for(workspace, made, verb="preview", profile="full", apply=ApplyOptions())
    assert facts_from(payload, asked).changed == ["apply that was interrupted"] and journal.exists()
    facts = facts_from(payload, replace(asked, verb="apply"))
    assert facts.failed is None and not journal.exists()


def test_an_error_on_the_node_keeps_its_code(payload: bytes, made: Made, workspace: Path) -> None:
    write_files(workspace / "greeter", {"greeter/hello.py": "mine\n"})
    request = request_for(workspace, made, verb="preview", profile="plain", apply=ApplyOptions())
    failed = facts_from(payload, request).failed
    assert failed is not None and (failed.kind, failed.exit_code) == ("local-edits", 5)
    assert "hello.py" in failed.what and failed.hint is not None


def test_an_error_of_several_lines_becomes_one(
    payload: bytes, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHCTL_CACHE", str(tmp_path / "cache"))
    offline = ApplyOptions(source="sdist", offline=True)
    failed = facts_from(
        payload, request_for(tmp_path / "new", made, verb="preview", profile="full", apply=offline)
    ).failed
    assert failed is not None and (failed.kind, failed.exit_code) == ("source-unavailable", 3)
    assert "\\n" not in failed.what and "\n" not in failed.what and failed.what.count("; tried ") >= 2


@pytest.mark.parametrize("verb", ["verify", "status"])
def test_trees_that_are_gone(payload: bytes, made: Made, workspace: Path, verb: str) -> None:
    for name in NAMES:
        shutil.rmtree(workspace / name)
    facts = facts_from(payload, request_for(workspace, made, verb=verb))
    assert {(f.rule, f.upstream) for f in facts.faults} == {("tree-missing", "greeter"), ("tree-missing", "clock")}
    assert len(facts.faults) == 2 and [t.tree for t in facts.trees] == [None, None]


def test_a_node_with_no_workspace(payload: bytes, made: Made, tmp_path: Path) -> None:
    facts = facts_from(payload, request_for(tmp_path / "nothing" / "here", made))
    assert (facts.applied, facts.failed, facts.trees) == (False, None, [])
    assert facts.identity[-1] == "nothing/here"


def test_two_names_of_one_folder_are_one_identity(payload: bytes, made: Made, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "other name").symlink_to(workspace)
    look = request_for(workspace, made, verb="look", names={})
    one, other = (
        facts_from(payload, replace(look, workspace=str(w))).identity for w in (workspace, tmp_path / "other name")
    )
    third = facts_from(payload, replace(look, workspace=str(tmp_path))).identity
    assert one == other != third


def test_the_workspace_of_the_node_comes_before_that_of_the_driver(
    payload: bytes, made: Made, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHCTL_WORKSPACE", str(workspace))
    request = replace(request_for(workspace, made, verb="look", names={}), workspace=None)
    assert facts_from(payload, request).workspace == str(workspace)
    monkeypatch.delenv("PATCHCTL_WORKSPACE")
    assert facts_from(payload, request).workspace == "/nowhere"


def test_secrets_stay_on_the_node(payload: bytes, made: Made, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: Mapping[str, str] = {
        "GREETER_API_KEY": "s3cret",
        "GREETER_PROXY": "http://me:s3cret@proxy.example.com:80",
        "GREETER_PATH": f"{workspace}/greeter:/opt",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    request = request_for(workspace, made, variables=[*values, "GREETER_UNSET"], secret=["GREETER_API_KEY"])
    answer = task.answer(payload, request.as_json(), None)
    assert "s3cret" not in str(answer)
    assert answer["facts"]["environment"] == {
        "GREETER_API_KEY": "(set)",
        "GREETER_PROXY": "http://proxy.example.com:80",
        "GREETER_PATH": "WORKSPACE/greeter:/opt",
        "GREETER_UNSET": None,
    }


def test_what_a_worker_and_its_children_import(
    payload: bytes, made: Made, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that a process adds to its own sys.path reaches what it spawns; one in PYTHONPATH reaches what is started."""
    shutil.copytree(workspace / "clock" / "clock", tmp_path / "elsewhere" / "clock")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    monkeypatch.syspath_prepend(str(workspace / "greeter"))
    facts = facts_from(payload, request_for(workspace, made))
    assert {(s.view, s.package, s.ours) for s in facts.seen} == {
        ("worker", "greeter", True),
        ("worker", "clock", False),
        ("spawned", "greeter", True),
        ("spawned", "clock", False),
    }
    assert {s.place for s in facts.seen if s.package == "clock"} == {
        str(tmp_path / "elsewhere" / "clock" / "__init__.py")
    }


def test_the_folder_that_training_starts_in_counts(payload: bytes, made: Made, workspace: Path) -> None:
    kept = sys.path[:]
    facts = facts_from(payload, request_for(workspace, made, start=["clock", "."], drop=[str(REPO)]))
    assert {(s.view, s.package, s.ours) for s in facts.seen if s.package == "clock"} == {
        ("worker", "clock", True),
        ("spawned", "clock", True),
    }
    assert sys.path == kept


def test_what_the_driver_adds_is_taken_away_and_what_the_node_has_stays(
    payload: bytes, made: Made, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray puts the folder that a driver was started in on sys.path of the workers; PYTHONPATH may name the same one."""
    for name in ("greeter", "clock"):
        monkeypatch.syspath_prepend(str(workspace / name))
    monkeypatch.setenv("PYTHONPATH", str(workspace / "greeter"))
    drop = [str(workspace / "greeter"), str(workspace / "clock")]
    facts = facts_from(payload, request_for(workspace, made, verb="status", drop=drop))
    assert {(s.package, s.ours) for s in facts.seen if s.view == "worker"} == {("greeter", True), ("clock", False)}


@pytest.mark.parametrize("verb", ["verify", "status"])
def test_a_commit_on_top(payload: bytes, made: Made, workspace: Path, verb: str) -> None:
    git(workspace / "clock", "commit", "--quiet", "--allow-empty", "-m", "mine")
    assert [f.rule for f in facts_from(payload, request_for(workspace, made, verb=verb, names={})).faults] == [
        "head-moved"
    ]


def test_a_node_that_takes_too_long_is_ended(
    payload: bytes, made: Made, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:/usr/bin:/bin")
    began = time.monotonic()
    answer = task.answer(payload, request_for(workspace, made, seconds=15.0).as_json(), None)
    assert "did not finish within" in answer["broken"]
    assert time.monotonic() - began < 200
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"  # nobody waits for orphans in some containers


def test_a_spawned_process_may_take_half_of_the_nodes_time(
    payload: bytes, made: Made, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded host its imports take a minute, so that a limit of its own made nodes differ which do not."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(slow))
    began = time.monotonic()
    answer = task.answer(payload, request_for(workspace, made, seconds=30.0).as_json(), None)
    assert time.monotonic() - began < 45
    facts = answer["facts"]
    assert facts["unseen"] == {"spawned": "a spawned process did not answer within 15 s, half of --timeout"}
    assert {s["view"] for s in facts["seen"]} == {"worker"}


def test_the_same_distribution_gives_the_same_kit(made: Made) -> None:
    one, other = (make_payload(Distribution.load(made.root)) for _ in range(2))
    assert one == other
    assert len(one.data) < 1 << 20
