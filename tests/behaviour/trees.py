"""Where the trees under test come from: a folder that is given, or a workspace that patchctl builds itself; and which stack
each of them is of, which says the features that it carries and the versions that go with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pins import PROFILE, distribution, index_version, profile_on

from patchctl.manifest.series import feature_of
from patchctl.manifest.types import Stack

REPO = Path(__file__).resolve().parents[2]
MIRRORS = "PATCHCTL_MIRRORS"
APPLY_TIMEOUT_S = 1800
# apply's exit code when no source at all can be had. Any other failure is a fault and is shown as one.
SOURCE_UNAVAILABLE = 3


class Trees:
    """Upstream trees by name; what is not there is skipped with the reason, never passed over."""

    def __init__(
        self,
        folders: dict[str, Path],
        missing: dict[str, str] | None = None,
        left_out: dict[tuple[str, str], str] | None = None,
        otherwise: str = "",
        stacks: Mapping[str, str] | None = None,
    ) -> None:
        """`missing` and `left_out` hold reasons, by upstream and by (upstream, feature); `otherwise` is for the rest.
        `stacks` names the stack of each tree, where it is not the profile's."""
        self._folders = folders
        has = PROFILE in distribution().profiles  # a distribution of others need not have it
        self._stacks = {**(profile_on(os.environ.get("PATCHCTL_RELEASE")).stacks if has else {}), **(stacks or {})}
        self._missing = missing or {}
        self._left_out = left_out or {}
        self._otherwise = otherwise

    def path(self, name: str) -> Path:
        """The tree's folder; skips the test with the reason when there is none."""
        if name not in self._folders:
            pytest.skip(f"no tree of {name}: {self._missing.get(name, self._otherwise)}")
        return self._folders[name]

    def stack(self, upstream: str) -> Stack:
        """The stack that the upstream's tree is of, as its manifest has it."""
        return distribution().stack(upstream, self._stacks[upstream])

    def version(self, upstream: str) -> str:
        """The version that the package index has the upstream's pin by."""
        return index_version(self.stack(upstream))

    def generated(self, upstream: str, path: str) -> str:
        """The content of a file that the upstream's build writes, as the stack gives it."""
        (content,) = [one.content for one in self.stack(upstream).generated if one.path == path]
        return content

    def lacks(self, upstream: str, feature: str) -> str | None:
        """Why the patch of the feature is not in the tree: its stack does not carry it, or it was left out. None if it is
        there, and for a feature of another upstream."""
        stack = self.stack(upstream)
        if feature not in features_of(stack):
            stacks = [one for one in distribution().stacks.values() if one.upstream == upstream]
            is_its_own = any(feature in features_of(one) for one in stacks)
            return f"{upstream} {stack.name} does not carry {feature}" if is_its_own else None
        reason = self._left_out.get((upstream, feature))
        return f"{feature} is not in the tree of {upstream}: {reason}" if reason else None


def features_of(stack: Stack) -> set[str]:
    """The features that a stack carries, by the names of its patch files."""
    return {feature_of(patch.file) for patch in distribution().patches(stack)}


class LazyTrees(Trees):
    """Trees that are built when the first of them is asked for: a run in which all is skipped builds nothing."""

    def __init__(self, build: Callable[[], Trees]) -> None:
        self._build = build
        self._built: Trees | None = None

    def path(self, name: str) -> Path:
        return self._get().path(name)

    def stack(self, upstream: str) -> Stack:
        return self._get().stack(upstream)

    def lacks(self, upstream: str, feature: str) -> str | None:
        return self._get().lacks(upstream, feature)

    def _get(self) -> Trees:
        if self._built is None:
            self._built = self._build()
        return self._built


def given_trees(folder: Path, stacks: Sequence[str] = ()) -> Trees:
    """The trees under a folder given with --trees, and with --stack what they are of.

    Raises UsageError when the folder does not exist, or is a workspace of other stacks than those named.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise pytest.UsageError(f"--trees {folder}: no such folder")
    named = dict(_pair(text) for text in stacks)
    state = folder / ".patchctl" / "state.json"
    if state.is_file():  # a workspace, which knows what could not be had from its sources, in the report's words
        report = json.loads(state.read_text(encoding="utf-8"))
        for upstream, stack in named.items():
            held = report["trees"].get(upstream, {}).get("stack", stack)
            if held != stack:
                raise pytest.UsageError(f"--stack {upstream}/{stack}: the workspace {folder} holds {held}")
        return trees_of_report(folder, report)
    folders = {path.name: path for path in folder.iterdir() if path.is_dir()}
    return Trees(folders, otherwise="the folder given with --trees has none", stacks=named)


def _pair(text: str) -> tuple[str, str]:
    upstream, _, stack = text.partition("/")
    if (upstream, stack) not in distribution().stacks:
        raise pytest.UsageError(f"--stack {text}: no UPSTREAM/STACK of this distribution")
    return upstream, stack


def built_trees(workspace: Path) -> Trees:
    """Runs `patchctl apply` into `workspace`; a failure for another reason than a lack of sources fails the tests.

    On the release that PATCHCTL_RELEASE names, else the one that patchctl, make and scripts/torch_env.py take by themselves."""
    chosen = profile_on(os.environ.get("PATCHCTL_RELEASE"))
    command = [sys.executable, "-m", "patchctl", "--root", str(REPO), "apply", *chosen.options.split()]
    command += ["--workspace", str(workspace), "--skip-unavailable", "--json", *_mirror_options()]
    done = subprocess.run(
        command,
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=APPLY_TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, SOURCE_UNAVAILABLE):
        pytest.fail(f"patchctl apply ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return trees_of_report(workspace, json.loads(done.stdout))


def trees_of_report(workspace: Path, report: dict[str, Any]) -> Trees:
    """Reads what `apply --json` prints (patchctl.apply/1, or patchctl.error/1 when nothing could be had), or the state."""
    trees: dict[str, Any] = report.get("trees", {})
    return Trees(
        folders={name: workspace / tree["folder"] for name, tree in trees.items()},
        missing={one["upstream"]: _places(one["tried"]) for one in report.get("skipped", [])},
        left_out={(name, one["feature"]): one["reason"] for name, tree in trees.items() for one in tree["left_out"]},
        otherwise=report.get("error", {}).get("what", f"the profile {PROFILE} has none"),
        stacks={name: tree["stack"] for name, tree in trees.items()},
    )


def _places(tried: list[list[str]]) -> str:
    return "its source could not be had; " + "; ".join(f"tried {place}: {reason}" for place, reason in tried)


def _mirror_options() -> list[str]:
    """`--mirror NAME=PATH` for each repository in the folder that PATCHCTL_MIRRORS names."""
    setting = os.environ.get(MIRRORS)
    if not setting:
        return []
    options: list[str] = []
    for path in sorted(Path(setting).absolute().iterdir()):
        if path.is_dir():
            options += ["--mirror", f"{path.name.removesuffix('.git')}={path}"]
    return options
