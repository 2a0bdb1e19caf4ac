"""`patchctl apply` as a user runs it: what is on the disk afterwards, and what is not."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chinese import IN_CHINESE, english_in
from distribution import CLOCK, GREETER, Made, Patch, git, make_distribution, write_files
from on_disk import Workspace, environment, snapshot, stamps

GENERATED = 'generated:\n  - path: greeter/_version.py\n    content: "version = 1\\n"\n    why: greeter asks for it\n'


def test_every_tree_is_patched_and_is_an_ordinary_repository(ws: Workspace) -> None:
    out = ws.apply()
    assert [line.split()[0] for line in out.splitlines() if "applied" in line] == ["greeter", "clock"]
    hello = (ws.folder / "greeter/greeter/hello.py").read_text()
    assert "Hello, " in hello and "LOUD" in hello and "from greeter.manners import polite" in hello
    assert "please" in (ws.folder / "greeter/greeter/manners.py").read_text()
    assert os.access(ws.folder / "greeter/run.sh", os.X_OK)
    log = git(ws.folder / "greeter", "log", "--format=%s", "-3").splitlines()
    assert log == ["hello: repeat a shout", "hello: add a polite form", "hello: spell the greeting right"]
    ws.assert_healthy()


def test_the_patched_package_runs(ws: Workspace) -> None:
    ws.apply()
    code = "import greeter.hello as h; print(h.shout('ann'))"
    env = {"PYTHONPATH": str(ws.folder / "greeter"), "GREETER_POLITE": "1", "GREETER_LOUD": "2"}
    done = subprocess.run([sys.executable, "-B", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "HELLO, ANN, PLEASEHELLO, ANN, PLEASE\n"


def test_twice_changes_nothing(ws: Workspace) -> None:
    ws.apply()
    before = stamps(ws.folder)
    assert ws.apply().count("unchanged") == 2
    after = stamps(ws.folder)
    before.pop(".patchctl/lock"), after.pop(".patchctl/lock")
    assert after == before


def test_a_tree_that_was_copied_is_read_once_more_and_not_each_time(ws: Workspace) -> None:
    ws.apply()
    tree, copy = ws.folder / "greeter", ws.folder / "copy"
    shutil.copytree(tree, copy, symlinks=True)
    shutil.rmtree(tree)
    copy.rename(tree)
    named = ("diff-files", "--name-only")
    assert git(tree, *named) != ""
    ws.good("apply", "--profile", "full", "--dry-run")
    assert git(tree, *named) != ""
    ws.apply()
    assert git(tree, *named) == ""


def test_twice_changes_nothing_with_generated_files(own_ws: Workspace) -> None:
    stack = own_ws.made.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + GENERATED)
    own_ws.apply()
    assert (own_ws.folder / "greeter/greeter/_version.py").read_text() == "version = 1\n"
    before = stamps(own_ws.folder)
    assert own_ws.json("apply", "--profile", "full")["changed"] == []
    after = stamps(own_ws.folder)
    before.pop(".patchctl/lock"), after.pop(".patchctl/lock")
    assert after == before


def test_a_generated_file_follows_the_manifest(own_ws: Workspace) -> None:
    stack = own_ws.made.root / "manifests/stacks/greeter/v1.yaml"
    plain = stack.read_text()
    stack.write_text(plain + GENERATED)
    own_ws.apply()
    stack.write_text(plain + GENERATED.replace("version = 1", "version = 2"))
    assert own_ws.json("apply", "--profile", "full")["changed"] == ["greeter"]
    file = own_ws.folder / "greeter/greeter/_version.py"
    assert file.read_text() == "version = 2\n"
    file.unlink()
    own_ws.apply()
    own_ws.assert_healthy()
    stack.write_text(plain)
    own_ws.apply()
    assert not file.exists()


def test_an_edited_generated_file_is_not_overwritten(own_ws: Workspace) -> None:
    stack = own_ws.made.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + GENERATED)
    own_ws.apply()
    file = own_ws.folder / "greeter/greeter/_version.py"
    file.write_bytes(b"version = '\xff'\n")
    for verb in (("apply", "--profile", "plain"), ("revert",)):
        assert str(file) in own_ws.refused(5, *verb)
    own_ws.good("revert", "--stash")
    assert git(own_ws.folder / "greeter", "log", "-1", "--format=%H", "patchctl-stash-1", "--", "greeter/_version.py")


def test_the_workspace_needs_no_cache_and_no_distribution(own_ws: Workspace) -> None:
    own_ws.apply()
    applied = own_ws.trees()
    elsewhere = own_ws.folder.with_name("moved here")
    own_ws.folder.rename(elsewhere)
    shutil.rmtree(own_ws.made.cache)
    shutil.rmtree(own_ws.made.root)
    moved = Workspace(own_ws.made, elsewhere)
    assert moved.trees() == applied
    moved.assert_healthy()
    assert not list(elsewhere.rglob("alternates"))


def test_a_byte_that_changes_in_the_cache_later_does_not_reach_the_workspace(own_ws: Workspace) -> None:
    own_ws.apply()
    for pack in own_ws.made.cache.rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.chmod(0o644)
        with pack.open("r+b") as out:  # in place: the same inode
            out.write(data)
    own_ws.good("revert")
    own_ws.assert_healthy()


def test_a_file_where_the_stack_deletes_one_is_an_edit(tmp_path: Path) -> None:
    """git calls it untracked, and apply and status ended with 0 where verify ends with 1."""
    gone = Patch("gone", {"run.sh": None}, "run: it goes")
    made = make_distribution(tmp_path, (replace(GREETER, patches=(gone,)),), lock=True)
    ws = Workspace(made, tmp_path / "workspace")
    ws.apply()
    (ws.folder / "greeter/run.sh").write_text("mine\n")
    assert "run.sh" in ws.refused(5, "apply", "--profile", "full")
    assert "run.sh" in ws.refused(5, "apply", "--profile", "full", "--dry-run")
    (tree,) = ws.json("status", code=1)["trees"]
    assert tree["edits"] == ["run.sh"]
    assert "kept on branch patchctl-stash-1" in ws.apply("full", "--stash")
    assert git(ws.folder / "greeter", "show", "patchctl-stash-1:run.sh") == "mine\n"
    ws.assert_healthy()


@pytest.mark.parametrize("there", [False, True], ids=["no-workspace", "plain"])
def test_dry_run_writes_nothing(ws: Workspace, there: bool) -> None:
    if there:
        ws.apply("plain")
    before = snapshot(ws.folder.parent)
    result = ws.json("apply", "--profile", "full", "--dry-run")
    assert result["dry_run"] is True
    assert result["changed"] == (["greeter"] if there else ["greeter", "clock"])
    assert [p["feature"] for p in result["trees"]["greeter"]["patches"]] == ["typo", "polite", "loud"]
    assert snapshot(ws.folder.parent) == before


def test_dry_run_stops_where_the_run_would(ws: Workspace) -> None:
    ws.apply("plain")
    file = ws.folder / "greeter/greeter/manners.py"
    file.write_text("mine = True\n")
    for extra in ((), ("--dry-run",)):
        assert str(file) in ws.refused(5, "apply", "--profile", "full", *extra)
    assert file.read_text() == "mine = True\n"


def test_without_the_middle_of_a_stack(ws: Workspace) -> None:
    result = ws.json("apply", "--profile", "full", "--without", "polite", "--without", "polite@greeter")
    left = result["trees"]["greeter"]["left_out"]
    assert [o["feature"] for o in left] == ["polite"] and "--without" in left[0]["reason"]
    hello = (ws.folder / "greeter/greeter/hello.py").read_text()
    assert "LOUD" in hello and "polite" not in hello
    assert not (ws.folder / "greeter/greeter/manners.py").exists()
    ws.assert_healthy()
    assert "left out polite: left out with --without" in ws.good("status")
    ws.apply()
    assert "polite" in (ws.folder / "greeter/greeter/hello.py").read_text()


def test_without_refuses_what_others_require(ws: Workspace) -> None:
    message = ws.refused(2, "apply", "--profile", "full", "--without", "typo")
    assert "loud@greeter requires typo@greeter, which is left out" in message
    assert "as well: --without loud@greeter --without step@clock" in message  # all of them, not the first
    assert not ws.folder.exists()
    assert "did you mean polite?" in ws.refused(2, "apply", "--profile", "full", "--without", "polit")


def test_without_refuses_what_later_patches_build_on(tmp_path: Path) -> None:
    first = GREETER.patches[1].edits["greeter/hello.py"]
    assert first is not None
    on_top = replace(
        GREETER.patches[2], edits={"greeter/hello.py": first.replace("polite(text)\n", "polite(text)  # twice\n")}
    )
    made = make_distribution(tmp_path, (replace(GREETER, patches=(*GREETER.patches[:2], on_top)),), lock=True)
    ws = Workspace(made, tmp_path / "ws")
    message = ws.refused(4, "apply", "--profile", "full", "--without", "polite")
    assert "loud builds on lines of a feature that is left out" in message
    assert "0003-feature-loud.patch:" in message


def test_skip_unavailable_is_said_everywhere(own_ws: Workspace) -> None:
    made = own_ws.made
    shutil.rmtree(made.cache / "git" / "greeter")
    upstreams = made.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/greeter", "/origins/gone"))
    message = own_ws.refused(3, "apply", "--profile", "full")
    assert "tried" in message and "origins/gone" in message and "--skip-unavailable" in message
    result = own_ws.json("apply", "--profile", "full", "--skip-unavailable")
    assert [s["upstream"] for s in result["skipped"]] == ["greeter"]
    assert any("origins/gone" in place for place, _ in result["skipped"][0]["tried"])
    left = result["trees"]["clock"]["left_out"]
    assert [o["feature"] for o in left] == ["step"] and "requires typo@greeter" in left[0]["reason"]
    assert [s["upstream"] for s in own_ws.state["skipped"]] == ["greeter"]
    assert str(made.cache) in message and str(made.cache) not in json.dumps(own_ws.state), "a state goes into images"
    status = own_ws.good("status")
    assert "greeter" in status and "skipped" in status and "origins/gone" in own_ws.good("status", "-v")
    assert "left out step: requires typo@greeter" in status
    text = own_ws.good("apply", "--profile", "full", "--skip-unavailable")
    assert "skipped" in text and "origins/gone" in text


def without_sources(ws: Workspace, *names: str) -> None:
    """Neither the cache nor the place of these upstreams holds anything from now on."""
    upstreams = ws.made.root / "manifests/upstreams.yaml"
    for name in names:
        shutil.rmtree(ws.made.cache / "git" / name)
        upstreams.write_text(upstreams.read_text().replace(f"/origins/{name}", f"/origins/no-{name}"))


@pytest.mark.parametrize("skip", [(), ("--skip-unavailable",), ("--skip-unavailable", "--dry-run")])
def test_nothing_that_could_be_had_is_3_and_writes_nothing(own_ws: Workspace, skip: tuple[str, ...]) -> None:
    without_sources(own_ws, "greeter", "clock")
    message = own_ws.refused(3, "apply", "--profile", "full", *skip)
    assert "origins/no-greeter" in message and "continues without" not in message
    assert not own_ws.folder.exists()


def test_nothing_that_could_be_had_leaves_a_workspace_as_it_is(own_ws: Workspace) -> None:
    own_ws.apply()
    without_sources(own_ws, "greeter", "clock")
    own_ws.refused(3, "apply", "--profile", "plain", "--skip-unavailable")
    own_ws.good("verify")


def test_the_places_tried_are_told_apart_by_upstream(own_ws: Workspace) -> None:
    without_sources(own_ws, "greeter", "clock")
    error = own_ws.json("apply", "--profile", "full", code=3)["error"]
    tried = {(t["upstream"], t["place"]) for t in error["tried"] if "origins" in t["place"]}
    assert tried == {(n, str(own_ws.made.origins / f"no-{n}")) for n in ("greeter", "clock")}
    lines = own_ws.refused(3, "apply", "--profile", "full").splitlines()
    begins = [i for i, line in enumerate(lines) if "no place has" in line]
    assert len(begins) == 2  # each is followed by its own places
    for at, name in zip(begins, ("greeter", "clock"), strict=True):
        assert name in lines[at] and "tried cache" in lines[at + 1] and f"no-{name}" in lines[at + 2]
    assert "try: --mirror NAME=URL adds places;" in lines[-1]
    offline = own_ws.refused(3, "apply", "--profile", "full", "--offline")
    assert "try: the run is offline: run `patchctl fetch`" in offline and "--mirror" not in offline


def test_local_edits_of_every_tree_are_named(own_ws: Workspace) -> None:
    own_ws.apply()
    edited = [own_ws.folder / "greeter/greeter/hello.py", own_ws.folder / "clock/clock/tick.py"]
    for file in edited:
        file.write_text("mine = True\n")
    for verb in (("apply", "--profile", "plain"), ("revert",), ("apply", "--profile", "plain", "--dry-run")):
        message = own_ws.refused(5, *verb)
        assert all(str(file) in message for file in edited), message
        assert message.count("--stash") == 1
    error = own_ws.json("revert", code=5)["error"]
    assert error["kind"] == "local-edits" and set(error["files"]) == {str(f) for f in edited}
    own_ws.good("revert", "--stash")


def test_local_edits_of_every_tree_of_an_interrupted_run_are_named(own_ws: Workspace) -> None:
    own_ws.apply()
    trees = own_ws.state["trees"]
    same = ("kind", "folder")
    changes = [
        {
            "name": n,
            **{k: t[k] for k in same},
            "base": t["base_commit"],
            "source": t["tip_commit"],
            "target": t["tip_commit"],
        }
        for n, t in trees.items()
    ]
    journal = {"version": 1, "verb": "apply", "changes": changes, "after": own_ws.state}
    (own_ws.folder / ".patchctl/journal.json").write_text(json.dumps(journal))
    edited = [own_ws.folder / "greeter/greeter/hello.py", own_ws.folder / "clock/clock/tick.py"]
    for file in edited:
        file.write_text("mine = True\n")
    message = own_ws.refused(5, "apply", "--profile", "full")
    assert all(str(file) in message for file in edited), message


@pytest.mark.parametrize("there", [False, True], ids=["nothing", "an-empty-folder"])
def test_a_refused_first_apply_leaves_nothing(ws: Workspace, there: bool) -> None:
    """Neither our folder nor the workspace's, nor those above it."""
    deep = Workspace(ws.made, ws.folder / "a" / "b")
    if there:
        deep.folder.mkdir(parents=True)
    wrong = deep.run("apply", "--profile", "full", "--in-place", f"greeter={ws.made.origins / 'clock'}")
    assert wrong.returncode == 5, wrong.stderr
    assert deep.folder.is_dir() == there == ws.folder.is_dir()
    assert not there or list(deep.folder.iterdir()) == []


def test_what_another_stack_of_the_upstream_has_is_not_said_to_be_nowhere(own: Made, tmp_path: Path) -> None:
    """The profile's stack lacks the feature: the message names that stack, and verify says the same."""
    text = (own.root / "manifests/stacks/greeter/v1.yaml").read_text()
    short = text.replace("name: v1", "name: v1-short").replace("  - 0001-bugfix-typo.patch\n", "")
    write_files(
        own.root,
        {
            "manifests/stacks/greeter/v1-short.yaml": short,
            "manifests/profiles/short.yaml": "schema: 1\nname: short\nsummary: Less.\nstacks:\n  greeter: v1-short\n  clock: v2\n",
            "manifests/profiles/alone.yaml": "schema: 1\nname: alone\nsummary: Less.\nstacks:\n  clock: v2\n",
        },
    )
    for name in ("polite/0002-feature-polite.patch", "loud/0003-feature-loud.patch", "polite/files/greeter/manners.py"):
        target = own.root / "patches/greeter/v1-short" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(own.root / "patches/greeter/v1" / name, target)
    ws = Workspace(own, tmp_path / "ws")
    message = ws.refused(2, "apply", "--profile", "short")
    assert "requires typo@greeter, which this profile's greeter v1-short does not have" in message
    message = ws.refused(2, "apply", "--profile", "alone")
    assert "requires typo@greeter, but this profile has no stack of greeter" in message
    found = json.loads(own.patchctl("verify", "--static", "--json").stdout)["findings"]
    (own_stack,) = [f for f in found if f["rule"] == "requires-known"]
    assert own_stack["message"] == "requires typo@greeter, which greeter v1-short does not have"


def test_what_a_machine_without_git_hosts_gets_is_locked(tmp_path: Path) -> None:
    """An upstream in git alone is out of reach there, and with it what requires its features; the others have an sdist."""
    clock = replace(CLOCK, sdist=tuple(CLOCK.files))
    made = make_distribution(tmp_path, (GREETER, clock), lock=True)
    shutil.rmtree(made.cache)
    shutil.rmtree(made.origins)
    result = Workspace(made, tmp_path / "ws").json("apply", "--profile", "full", "--skip-unavailable")
    tree = result["trees"]["clock"]
    assert [o["feature"] for o in tree["left_out"]] == ["step"] and tree["form"] == "sdist"
    assert tree["locked"] is True


def test_a_profile_without_an_upstream_takes_it_back(own_ws: Workspace) -> None:
    profile = own_ws.made.root / "manifests/profiles/single.yaml"
    profile.write_text("schema: 1\nname: single\nsummary: Only greeter.\nstacks:\n  greeter: v1\n")
    own_ws.apply("full")
    own_ws.apply("single")
    assert own_ws.state["trees"]["clock"]["patches"] == []
    assert git(own_ws.folder / "clock", "log", "--format=%s") == "the pin\n"
    own_ws.assert_healthy()
    own_ws.apply("full")
    assert "step=1" in (own_ws.folder / "clock/clock/tick.py").read_text()


def test_a_changed_stack_goes_from_the_old_one_to_the_new(own_ws: Workspace) -> None:
    own_ws.apply()
    made = own_ws.made
    made.edit(made.patch("polite"), "Need: people ask for polite", "Need: some people ask for polite")
    old = own_ws.state["trees"]["greeter"]["tip_commit"]
    assert "the lock is for other patches" in own_ws.refused(2, "apply", "--profile", "full")
    made.good("lock")
    assert own_ws.json("status", code=1)["trees"][1]["lock"] == "differs from the lock: apply again"
    own_ws.apply()
    assert own_ws.state["trees"]["greeter"]["tip_commit"] != old
    message = git(own_ws.folder / "greeter", "log", "-1", "--format=%B", "HEAD~1")
    assert "Need: some people ask for polite" in message
    own_ws.assert_healthy()


def test_commit_ids_repeat_in_another_place_and_under_another_configuration(small: Made, tmp_path: Path) -> None:
    hostile = tmp_path / "gitconfig"
    hostile.write_text(
        "[user]\n\tname = Somebody\n\temail = s@example.com\n[core]\n\tautocrlf = true\n\tabbrev = 4\n"
        "[commit]\n\tgpgsign = true\n[diff]\n\talgorithm = patience\n\tnoprefix = true\n[color]\n\tui = always\n"
        f"[init]\n\ttemplateDir = {tmp_path}\n[core]\n\thooksPath = {tmp_path}\n\tfsmonitor = /bin/false\n"
    )
    one, two = Workspace(small, tmp_path / "one"), Workspace(small, tmp_path / "two words" / "zwölf")
    one.apply()
    env = {
        "GIT_CONFIG_GLOBAL": str(hostile),
        "GIT_DIR": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere/index",
        "TZ": "Asia/Tokyo",
        "GIT_AUTHOR_DATE": "1 +0000",
        "LC_ALL": "C.UTF-8",
    }
    assert two.run("apply", "--profile", "full", env=env).returncode == 0
    assert two.state["trees"] == one.state["trees"]
    assert two.trees() == one.trees()
    two.assert_healthy()


def test_json_has_the_documented_shape(ws: Workspace) -> None:
    result = ws.json("apply", "--profile", "full")
    assert result["schema"] == "patchctl.apply/1"
    assert set(result) == {
        "schema",
        "profile",
        "release",
        "workspace",
        "dry_run",
        "without",
        "changed",
        "finished",
        "undone",
        "stashed",
        "trees",
        "skipped",
        "kept",
    }
    json.dumps(result)


def test_a_folder_that_is_not_ours_is_left_alone(ws: Workspace) -> None:
    write_files(ws.folder, {"greeter/notes.txt": "mine\n"})
    message = ws.run("apply", "--profile", "full")
    assert message.returncode == 5 and "--in-place" in message.stderr
    assert (ws.folder / "greeter/notes.txt").read_text() == "mine\n"
    assert not (ws.folder / "clock").exists()


def test_a_new_tree_comes_into_an_empty_folder_and_leaves_it_as_it_is(ws: Workspace) -> None:
    """A volume of a container, say, or a folder of another owner."""
    folder = ws.folder / "greeter"
    folder.mkdir(parents=True)
    folder.chmod(0o750)
    before = folder.stat()
    ws.apply()
    ws.assert_healthy()
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)


# argv: patchctl's arguments. Somebody makes the folder right before a new tree comes there.
MADE_MEANWHILE = """
import os, sys
from patchctl.__main__ import run
def hook(event, args):
    if event == "os.rename" and os.fsdecode(args[0]).endswith("new/greeter"):
        os.makedirs(args[1])
        open(os.path.join(os.fsdecode(args[1]), "mine.txt"), "w").close()
sys.addaudithook(hook)
sys.exit(run(sys.argv[1:]))
"""


def test_a_folder_that_somebody_makes_meanwhile_is_kept(ws: Workspace) -> None:
    line = [
        f"--root={ws.made.root}",
        f"--cache={ws.made.cache}",
        "apply",
        "--workspace",
        str(ws.folder),
        "--profile",
        "full",
    ]
    done = subprocess.run(
        [sys.executable, "-c", MADE_MEANWHILE, *line], env=environment(ws.made), capture_output=True, text=True
    )
    assert (ws.folder / "greeter/mine.txt").exists()
    (ws.folder / "greeter/mine.txt").unlink()
    ws.apply()
    ws.assert_healthy()
    assert done.returncode == 0, done.stderr


def test_a_tree_that_was_deleted_is_made_again(ws: Workspace) -> None:
    ws.apply()
    before = ws.trees()
    shutil.rmtree(ws.folder / "greeter")
    assert ws.run("status").returncode == 1
    assert "greeter" in ws.refused(5, "revert")
    ws.apply()
    assert ws.trees() == before
    ws.assert_healthy()


def test_inside_another_repository_and_a_virtual_environment(small: Made, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    write_files(outer, {"venv/pyvenv.cfg": "home = /usr/bin\n", ".gitignore": "*.log\nworkspace/\n", "a.txt": "a\n"})
    git(outer.parent, "init", "--quiet", str(outer))
    git(outer, "add", "a.txt", ".gitignore")
    git(outer, "commit", "--quiet", "-m", "outer")
    head, index = git(outer, "rev-parse", "HEAD"), (outer / ".git/index").read_bytes()
    ws = Workspace(small, outer / "venv" / "work space")
    ws.apply()
    ws.assert_healthy()
    ws.good("revert")
    assert (git(outer, "rev-parse", "HEAD"), (outer / ".git/index").read_bytes()) == (head, index)


# A patch with its subject, which is its author's.
A_PATCH = re.compile(r"(?m)^    [0-9a-f]{12}  .*\n")


def in_chinese(ws: Workspace, *args: str) -> str:
    done = ws.run("apply", "--profile", "full", *args, env=IN_CHINESE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert english_in(A_PATCH.sub("", done.stdout)) == [], done.stdout
    return done.stdout


def test_in_chinese(ws: Workspace) -> None:
    assert f"{ws.folder} 的配置集将为 full" in in_chinese(ws, "--dry-run")
    shown = in_chinese(ws).splitlines()
    assert "已打补丁  3 个补丁  栈顶 " in shown[0] and shown[0].endswith("与锁文件一致"), shown
    assert shown[-1] == f"{ws.folder} 的配置集为 full"
    (ws.folder / "greeter/run.sh").write_text("mine\n")
    shown = in_chinese(ws, "--stash", "--without", "polite").splitlines()
    assert (
        "    未包含 polite：用 --without 去掉" in shown
        and "greeter      本地修改已保存到分支 patchctl-stash-1" in shown
    )
    assert "已打补丁  2 个补丁" in shown[0] and "无变化  1 个补丁" in "\n".join(shown), shown


def test_what_could_not_be_had_in_chinese(own_ws: Workspace) -> None:
    without_sources(own_ws, "greeter")
    shown = in_chinese(own_ws, "--skip-unavailable")
    assert "greeter      已跳过：无法获取源码" in shown and "未包含 step：依赖 typo@greeter，而后者未包含" in shown, (
        shown
    )
    assert f"已尝试 缓存 {own_ws.made.cache}：没有" in shown and "/origins/no-greeter：目录不存在" in shown, shown
    assert "已尝试 包索引：没有锁定它的 sdist" in shown, shown


def test_a_kept_tree_in_chinese(own_ws: Workspace) -> None:
    own_ws.apply()
    without_sources(own_ws, "greeter")
    assert "保持上次打补丁的状态：目前无法获取源码" in in_chinese(own_ws, "--skip-unavailable")


def test_state_and_json_are_in_english_in_every_language(own_ws: Workspace) -> None:
    """With every reason that the state keeps: a feature left out, one that needs it, a place without the source."""
    without_sources(own_ws, "greeter")
    args = ("--profile", "full", "--skip-unavailable")
    found = set()
    for env in ({}, IN_CHINESE):
        done = own_ws.run("apply", "--json", *args, env=env)
        assert done.returncode == 0 and done.stdout.isascii(), done.stdout
        found.add((done.stdout, (own_ws.folder / ".patchctl/state.json").read_bytes()))
        shutil.rmtree(own_ws.folder)
    assert len(found) == 1 and b"requires typo@greeter, which is left out" in found.pop()[1]
    for env in ({}, IN_CHINESE):
        assert own_ws.run("apply", *args, env=env).returncode == 0
        found.add((own_ws.folder / ".patchctl/state.json").read_bytes())
        shutil.rmtree(own_ws.folder)
    assert len(found) == 1


def refused_in_chinese(ws: Workspace, code: int, *args: str, profile: str = "full") -> str:
    """What a run says on standard error; its JSON is the same in both languages."""
    command = ("apply", "--profile", profile, *args)
    done = ws.run(*command, env=IN_CHINESE)
    assert done.returncode == code, done.stdout + done.stderr
    assert english_in(done.stderr) == [], done.stderr
    english, chinese = (ws.run(*command, "--json", env=env).stdout for env in ({}, IN_CHINESE))
    assert english == chinese and english.isascii()
    return done.stderr


def test_wrong_use_in_chinese(ws: Workspace) -> None:
    assert "没有配置集 'ful'；是否想写 'full'？" in refused_in_chinese(ws, 2, profile="ful")
    assert "没有版本配套 '2020.1'" in refused_in_chinese(ws, 2, "--release", "2020.1")
    shown = refused_in_chinese(ws, 2, "--without", "polit")
    assert "没有特性 'polit'\n  建议：是否想写 polite？" in shown
    shown = refused_in_chinese(ws, 2, "--without", "typo")
    assert (
        "loud@greeter：依赖 typo@greeter，而后者未包含；" in shown
        and "请把依赖它的特性一并去掉：--without loud" in shown
    )
    assert "没有上游 'nobody'" in refused_in_chinese(ws, 2, "--mirror", "nobody=/x")
    assert "--mirror 的格式为 NAME=VALUE，而不是 'x'" in refused_in_chinese(ws, 2, "--mirror", "x")
    assert "没有它的补丁栈" in refused_in_chinese(ws, 2, "--in-place", "nobody=/x")
    assert "没有选项 " in refused_in_chinese(ws, 2, "--stach")
    missing = ws.run("apply", env=IN_CHINESE).stderr
    assert "缺少选项 '--profile' / '-p'。" in missing and "用法见 `patchctl apply --help`" in missing, missing


def test_unavailable_sources_in_chinese(own_ws: Workspace) -> None:
    without_sources(own_ws, "greeter")
    shown = refused_in_chinese(own_ws, 3)
    assert "greeter：所有来源都没有提交 " in shown and f"  已尝试 缓存 {own_ws.made.cache}：没有" in shown, shown
    assert "可用 `--mirror greeter=URL` 指定其他来源，例如本地克隆；加 --skip-unavailable 可跳过它继续" in shown, shown
    assert "当前为离线模式：请先在有网络时执行 `patchctl fetch`" in refused_in_chinese(own_ws, 3, "--offline")
    without_sources(own_ws, "clock")
    shown = refused_in_chinese(own_ws, 3, "--skip-unavailable")
    assert "clock：所有来源都没有提交 " in shown and "--skip-unavailable 也无济于事" in shown, shown


def test_a_patch_that_does_not_apply_in_chinese(own_ws: Workspace) -> None:
    patch = own_ws.made.patch("typo")
    text = patch.read_text()
    patch.write_text(text.replace("@@ -4,7 +4,7 @@", "@@ -5,7 +5,7 @@"))
    shown = refused_in_chinese(own_ws, 4)
    assert ".patch:" in shown and "hunk 针对 greeter/hello.py 第 5 行，而这些内容位于第 4 行" in shown, shown
    assert "patchctl 从不移动 hunk" in shown
    patch.write_text(re.sub(r"(?m)^index \w+", "index 0123456", text))
    assert "而补丁针对 0123456\n  建议：补丁针对该文件的另一个版本" in refused_in_chinese(own_ws, 4)


def test_local_edits_in_chinese(ws: Workspace) -> None:
    ws.apply()
    for name in ("greeter/run.sh", "clock/README.md"):
        (ws.folder / name).write_text("mine\n")
    shown = refused_in_chinese(ws, 5, profile="plain")
    assert "在打补丁后被修改过" in shown and "请提交到别处，或加 `--stash`" in shown, shown


def test_a_busy_workspace_in_chinese(ws: Workspace) -> None:
    ws.apply()
    with open(ws.folder / ".patchctl/lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = refused_in_chinese(ws, 6)
    assert "工作区正被另一个运行占用（" in shown and "上的进程 " in shown, shown
