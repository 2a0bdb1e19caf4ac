"""Shell completion by click's variable: the scripts, sourced by real shells where these are installed, and the protocol below them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distribution import REPO, Made, make_distribution
from recipes import with_recipes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return with_recipes(make_distribution(tmp_path_factory.mktemp("completion")))


@pytest.fixture(scope="module")
def environment(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH has a `patchctl`, as an installation would put it there."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "patchctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{REPO}" exec "{sys.executable}" -m patchctl "$@"\n')
    program.chmod(0o755)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PATCHCTL_ROOT": str(made.root),
        "PATCHCTL_CACHE": str(made.cache),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def protocol(environment: dict[str, str], shell: str, words: list[str], current: int) -> str:
    """What the program answers when a shell's script asks it. fish sends the word itself instead of its number."""
    position = words[current] if shell == "fish" else str(current)
    asked = {"_PATCHCTL_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": position}
    done = subprocess.run(
        ["patchctl"], env={**environment, **asked}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(made: Made, shell: str) -> None:
    text = made.good(env={"_PATCHCTL_COMPLETE": f"{shell}_source"})
    assert f"_PATCHCTL_COMPLETE={shell}_complete" in text


def test_the_verb_that_printed_it_is_refused_with_the_variable(made: Made) -> None:
    done = made.patchctl("completion", "bash")
    assert done.returncode == 2 and "_PATCHCTL_COMPLETE=bash_source patchctl" in done.stderr


def test_the_arguments_of_a_verb_that_is_gone_complete_to_nothing(environment: dict[str, str]) -> None:
    assert protocol(environment, "bash", ["patchctl", "docs", "--ch"], 2).strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_completed(environment: dict[str, str], shell: str) -> None:
    from patchctl.cli import verbs

    answer = protocol(environment, shell, ["patchctl", ""], 1)
    assert all(verb in answer.replace(",", "\n").split() for verb in verbs())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_profiles_and_options_are_completed(environment: dict[str, str], shell: str) -> None:
    answer = protocol(environment, shell, ["patchctl", "apply", "--profile", "f"], 3)
    assert "full" in answer.replace(",", "\n").split()
    answer = protocol(environment, shell, ["patchctl", "apply", "--dry"], 2)
    assert "--dry-run" in answer


def test_upstreams_features_and_choices_are_completed(environment: dict[str, str]) -> None:
    assert protocol(environment, "bash", ["patchctl", "list", "--upstream", "c"], 3) == "plain,clock\n"
    assert protocol(environment, "bash", ["patchctl", "show", "po"], 2) == "plain,polite\n"
    assert protocol(environment, "bash", ["patchctl", "import", "--stack", "c"], 3) == "plain,clock\n"
    assert protocol(environment, "bash", ["patchctl", "import", "--repair-only", "b"], 3) == "plain,blank-line\n"
    assert protocol(environment, "bash", ["patchctl", "list", "st"], 2) == "plain,stacks\n"
    assert protocol(environment, "bash", ["patchctl", "identify", "/us"], 2) == "dir,/us\n"


def test_recipes_are_completed(environment: dict[str, str]) -> None:
    assert protocol(environment, "bash", ["patchctl", "recipe", "env", "-p", "full", "q"], 5) == "plain,quiet\n"
    assert protocol(environment, "bash", ["patchctl", "recipe", "show", "full/l"], 3) == "plain,full/loud\n"
    assert protocol(environment, "bash", ["patchctl", "recipe", "sh"], 2) == "plain,show\n"


def test_where_there_is_no_distribution_nothing_is_printed(environment: dict[str, str], tmp_path: Path) -> None:
    nowhere = {**environment, "PATCHCTL_ROOT": str(tmp_path)}
    assert protocol(nowhere, "bash", ["patchctl", "apply", "--profile", ""], 3).strip() == ""


def test_the_root_on_the_command_line_counts(environment: dict[str, str], made: Made, tmp_path: Path) -> None:
    nowhere = {**environment, "PATCHCTL_ROOT": str(tmp_path)}
    words = ["patchctl", "--root", str(made.root), "apply", "--profile", "p"]
    assert protocol(nowhere, "bash", words, 5) == "plain,plain\n"


def completed_by_bash(environment: dict[str, str], words: list[str]) -> list[str]:
    """Source the script in a real bash and call the function that it registered, as readline does."""
    quoted = " ".join(f"'{w}'" for w in words)
    script = f"""
        set -e
        eval "$(_PATCHCTL_COMPLETE=bash_source patchctl)"
        complete -p patchctl >&2
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        _patchctl_completion patchctl "${{COMP_WORDS[COMP_CWORD]}}" ""
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "-F _patchctl_completion patchctl" in done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_verbs_and_profiles(environment: dict[str, str]) -> None:
    assert completed_by_bash(environment, ["patchctl", "st"]) == ["status"]
    assert {"apply", "verify", "identify"} <= {*completed_by_bash(environment, ["patchctl", ""])}
    assert completed_by_bash(environment, ["patchctl", "apply", "--profile", ""]) == ["full", "plain"]


def typed(command: list[str], environment: dict[str, str], lines: list[str], until: str) -> str:
    """Type into a shell on a terminal and return what it shows up to `until`, or for ten seconds."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    shown = ""
    try:
        for line in lines:
            time.sleep(0.5)
            os.write(terminal, line.encode())
        end = time.monotonic() + 30
        while until not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 0.5)[0]:
                shown += os.read(terminal, 65536).decode("utf-8", "replace")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_tab_key_of_an_interactive_bash(environment: dict[str, str]) -> None:
    lines = ['eval "$(_PATCHCTL_COMPLETE=bash_source patchctl)"\n', "patchctl apply --profile fu\t"]
    assert "--profile full" in typed(["bash", "--norc", "-i"], environment, lines, "--profile full")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_the_tab_key_of_an_interactive_zsh(environment: dict[str, str]) -> None:
    lines = [
        "autoload -Uz compinit; compinit -u\n",
        'eval "$(_PATCHCTL_COMPLETE=zsh_source patchctl)"\n',
        "patchctl stat\t",
    ]
    assert "patchctl status" in typed(["zsh", "-f", "-i"], environment, lines, "patchctl status")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(environment: dict[str, str]) -> None:
    script = '_PATCHCTL_COMPLETE=fish_source patchctl | source; complete -C "patchctl apply --profile "'
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert {"full", "plain"} <= {line.split("\t")[0] for line in done.stdout.splitlines()}
