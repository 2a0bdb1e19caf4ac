"""Submodules that run commands or leave their folder, and bundles that a server wants fetched: nobody recurses, nobody asks.

The base itself holds them: an upstream whose pinned commit has a hostile `.gitmodules` and a gitlink.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distribution import GREETER, Made, git, make_distribution
from harmless import assert_harmless
from on_disk import Workspace, snapshot
from source_builders import Answer, IndexServer
from watched import run_all

pytestmark = pytest.mark.family("Submodules and bundles")

MODULE = '[submodule "evil"]\n\tpath = sub\n\turl = {url}\n'
# {w} is a command that leaves a trace, {t} the trace.
MODULES = {
    "address_is_an_option": MODULE.format(url="-u./run"),  # CVE-2018-17456
    "address_is_a_command": MODULE.format(url="ext::{w}"),
    "update_is_a_command": MODULE.format(url="https://example.invalid/x") + "\tupdate = !{w}\n",
    "path_is_an_option": '[submodule "evil"]\n\tpath = -sub\n\turl = https://example.invalid/x\n',  # CVE-2018-17456
    "path_leaves_the_tree": '[submodule "evil"]\n\tpath = ../sub\n\turl = https://example.invalid/x\n',
    "path_in_git": '[submodule "evil"]\n\tpath = .git/hooks\n\turl = https://example.invalid/x\n',
    "path_ends_with_cr": '[submodule "evil"]\n\tpath = "sub\r"\n\turl = https://example.invalid/x\n',  # CVE-2025-48384
    "name_leaves_modules": '[submodule "../../x"]\n\tpath = sub\n\turl = https://example.invalid/x\n',  # CVE-2018-11235
    "recursion_is_asked_for": MODULE.format(url="https://example.invalid/x") + "\tfetchRecurseSubmodules = true\n",
    "broken": "[submodule\n\tpath = sub\n",
}


def with_gitlink(folder: Path, modules: str) -> Made:
    """greeter, whose pin has this .gitmodules, a gitlink `sub` and a link `link` to the folder above (CVE-2024-32002)."""
    made = make_distribution(folder, (GREETER,))
    repo, stack = made.origins / "greeter", made.root / "manifests/stacks/greeter/v1.yaml"
    before = git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split()
    (repo / ".gitmodules").write_bytes(modules.encode())
    (repo / "link").symlink_to("..")
    git(repo, "add", "--all")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{before[0]},sub")
    git(repo, "commit", "--quiet", "-m", "the pin, with submodules")
    text = stack.read_text()
    for old, new in zip(before, git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split(), strict=True):
        text = text.replace(old, new)
    stack.write_text(text)
    return made


@pytest.mark.parametrize("fault", MODULES)
def test_a_submodule_is_never_entered(fault: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    made = with_gitlink(tmp_path / "made", MODULES[fault].replace("{w}", f"touch {trace}").replace("{t}", str(trace)))
    ws, home = Workspace(made, tmp_path / "ws"), tmp_path / "home"
    start, named = [f"--root={made.root}", f"--cache={made.cache}"], ["--workspace", str(ws.folder)]
    lines = [[*start, "apply", *named, "-p", "full"], [*start, "status", *named], [*start, "revert", *named]]
    before = snapshot(made.origins)
    done = run_all(lines, home=home, results=tmp_path / "results")
    assert not trace.exists() and snapshot(made.origins) == before
    assert done.outside(home, tmp_path / "results", ws.folder, made.cache) == []
    assert not {os.path.basename(e) for e in done.executed or ()} & {"ssh", "touch", "git-submodule"}
    for run in done.runs:
        assert run.code in (0, 1, 2, 3), run
        assert_harmless(run.stdout, run.stderr)
    assert not list((ws.folder / "greeter").glob("sub/*"))


def test_a_server_that_names_bundles_is_not_followed(index: IndexServer, tmp_path: Path) -> None:
    """`bundle-uri` of protocol 2: whoever answers a fetch could have any address read (CVE-2025-48385)."""
    made = make_distribution(tmp_path / "made", (GREETER,))
    repo = made.origins / "greeter"
    for key, value in (
        ("uploadpack.advertiseBundleURIs", "true"),
        ("bundle.version", "1"),
        ("bundle.mode", "all"),
        ("bundle.evil.uri", f"{index.url}/evil.bundle"),
    ):
        git(repo, "config", key, value)
    index.answers["/evil.bundle"] = Answer(b"# v2 git bundle\n")
    made.good("fetch", "-p", "full")
    assert index.asked == []
