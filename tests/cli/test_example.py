"""The example distribution, which `patchctl init` makes: every command of its README, run from a copy without a network, and what else
it promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distribution import REPO
from on_disk import Snapshot, snapshot

EXAMPLES = REPO / "examples"
SHOWN = "/home/you/patchctl/examples"  # where the README says that it was run


class Example:
    """A copy of examples/ in `top`, with a home of its own, and the folder of the next command."""

    def __init__(self, top: Path) -> None:
        self.top = self.folder = top / "examples"
        home, tools = top / "home", top / "bin"
        if not home.exists():
            self._begin(home, tools)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_", "GIT_"))}
        self.environment = {
            **kept,
            "HOME": str(home),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "PIP_NO_INDEX": "1",
            "PATCHCTL_NO_PROGRESS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def _begin(self, home: Path, tools: Path) -> None:
        made = ("sources", "stations", "__pycache__")
        shutil.copytree(EXAMPLES, self.top, ignore=shutil.ignore_patterns(*made))
        home.mkdir()
        tools.mkdir()
        for name, command in (("patchctl", "-m patchctl"), ("python", ""), ("python3", "")):
            file = tools / name
            file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
            file.chmod(0o755)

    def run(self, command: str) -> tuple[int, str]:
        """The exit code and what a terminal would show, with the copy's place written as the README writes it."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout.replace(str(self.top), SHOWN)

    def good(self, command: str) -> str:
        code, output = self.run(command)
        assert code == 0, output
        return output

    def trees(self) -> Snapshot:
        found = snapshot(self.folder / "workspace")
        return {p: s for p, s in found.items() if not ({".git", ".patchctl"} & set(p.split("/")))}


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the distribution was made, with its sources in the cache alone."""
    top = tmp_path_factory.mktemp("made")
    example = Example(top)
    example.good("python make.py")
    shutil.rmtree(example.top / "sources")
    return top


@pytest.fixture
def sourced(made: Path, tmp_path: Path) -> Example:
    """In a copy of it."""
    shutil.copytree(made, tmp_path / "copy", symlinks=True)
    example = Example(tmp_path / "copy")
    example.folder = example.top / "stations"
    return example


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each command of the README's console blocks with the output that it shows."""
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def test_the_readme_shows_what_happens(example: Example) -> None:
    shown = list(blocks((EXAMPLES / "README.md").read_text()))
    assert len(shown) >= 12
    for command, output in shown:
        if command.startswith("cd "):
            example.folder /= command.removeprefix("cd ")
        else:
            assert example.run(command)[1] == output, command


def test_it_is_made_the_same_again(sourced: Example) -> None:
    """Whoever makes it, and wherever: but for what a run of it left, the same bytes."""
    first = snapshot(sourced.folder)
    sourced.folder = sourced.top
    sourced.good("TZ=Asia/Tokyo GIT_AUTHOR_NAME=x python make.py")
    assert snapshot(sourced.top / "stations") == first


def test_profiles_differ_and_switching_gives_the_same_bytes(sourced: Example) -> None:
    sourced.good("patchctl apply --profile harbour --offline")
    harbour = sourced.trees()
    sourced.good("patchctl apply --profile garden --offline")
    garden = sourced.trees()
    assert {p for p in harbour.keys() | garden.keys() if harbour.get(p) != garden.get(p)} == {
        "weather/weather/report.py",
        "weather/weather/wind.py",
        "units/units/speed.py",
    }
    sourced.good("patchctl apply --profile harbour --offline")
    assert sourced.trees() == harbour
    sourced.good("patchctl revert")
    base = {str(p.relative_to(EXAMPLES / "upstreams")) for p in (EXAMPLES / "upstreams").rglob("*") if p.is_file()}
    files = {p for p in sourced.trees() if (sourced.folder / "workspace" / p).is_file()}
    assert files == {p for p in base if "__pycache__" not in p}
    for path in files:
        assert (sourced.folder / "workspace" / path).read_bytes() == (EXAMPLES / "upstreams" / path).read_bytes()


def test_the_fix_does_what_it_says(sourced: Example) -> None:
    readings = """echo '{"place": "P", "temperature": []}'"""
    run = f"{readings} | PYTHONPATH=workspace/weather:workspace/units sh workspace/weather/bin/report.sh"
    sourced.good("patchctl apply --profile garden")
    assert sourced.good(run) == "P\ntemperature: not measured\n"
    sourced.good("patchctl revert")
    code, output = sourced.run(run)
    assert code != 0 and "ZeroDivisionError" in output


def test_it_is_in_step(sourced: Example) -> None:
    sourced.good("patchctl lock --check --offline")
    sourced.good("patchctl verify --offline")
    sourced.good("patchctl export weather --check && patchctl export units --check")


def test_root_selects_it_from_anywhere(sourced: Example) -> None:
    output = sourced.good(f"cd / && patchctl --root '{sourced.folder}' list")
    assert "harbour" in output and "garden" in output
    assert "harbour" in sourced.good(f"cd / && PATCHCTL_ROOT='{sourced.folder}' patchctl list")
