"""`patchctl status`: what it says, that it writes nothing, and that it works where one may only read."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from chinese import IN_CHINESE, english_in
from distribution import Made
from on_disk import Workspace, command, copy_of, environment, folder_for_all, snapshot, stamps

NOBODY = 65534


def test_what_it_says(ws: Workspace) -> None:
    ws.apply()
    status = ws.json("status")
    assert (status["schema"], status["profile"], status["clean"]) == ("patchctl.status/1", "full", True)
    by_name = {t["upstream"]: t for t in status["trees"]}
    greeter = by_name["greeter"]
    assert (greeter["form"], greeter["lock"], greeter["edits"], greeter["problem"]) == ("git", "equal", [], None)
    assert greeter["pin"] == greeter["base_commit"]
    assert [p["feature"] for p in greeter["patches"]] == ["typo", "polite", "loud"]
    text = ws.good("status")
    assert "as locked" in text and "profile    full" in text


def test_an_interrupted_first_apply_was_no_revert(ws: Workspace) -> None:
    """What is left of a run that was ended after its journal was written."""
    ws.apply()
    state = ws.state
    (ws.folder / ".patchctl/state.json").unlink()
    journal = {"version": 1, "verb": "apply", "changes": [], "after": state}
    (ws.folder / ".patchctl/journal.json").write_text(json.dumps(journal))
    done = ws.run("status")
    assert done.returncode == 1 and "reverted" not in done.stdout and "profile    none yet" in done.stdout
    (ws.folder / ".patchctl/journal.json").unlink()
    (ws.folder / ".patchctl/state.json").write_text(json.dumps(state))
    ws.good("revert")
    said = ws.good("status")
    assert "none (reverted)" in said and said.count("unpatched base") == 2


def test_edits_are_findings(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "greeter/README.md").write_text("edited\n")
    (ws.folder / "clock/clock/tick.py").unlink()
    status = ws.json("status", code=1)
    assert {t["upstream"]: t["edits"] for t in status["trees"]} == {
        "greeter": ["README.md"],
        "clock": ["clock/tick.py"],
    }
    assert "edited README.md" in ws.run("status").stdout


def test_what_is_wrong_comes_first_and_the_rest_with_verbose(ws: Workspace) -> None:
    ws.apply()
    plain, verbose = ws.good("status"), ws.good("status", "-v")
    assert "polite" not in plain and "polite" in verbose and "next: " not in plain
    assert [line for line in verbose.splitlines() if line in plain.splitlines()] == plain.splitlines()
    for number in range(7):
        (ws.folder / f"greeter/new{number}.py").write_text("x = 1\n")
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(ws.folder / "greeter"), "add", "--all"], env=env, check=True)
    done, whole = ws.run("status").stdout, ws.run("status", "-v").stdout
    assert done.index("greeter  ") < done.index("clock  ") and "next: patchctl drift --workspace " in done
    assert done.count("    edited ") == 5 and "    and 2 more edited (-v lists them)" in done
    assert whole.count("    edited ") == 7


def test_a_touched_file_with_the_same_bytes_is_no_edit(ws: Workspace) -> None:
    ws.apply()
    for file in (ws.folder / "greeter").rglob("*.py"):
        os.utime(file, (1, 1))
    assert ws.json("status")["clean"] is True


def test_a_moved_head_is_a_finding(ws: Workspace) -> None:
    ws.apply()
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(ws.folder / "clock"), "checkout", "-q", "HEAD~1"], env=env, check=True)
    done = ws.run("status")
    assert done.returncode == 1 and "HEAD is" in done.stdout


def test_a_broken_tree_is_a_finding_and_not_a_fault(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "greeter/.git/HEAD").unlink()
    done = ws.run("status")
    assert done.returncode == 1 and "cannot be read" in done.stdout and "Traceback" not in done.stderr


def test_a_name_that_is_no_text_is_shown(ws: Workspace) -> None:
    ws.apply()
    name = os.fsencode(ws.folder) + b"/greeter/\xff.py"
    with open(name, "wb") as out:
        out.write(b"x")
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(ws.folder / "greeter"), "add", "--all"], env=env, check=True)
    done = ws.run("status")
    assert done.returncode == 1 and "edited" in done.stdout
    assert ws.json("status", code=1)["trees"][1]["edits"] == ["\udcff.py"]
    assert ws.run("revert").returncode == 5


def test_it_writes_nothing(ws: Workspace) -> None:
    ws.apply()
    before = (stamps(ws.folder), snapshot(ws.folder))
    ws.good("status")
    assert (stamps(ws.folder), snapshot(ws.folder)) == before


def test_without_a_distribution_here(own_ws: Workspace, tmp_path: Path) -> None:
    """The one that the workspace was made from counts; when that is gone, nothing is said of the lock."""
    own_ws.apply()
    env = {key: value for key, value in environment(own_ws.made).items() if key != "PATCHCTL_ROOT"}
    line = [sys.executable, "-m", "patchctl", "status", "--workspace", str(own_ws.folder)]
    for root, said in ((own_ws.made.root, "as locked"), (None, "not in the lock")):
        if root is None:
            shutil.rmtree(own_ws.made.root)
        done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(said) == 2


def test_no_workspace(ws: Workspace) -> None:
    assert "nothing was applied" in ws.refused(2, "status")
    assert not ws.folder.exists()


def test_what_an_interpreter_imports(ws: Workspace, tmp_path: Path) -> None:
    ws.apply()
    first = ws.run("status", "--python", sys.executable)
    assert first.returncode == 1 and "does not import greeter" in first.stdout
    path = os.pathsep.join(str(ws.folder / n) for n in ("greeter", "clock"))
    wrapper = tmp_path / "python with blanks"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    second = ws.run("status", "--python", str(wrapper))
    assert second.returncode == 0, second.stdout
    assert second.stdout.count("imports ") == 2
    assert "cannot be asked" in ws.run("status", "--python", "/no/such/python").stderr


def test_a_package_that_hides_a_module_is_not_the_tree(ws: Workspace, tmp_path: Path) -> None:
    ws.apply()
    path = os.pathsep.join(str(ws.folder / n) for n in ("greeter", "clock"))
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    hides = ws.folder / "greeter/greeter/hello"
    hides.mkdir()
    (hides / "__init__.py").write_text("EVIL = 1\n")
    done = ws.run("status", "--python", str(wrapper))
    assert done.returncode == 1, done.stdout
    assert "does not import greeter" in done.stdout and "hello/__init__.py" in done.stdout


def test_a_tree_that_the_profile_does_not_have_is_not_asked_for(own_ws: Workspace, tmp_path: Path) -> None:
    """What another profile left here is at its base: nobody installs it, and an image does not hold it."""
    profile = own_ws.made.root / "manifests/profiles/alone.yaml"
    text = (own_ws.made.root / "manifests/profiles/full.yaml").read_text()
    profile.write_text("".join(line for line in text.replace("full", "alone").splitlines(True) if "clock" not in line))
    own_ws.apply("full")
    own_ws.apply("alone")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{own_ws.folder}/greeter" exec "{sys.executable}" "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    assert own_ws.json("status", "--python", str(wrapper))["clean"] is True
    found = own_ws.json("status", "--labels")["labels"]
    assert [name for name in found if ".tree." in name] == ["patchctl.tree.greeter"]


# The other user may be unable to read the interpreter's own folders: the first run, as root, imports everything.
AS_NOBODY = f"""
import os, sys
from patchctl.__main__ import run
options, verb, workspace = sys.argv[1:3], sys.argv[3], sys.argv[4:]
for warm_up in ("status", "verify"):
    run([*options, warm_up, *workspace])
import grp, pwd, traceback  # nobody may not read the interpreter's own modules
import patchctl.cli.workspace_verbs, patchctl.workspace.apply, patchctl.terminal.text, patchctl.git.run, patchctl.os_errors
patchctl.git.run.scratch_folder.cache_clear()  # that folder is root's
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(run([*options, verb, *workspace]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be taken on by root only")
@pytest.mark.parametrize("verb", ["status", "verify"])
def test_as_another_user_who_may_only_read(small: Made, verb: str) -> None:
    with folder_for_all() as top:
        made = copy_of(small, top)
        ws = Workspace(made, top / "ws")
        ws.apply()
        before = snapshot(top)
        line = [sys.executable, "-c", AS_NOBODY, *command(made, verb, "--workspace", str(ws.folder))[3:]]
        env = {**environment(small), "HOME": "/nonexistent"}
        done = subprocess.run(line, env=env, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        assert snapshot(top) == before
        refused = subprocess.run(
            [*line[:3], *command(made, "revert", "--workspace", str(ws.folder))[3:]],
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode in (2, 6) and "Permission denied" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert snapshot(top) == before


def in_chinese(ws: Workspace, *args: str, code: int = 0) -> str:
    done = ws.run("status", *args, env=IN_CHINESE)
    assert done.returncode == code, done.stdout + done.stderr
    assert english_in(done.stdout) == [], done.stdout
    return done.stdout


def test_in_chinese(ws: Workspace) -> None:
    ws.apply()
    shown = in_chinese(ws).splitlines()
    assert shown[0] == f"工作区     {ws.folder}" and shown[1] == "配置集     full"
    assert any("3 个补丁" in line and "与锁文件一致" in line for line in shown), shown
    ws.good("revert")
    assert "无（已还原）" in in_chinese(ws)


def test_what_was_left_out_in_chinese(own_ws: Workspace) -> None:
    """The state keeps the reasons in English: one by the command line, one by the profile, one by what is lacking then."""
    profile = own_ws.made.root / "manifests/profiles/full.yaml"
    profile.write_text(profile.read_text() + "without: [polite]\n")
    own_ws.apply("full", "--without", "typo", "--without", "loud", "--without", "step")
    shown = in_chinese(own_ws)
    assert "未包含 typo：用 --without 去掉" in shown and "未包含 polite：配置集 full 不包含它" in shown, shown
    assert "left out typo: left out with --without" in own_ws.good("status")


def test_what_could_not_be_had_in_chinese(own_ws: Workspace) -> None:
    shutil.rmtree(own_ws.made.cache / "git" / "greeter")
    upstreams = own_ws.made.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/greeter", "/origins/gone"))
    own_ws.apply("full", "--skip-unavailable")
    shown = in_chinese(own_ws)
    assert "未包含 step：依赖 typo@greeter，而后者未包含" in shown and "已跳过：无法获取源码" in shown, shown
    assert "    tried " not in own_ws.good("status") and "    tried " in own_ws.good("status", "-v")


def test_what_is_wrong_in_chinese(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "greeter/README.md").write_text("edited\n")
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(ws.folder / "clock"), "checkout", "-q", "HEAD~1"], env=env, check=True)
    shown = in_chinese(ws, "--python", sys.executable, code=1)
    assert "已修改 README.md" in shown and "不是补丁栈的最后一个提交" in shown, shown
    assert "未导入 greeter：未找到" in shown, shown


def test_errors_and_json_in_chinese(ws: Workspace) -> None:
    none = ws.run("status", env=IN_CHINESE)
    assert none.returncode == 2 and "还没有打过补丁" in none.stderr and "建议：请用 --workspace DIR" in none.stderr
    ws.apply()
    for args in (("--json",), ("--labels",)):
        assert ws.good("status", *args) == ws.run("status", *args, env=IN_CHINESE).stdout


def test_a_verb_without_translations_stays_in_english(ws: Workspace) -> None:
    ws.apply()
    done = ws.run("repair", env=IN_CHINESE)
    assert done.returncode == 0 and done.stdout.isascii(), done.stdout
