"""Exit codes, the shape of errors, help, signals and pipes: what CI jobs and scripts rely on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distribution import REPO, Made, git
from on_disk import Workspace, command, copy_of, environment

from patchctl import cli, errors
from patchctl.cli import verbs
from patchctl.errors import PatchctlError
from patchctl.terminal.progress import Progress


@pytest.mark.parametrize("verb", ["", *verbs()])
def test_help(verb: str, tmp_path: Path) -> None:
    """Needs no distribution, no home and no network."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-m", "patchctl", *([verb] if verb else []), "--help"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: patchctl") and done.stderr == ""
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "silent"),
    [(["cluster", "--help"], True), (["apply", "-h"], True), (["bisect", "-p", "x", "--", "program", "--help"], False)],
)
def test_help_shows_no_progress_on_a_slow_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], silent: bool
) -> None:
    asked: list[bool] = []

    @contextmanager
    def progress(*, silent: bool) -> Iterator[Progress]:
        asked.append(silent)
        yield Progress()

    monkeypatch.setattr(cli, "progress_of_run", progress)
    cli.run(args)
    assert asked == [silent]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_that_lacks_a_character_has_an_escape(small: Made, tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "补丁"
    small.good("apply", "--profile", "full", "--workspace", str(folder))
    line = [sys.executable, "-m", "patchctl", f"--root={small.root}", "status", "--workspace", str(folder)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "HOME": str(tmp_path), "PYTHONIOENCODING": encoding}
    done = subprocess.run(line, env=env, capture_output=True, check=False)
    assert done.returncode == 0 and rb"\u8865\u4e01" in done.stdout, done.stderr


def test_an_option_of_patchctl_after_the_verb_says_where_it_goes(small: Made) -> None:
    for option, verb in (("--root", "list"), ("--cache", "bundle create"), ("--lang", "doctor")):
        done = small.patchctl(*verb.split(), option, "x")
        assert done.returncode == 2 and "Did you mean" not in done.stderr
        assert f"try: it is an option of patchctl itself: write it before `{verb}`" in done.stderr


def test_json_of_another_program_is_not_asked_of_this_one(small: Made) -> None:
    line = ["bisect", "--profile", "none"]
    for args, told in ((["--", "program", "--json"], False), (["--json", "--", "program"], True)):
        done = small.patchctl(*line, *args)
        assert (done.returncode, done.stdout.startswith("{")) == (2, told)


def test_the_help_lists_each_verb_in_one_line_below_a_heading(small: Made) -> None:
    shown = small.good("--help", env={"COLUMNS": "80"}).partition("Apply and inspect:")[2].splitlines()
    named = [line.split(maxsplit=1) for line in shown if line.startswith("  ")]
    assert dict(named) == verbs()
    headings = ["Deploy:", "Maintain patches:", "Tool:", "Train:"]
    assert [line for line in shown if line and not line.startswith(" ")] == headings


def test_the_help_names_every_code_of_an_error(small: Made) -> None:
    shown = " ".join(small.good("--help").partition("Exit codes:")[2].partition("Options:")[0].split())
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, PatchctlError)]
    assert {kind.code for kind in kinds} == {int(code) for code in re.findall(r"(\d+) \w", shown)} - {0, 1, 130}


USAGE: dict[str, list[str]] = {
    "no-such-verb": ["aply"],
    "no-such-option": ["apply", "--profle", "full"],
    "no-profile": ["apply"],
    "no-such-profile": ["apply", "--profile", "ful"],
    "option-without-value": ["apply", "--profile"],
    "unknown-choice": ["fetch", "--profile", "full", "--source", "tarball"],
    "argument-too-many": ["revert", "extra"],
    "workspace-is-a-file": ["status", "--workspace", __file__],
    "no-such-upstream": ["edit", "nobody"],
    "no-such-stack": ["edit", "greeter/v9"],
    "into-without-equals": ["apply", "--profile", "full", "--in-place", "greeter"],
    "nothing-applied": ["revert"],
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_use_is_2(small: Made, case: str) -> None:
    done = small.patchctl(*USAGE[case])
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("patchctl: ") and "Traceback" not in done.stderr and done.stdout == ""


RENAMED = {
    "apply --into greeter=.": "--in-place",
    "apply --into-python python3": "--site-packages",
    "prove loud --again": "--rerun",
    "prove loud --part tests": "--only",
    "drift --since FILE": "--baseline",
    "rebase greeter --to v9 --via all": "--through",
    "rebase --postpone --reason later": "--defer",
    "export greeter --pr loud": "--for-upstream",
    "docs --check": "`patchctl lock --pages`",
    "env -p full -r quiet": "`patchctl recipe env`",
    "labels": "`patchctl status --labels`",
}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_refused_with_the_new_one(small: Made, old: str) -> None:
    done = small.patchctl(*old.split())
    assert done.returncode == 2 and f"called {RENAMED[old]} now" in done.stderr


def test_the_new_name_is_not_told_where_the_verb_has_no_such_option(small: Made) -> None:
    done = small.patchctl("revert", "--into", "greeter=.")
    assert done.returncode == 2 and "--in-place" not in done.stderr and "`patchctl revert --help`" in done.stderr


def test_no_distribution_is_2(tmp_path: Path) -> None:
    nowhere = Made(tmp_path / "none", tmp_path, tmp_path / "cache")
    done = nowhere.patchctl("apply", "--profile", "full")
    assert done.returncode == 2 and "none, which is no folder" in done.stderr
    nowhere.root.mkdir()
    done = nowhere.patchctl("apply", "--profile", "full")
    assert done.returncode == 2 and "none, which has no manifests/upstreams.yaml" in done.stderr


def test_an_error_as_json(ws: Workspace) -> None:
    done = ws.run("revert", "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["schema"]) == (2, "patchctl.error/1")
    assert set(data["error"]) >= {"kind", "exit_code", "what", "file", "line", "hint"}
    assert (data["error"]["kind"], data["error"]["exit_code"]) == ("usage", 2)
    assert json.loads(ws.run("apply", "--json").stdout)["error"]["kind"] == "usage"


def test_an_error_of_a_patch_as_json_names_file_and_line(own_ws: Workspace) -> None:
    made = own_ws.made
    name = "patches/clock/v2/step/0001-feature-step.patch"
    made.edit(name, " def", " fed") if " def" in (made.root / name).read_text() else made.edit(name, "-def", "-fed")
    error = own_ws.json("apply", "--profile", "full", code=4)["error"]
    assert (error["kind"], error["file"]) == ("does-not-apply", name) and error["line"] > 10


def slow_git(folder: Path, what: str = "fetch") -> dict[str, str]:
    """An environment in which one command of git takes for ever: fetching does, when git's upload-pack does not answer."""
    folder.mkdir()
    real = shutil.which("git")
    script = folder / "git"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *"{what}"*) touch "{folder}/begun"; exec sleep 60;; esac\nexec "{real}" "$@"\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def wait_for(file: Path, step: float = 0.02) -> None:
    """Asks every `step` seconds, for a minute."""
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(step)


def test_interrupted_during_a_fetch_is_130(small: Made, tmp_path: Path) -> None:
    made = copy_of(small, tmp_path)
    shutil.rmtree(made.cache)
    env = {**environment(made), **slow_git(tmp_path / "bin")}
    line = command(made, "fetch", "--profile", "full")
    with subprocess.Popen(line, env=env, start_new_session=True, stdout=-1, stderr=-1, text=True) as run:
        wait_for(tmp_path / "bin/begun")
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, error = run.communicate(timeout=60)
    assert run.returncode == 130, error
    assert "interrupted" in error and "Traceback" not in error
    assert not list(made.cache.rglob("*.git")) and not list((made.cache / "tmp").iterdir())
    made.good("fetch", "--profile", "full")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_during_a_fetch_nothing_of_it_stays(small: Made, tmp_path: Path, number: signal.Signals) -> None:
    """As a CI job is cancelled: the signal comes to patchctl alone."""
    made = copy_of(small, tmp_path)
    shutil.rmtree(made.cache)
    (tmp_path / "scratch").mkdir()
    env = {**environment(made), **slow_git(tmp_path / "bin"), "TMPDIR": str(tmp_path / "scratch")}
    line = command(made, "fetch", "--profile", "full")
    with subprocess.Popen(line, env=env, start_new_session=True, stdout=-1, stderr=-1, text=True) as run:
        wait_for(tmp_path / "bin/begun")
        run.send_signal(number)
        _, error = run.communicate(timeout=60)
    assert run.returncode == 128 + number and "Traceback" not in error, error
    assert not list((made.cache / "tmp").iterdir()) and not list((tmp_path / "scratch").iterdir())
    made.good("fetch", "--profile", "full")


def test_ended_during_a_bisect_the_command_ends_with_all_that_it_started(small: Made, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    env = {**environment(small), "TMPDIR": str(tmp_path / "scratch")}
    started = f"sleep 300 & echo $! > {tmp_path}/child; touch {tmp_path}/begun; wait"
    line = command(small, "bisect", "--profile", "full", "--", "sh", "-c", started)
    with subprocess.Popen(line, env=env, stdout=-1, stderr=-1, text=True) as run:
        wait_for(tmp_path / "begun")
        run.terminate()
        _, error = run.communicate(timeout=60)
    assert run.returncode == 143 and "Traceback" not in error, error
    assert not list((tmp_path / "scratch").iterdir())
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_interrupted_during_an_apply_is_130_and_can_be_finished(big: Made, tmp_path: Path) -> None:
    whole = Workspace(big, tmp_path / "whole")
    whole.apply()
    ws = Workspace(big, tmp_path / "ws")
    line = command(big, "apply", "--profile", "full", "--workspace", str(ws.folder))
    with subprocess.Popen(line, env=environment(big), start_new_session=True, stdout=-1, stderr=-1, text=True) as run:
        wait_for(ws.folder / ".patchctl/journal.json", step=0.001)
        os.killpg(run.pid, signal.SIGINT)
        _, error = run.communicate(timeout=60)
    assert run.returncode in (130, 0), error  # 0: it was over before the signal came
    assert "Traceback" not in error
    ws.apply()
    assert ws.trees() == whole.trees()
    ws.assert_healthy()


def test_a_run_that_was_told_to_ignore_interrupts_goes_on(big: Made, tmp_path: Path) -> None:
    """As in a script's background: a signal that is ignored at the start stays ignored."""
    ws = Workspace(big, tmp_path / "ws")
    line = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    line += command(big, "apply", "--profile", "full", "--workspace", str(ws.folder))
    with subprocess.Popen(line, env=environment(big), start_new_session=True, stdout=-1, stderr=-1, text=True) as run:
        wait_for(ws.folder / ".patchctl/journal.json", step=0.001)
        os.killpg(run.pid, signal.SIGINT)
        _, error = run.communicate(timeout=60)
    assert run.returncode == 0, error
    ws.assert_healthy()


def test_interrupted_before_the_first_change_leaves_nothing(small: Made, tmp_path: Path) -> None:
    """While the first repository is being prepared: no journal is there yet, and nothing to be finished."""
    env = {**environment(small), **slow_git(tmp_path / "bin", "init -q")}
    folder = tmp_path / "a" / "ws"
    line = command(small, "apply", "--profile", "full", "--workspace", str(folder))
    with subprocess.Popen(line, env=env, start_new_session=True, stdout=-1, stderr=-1, text=True) as run:
        wait_for(tmp_path / "bin/begun")
        assert (folder / ".patchctl/lock").exists()
        os.killpg(run.pid, signal.SIGINT)
        _, error = run.communicate(timeout=60)
    assert run.returncode == 130 and "Traceback" not in error, error
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("verb", [["list"], ["list", "--json"], ["--help"], ["list", "profils", "--json"]])
def test_an_output_that_takes_nothing_is_one_message(small: Made, verb: list[str]) -> None:
    buffered = {name: value for name, value in environment(small).items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(small, *verb), env=buffered, stdout=full, stderr=-1, text=True, check=False)
    assert done.returncode == (2 if "profils" in verb else 7), done.stderr
    assert done.stderr.count("patchctl: ") == 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(small: Made, tmp_path: Path, closed: str) -> None:
    """What would be said goes into no file that is opened meanwhile."""
    workspace = tmp_path / "ws"
    line = [
        "sh",
        "-c",
        f'exec "$@" {closed}',
        "sh",
        *command(small, "apply", "--profile", "full", "-w", str(workspace)),
    ]
    done = subprocess.run(line, env=environment(small), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    Workspace(small, workspace).assert_healthy()


def test_a_name_that_is_too_long_is_wrong_use(small: Made) -> None:
    done = small.patchctl(
        "pin", "greeter", git(small.origins / "greeter", "rev-parse", "HEAD").strip(), "--name", "x" * 300
    )
    assert done.returncode == 2 and "file name too long" in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("verb", [["status"], ["status", "--json"], ["apply", "--profile", "full"], ["--help"]])
def test_a_closed_pipe_is_141(ws: Workspace, verb: list[str]) -> None:
    ws.apply()
    reader, writer = os.pipe()
    os.close(reader)
    args = [verb[0], "--workspace", str(ws.folder), *verb[1:]] if verb != ["--help"] else verb
    done = subprocess.run(
        command(ws.made, *args), env=environment(ws.made), stdout=writer, stderr=-1, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_colours_only_where_asked(ws: Workspace) -> None:
    ws.apply()
    assert "\x1b" not in ws.good("status")
    colored = ws.made.patchctl("--color", "always", "status", "--workspace", str(ws.folder))
    assert "\x1b[32m" in colored.stdout


def test_a_fault_of_ours_is_70(ws: Workspace, tmp_path: Path) -> None:
    """A git that prints nonsense is no error that anyone foresaw; the traceback is for the report."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\nexit 42\n")
    (folder / "git").chmod(0o755)
    done = ws.run("apply", "--profile", "full", "--json", env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    assert done.returncode in (3, 70), done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode
    assert not (ws.folder / "greeter").exists()
