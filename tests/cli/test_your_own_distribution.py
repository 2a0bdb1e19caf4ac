"""docs/your-own-distribution.md, walked from the page alone: its commands, its change, probe, test and mutation, to a proven patch."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from distribution import REPO, git, run_patchctl

PAGE, SGLANG = (REPO / "docs/your-own-distribution.md").read_text(encoding="utf-8").split("## The same for SGLang")
MESSAGE = """area: mend what the page says

Need: what the page says goes wrong for whoever meets it.

The change is the page's, at the place that it names.

Risk: none known.

Feature: {feature}
Switch: none
Upstream-Status: Pending
Drop-When: upstream has it
"""


def commands(text: str) -> list[str]:
    """Those that the page shows for patchctl; what stands beside them in a line is a command of its own."""
    lines = re.findall(r"(?m)^ {4}(.*)$", text)
    return [part for line in lines for part in line.split(" && ") if part.startswith("patchctl ")]


class Walk:
    def __init__(self, home: Path, name: str, tag: str, feature: str) -> None:
        self.home, self.name, self.tag, self.feature = home, name, tag, feature
        self.root = home / f"{name}-patches"

    def run(self, command: str, folder: Path, *more: str) -> str:
        env = {"HOME": str(self.home), "PIP_NO_INDEX": "" if self.name == "sglang" else "1"}
        done = run_patchctl(*shlex.split(command)[1:], *more, home=folder, env=env, timeout=300)
        if self.name == "sglang" and done.returncode == 3:
            pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def change(self, file: str, start: str, before: str, lines: str) -> None:
        """Put the page's lines before the first line after `start` that begins with `before`, and commit them."""
        tree = self.root / f"edit/{self.name}-{self.tag}"
        text = (tree / file).read_text(encoding="utf-8")
        at = text.index(f"\n{before}", text.index(start)) + 1
        (tree / file).write_text(text[:at] + lines + text[at:], encoding="utf-8")
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--amend", "--message", MESSAGE.format(feature=self.feature))

    def fill(self, probe: str, test: str, mutant: str) -> None:
        folder = self.root / "patches" / self.name / self.tag / self.feature
        files = {f"tests/probe_{self.feature}.py": probe, f"tests/test_{self.feature}.py": test}
        for path, text in {**files, f"mutants/{self.feature}.yaml": mutant}.items():
            assert "TODO(new)" in (folder / path).read_text(encoding="utf-8"), "`new` wrote another one"
            (folder / path).write_text(text, encoding="utf-8")

    def whole(self, text: str, last: list[str], place: tuple[str, str, str], *more: str) -> None:
        (self.home / "begin").mkdir(parents=True)
        begin, new = commands(text)[:2]
        lines, *files = re.findall(r"(?ms)^```\n(.*?)^```$", text)
        self.run(begin.replace(f"--dir {self.root.name}", f"--dir {self.root}"), self.home / "begin", *more)
        git(self.root, "init", "--quiet")
        self.run(new, self.root)
        self.change(*place, lines)
        self.fill(*files)
        said = [self.run(command, self.root) for command in last]
        assert "1/1 mutants red" in said[-3] and "no errors" in said[-2] and "1 patch " in said[-1], said


LAST = commands(PAGE)[2:]


@pytest.mark.heavy("an upstream of its own, and its tests on three trees")
def test_slime(tmp_path: Path) -> None:
    mirror = Path(os.environ.get("PATCHCTL_MIRRORS", "")) / "slime"
    if "PATCHCTL_MIRRORS" not in os.environ or not mirror.exists():
        pytest.skip("PATCHCTL_MIRRORS names no folder with a mirror of slime")
    walk = Walk(tmp_path / "home", "slime", "v0.3.1", "f1_choice_a")
    place = ("slime/rollout/rm_hub/f1.py", "def f1_score", "    normalized_prediction =")
    walk.whole(PAGE, LAST, place, "--mirror", f"slime={mirror}")


@pytest.mark.heavy("an upstream of its own, and its tests on three trees")
def test_sglang(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "home", "sglang", "v0.5.10.post1", "empty_stop_refused")
    last = [one.replace("f1_choice_a", "empty_stop_refused").replace("slime", "sglang") for one in LAST]
    place = ("sglang/srt/sampling/sampling_params.py", "def verify", "        grammars")
    walk.whole(SGLANG, last, place)
