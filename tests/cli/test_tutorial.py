"""The tutorials lead to runs: the first image has compiled operators, every file that a recipe asks for is named before it is
run, and both languages say the same commands."""

from __future__ import annotations

import re
import shlex
from functools import cache

import pytest
from distribution import REPO
from markdown_pages import release_of_shell
from pins import recipes_on

from patchctl.training.recipes.read import Recipes
from patchctl.training.recipes.resolve import resolve

TUTORIALS = ["docs/tutorial.md", "docs/zh-CN/tutorial.md"]
PREFLIGHT = re.compile(r"patchctl preflight --profile (?P<profile>\S+) --recipe (?P<recipe>\S+)(?P<rest>.*)")
TRAIN = re.compile(r"scripts/train\.sh (?P<profile>\S+) (?P<recipe>[a-z0-9-]+)(?P<rest>.*)")


@cache
def recipes(release: str | None) -> Recipes:
    """Those that are taken while PATCHCTL_RELEASE is that."""
    return recipes_on(release)


def lines(page: str) -> list[str]:
    """What a reader runs, in order; one command a line."""
    blocks = re.findall(r"^```\n(.*?)^```", (REPO / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return re.sub(r"\s*\\\n\s*", " ", "".join(blocks)).splitlines()


@pytest.mark.parametrize("page", TUTORIALS)
def test_the_first_image_is_made_where_the_operators_are(page: str) -> None:
    builds = [line for line in lines(page) if line.startswith("scripts/build_image.sh")]
    assert builds and all("--in-place" in shlex.split(line) for line in builds)


@pytest.mark.parametrize("page", TUTORIALS)
def test_what_a_recipe_asks_for_is_named_before_it_is_run(page: str) -> None:
    exported: set[str] = set()
    release: str | None = None
    runs = 0
    for line in lines(page):
        command = line.partition(" #")[0]
        release = release_of_shell(command, release)
        if command.startswith("export "):
            exported |= {word.partition("=")[0] for word in shlex.split(command)[1:]}
        found = PREFLIGHT.match(command) or TRAIN.match(command)
        if found is None or "--dry-run" in command:
            continue
        runs += 1
        given = set(re.findall(r"--path (\w+)=", found["rest"]))
        paths = resolve(recipes(release), found["profile"], found["recipe"]).paths
        asked = {p.variable for name, p in paths.items() if p.default is None and name not in given}
        assert asked <= exported, f"{command}: {', '.join(sorted(asked - exported))}"
    assert runs >= 7


@pytest.mark.parametrize("page", TUTORIALS)
def test_both_tutorials_run_the_same(page: str) -> None:
    def bare(line: str) -> str:
        return " ".join(line.partition(" #")[0].split())

    mine, english = (
        [bare(line) for line in lines(one) if not line.startswith("git clone")] for one in (page, TUTORIALS[0])
    )
    assert mine == english
