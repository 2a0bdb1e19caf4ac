"""git's settings and variables that run commands or lead elsewhere: none of them counts while the tool works.

Each case is a home, an environment or a tree as an attacker (or a colleague) left it. A whole round, apply, status, an edit,
revert with --stash, runs while the system watches: no command of theirs starts, nothing outside is written, and the trees are
those of a clean machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from distribution import Made, git
from harmless import assert_harmless
from on_disk import Workspace
from watched import Watched, run_all

pytestmark = [pytest.mark.family("Repository configuration"), pytest.mark.heavy("a matrix of verbs and git's settings")]

# {w} is a program that leaves a trace, {d} a folder of programs and hooks that do.
SETTINGS = {
    "fsmonitor": "[core]\n\tfsmonitor = {w}\n",
    "hooks": "[core]\n\thooksPath = {d}\n",
    "pager": "[core]\n\tpager = {w}\n[pager]\n\tdiff = {w}\n\tlog = {w}\n\tstatus = {w}\n",
    "external_diff": "[diff]\n\texternal = {w}\n",
    "editor": "[core]\n\teditor = {w}\n[sequence]\n\teditor = {w}\n",
    "filter": '[core]\n\tattributesFile = {d}/attributes\n[filter "evil"]\n\tclean = {w}\n\tsmudge = {w}\n\trequired\n',
    "filter_process": '[core]\n\tattributesFile = {d}/attributes\n[filter "evil"]\n\tprocess = {w}\n\trequired\n',
    "textconv": '[core]\n\tattributesFile = {d}/attributes\n[diff "evil"]\n\ttextconv = {w}\n',
    "merge_driver": '[core]\n\tattributesFile = {d}/attributes\n[merge "evil"]\n\tdriver = {w}\n',
    "template": "[init]\n\ttemplateDir = {d}/template\n",
    "gpg": "[commit]\n\tgpgSign = true\n[tag]\n\tgpgSign = true\n[gpg]\n\tprogram = {w}\n",
    "credential_helper": "[credential]\n\thelper = !{w}\n",
    "ssh_command": "[core]\n\tsshCommand = {w}\n",
    "alternate_refs": "[core]\n\talternateRefsCommand = {w}\n",
    "upload_pack_hook": "[uploadpack]\n\tpackObjectsHook = {w}\n",
    "ask_pass": "[core]\n\taskPass = {w}\n",
    "include": "[include]\n\tpath = {d}/included\n",
    "instead_of_a_command": '[url "ext::{w} "]\n\tinsteadOf = file://\n[protocol]\n\tallow = always\n',
    "maintenance": "[gc]\n\tauto = 1\n[maintenance]\n\tauto = true\n[core]\n\thooksPath = {d}\n",
    "recurse_submodules": "[submodule]\n\trecurse = true\n[fetch]\n\trecurseSubmodules = true\n",
    "broken": "[core\n\tfsmonitor = {w}\n",
    "line_ends": "[core]\n\tautocrlf = true\n\teol = crlf\n\tsafecrlf = true\n",
    "modes_and_links": "[core]\n\tfileMode = false\n\tsymlinks = false\n\tignoreCase = true\n\tprecomposeUnicode = true\n",
}
VARIABLES: dict[str, Mapping[str, str]] = {
    "GIT_DIR": {"GIT_DIR": "{d}/elsewhere.git"},
    "GIT_WORK_TREE": {"GIT_WORK_TREE": "{d}"},
    "GIT_INDEX_FILE": {"GIT_INDEX_FILE": "{d}/index"},
    "GIT_OBJECT_DIRECTORY": {"GIT_OBJECT_DIRECTORY": "{d}/objects"},
    "GIT_COMMON_DIR": {"GIT_COMMON_DIR": "{d}/common"},
    "GIT_NAMESPACE": {"GIT_NAMESPACE": "evil"},
    "GIT_EXEC_PATH": {"GIT_EXEC_PATH": "{d}"},
    "GIT_TEMPLATE_DIR": {"GIT_TEMPLATE_DIR": "{d}/template"},
    "GIT_EXTERNAL_DIFF": {"GIT_EXTERNAL_DIFF": "{w}"},
    "GIT_PAGER": {"GIT_PAGER": "{w}", "PAGER": "{w}", "EDITOR": "{w}", "VISUAL": "{w}"},
    "GIT_SSH_COMMAND": {"GIT_SSH_COMMAND": "{w}", "GIT_SSH": "{w}", "GIT_PROXY_COMMAND": "{w}"},
    "GIT_ASKPASS": {"GIT_ASKPASS": "{w}", "SSH_ASKPASS": "{w}"},
    "GIT_CONFIG": {
        "GIT_CONFIG": "{d}/included",
        "GIT_CONFIG_GLOBAL": "{d}/included",
        "GIT_CONFIG_SYSTEM": "{d}/included",
    },
    "GIT_CONFIG_COUNT": {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "{w}"},
    "GIT_CONFIG_PARAMETERS": {"GIT_CONFIG_PARAMETERS": "'core.fsmonitor'='{w}'"},
    "GIT_TRACE": {"GIT_TRACE": "{d}/trace", "GIT_TRACE2_EVENT": "{d}/trace2", "GIT_TRACE_PACKET": "{d}/trace3"},
    "GIT_ATTR_SOURCE": {"GIT_ATTR_SOURCE": "HEAD"},
    "GIT_REPLACE_REF_BASE": {"GIT_REPLACE_REF_BASE": "refs/heads/"},
    "GIT_LITERAL_PATHSPECS": {"GIT_ICASE_PATHSPECS": "1"},
    "GIT_ALLOW_PROTOCOL": {"GIT_ALLOW_PROTOCOL": "ext:file", "GIT_PROTOCOL_FROM_USER": "1"},
}


class Trap:
    """A folder of programs and hooks, each of which leaves a trace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder.with_name("trace")
        self.program = folder / "program"
        folder.mkdir(parents=True)
        hooks = (
            "pre-commit",
            "post-commit",
            "post-checkout",
            "post-index-change",
            "reference-transaction",
            "pre-auto-gc",
        )
        for name in ("program", "git", "git-fetch", "git-upload-pack", "git-update-index", *hooks):
            for place in (folder, folder / "template" / "hooks"):
                place.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(f"#!/bin/sh\necho {name} >>'{self.trace}'\nexit 1\n")
                (place / name).chmod(0o755)
        (folder / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
        (folder / "included").write_text(f"[core]\n\tfsmonitor = {self.program}\n\thooksPath = {folder}\n")

    def fill(self, text: str) -> str:
        return text.format(w=self.program, d=self.folder)

    def assert_nobody_came(self, done: Watched, *allowed: Path) -> None:
        assert not self.trace.exists(), self.trace.read_text()
        assert not {e for e in done.executed or () if e.startswith(str(self.folder))}
        assert done.outside(*allowed) == []


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap")


def round_trip(made: Made, tmp_path: Path, trap: Trap, env: Mapping[str, str]) -> None:
    """Apply, look, edit, revert."""
    home, ws = tmp_path / "home", Workspace(made, tmp_path / "ws")
    start, named = [f"--root={made.root}", f"--cache={made.cache}"], ["--workspace", str(ws.folder)]
    apply = [*start, "apply", *named, "--profile", "full"]
    edit = ["--write", str(ws.folder / "greeter/greeter/hello.py"), "mine = 1\n"]
    done = run_all(
        [apply, edit, [*start, "revert", *named, "--stash"]], home=home, results=tmp_path / "results", env=env
    )
    trap.assert_nobody_came(done, home, ws.folder, made.cache, tmp_path / "results")
    assert [run.code for run in done.runs] == [0, 0, 0], done.runs
    assert_harmless(*(run.stdout + run.stderr for run in done.runs))
    assert done.runs[0].stdout.count("as locked") == len(ws.state["trees"]), "the locks were written on a clean machine"
    for name in ws.state["trees"]:
        assert git(ws.folder / name, "status", "--porcelain") == ""


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_user(setting: str, small: Made, trap: Trap, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(trap.fill(SETTINGS[setting]))
    round_trip(small, tmp_path, trap, {})


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_of_the_environment(variable: str, small: Made, trap: Trap, tmp_path: Path) -> None:
    round_trip(small, tmp_path, trap, {k: trap.fill(v) for k, v in VARIABLES[variable].items()})


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_a_tree(setting: str, ws: Workspace, trap: Trap, tmp_path: Path) -> None:
    """A tree of the workspace, whose .git/config somebody added to."""
    ws.apply()
    config = ws.folder / "greeter/.git/config"
    config.write_text(config.read_text() + trap.fill(SETTINGS[setting]))
    (ws.folder / "greeter/greeter/hello.py").write_text("mine = 1\n")
    start, named = [f"--root={ws.made.root}", f"--cache={ws.made.cache}"], ["--workspace", str(ws.folder)]
    lines = [
        [*start, "status", *named],
        [*start, "apply", *named, "-p", "plain"],
        [*start, "revert", *named, "--stash"],
    ]
    done = run_all(lines, home=tmp_path / "home", results=tmp_path / "results")
    trap.assert_nobody_came(done, tmp_path / "home", ws.folder, ws.made.cache, tmp_path / "results")
    assert [run.code for run in done.runs] == [1, 5, 0], done.runs
