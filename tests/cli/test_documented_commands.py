"""Every command that a page shows can be parsed: verbs and options exist, scripts know what they are given, recipes are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from distribution import REPO
from markdown_pages import set_of_shell

from patchctl.catalog.release_sets import on_set
from patchctl.cli import cli
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import Given, resolve
from patchctl.training.recipes.rules import broken_rules, wrong_needs

PAGES = [
    "README.md",
    "README.zh-CN.md",
    "docs/recipes.md",
    "docs/scripts.md",
    "docs/preflight.md",
    "docs/data-and-weights.md",
    "docs/cluster.md",
    "docs/writing-patches.md",
    "docs/rebase.md",
    "docs/report.md",
    "docs/images.md",
    "docs/install.md",
    "docs/requirements.md",
    "docs/bundles.md",
    "docs/hdp.md",
    "docs/metrics.md",
    "docs/release-2026.11.md",
    "docs/sources.md",
    "docs/demo.md",
    "docs/reference-figures.md",
    *(str(p.relative_to(REPO)) for p in sorted((REPO / "docs").glob("**/tutorial.md"))),
    *(str(p.relative_to(REPO)) for p in sorted((REPO / "docs/practice").glob("0*.md"))),
]
SCRIPT = re.compile(r"^(?:python3? )?(scripts/[a-z_/]+\.(?:py|sh))\b")
PLACEHOLDERS = {"P", "R", "PROFILE", "RECIPE", "NAME"}


def commands(page: str) -> Iterator[tuple[str, str | None]]:
    """The lines of a page's code blocks that run the tool or a script, each with the release set that PATCHCTL_SET has then, for
    whoever pastes one after the other; a line that ends in a backslash goes on."""
    release_set: str | None = None
    text = (REPO / page).read_text(encoding="utf-8") if (REPO / page).is_file() else ""
    indented = re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)
    for block in [*re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE), *indented]:
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            # Beside the command stands what it does, behind a # or three blanks.
            one = re.split(r" {3,}(?![ -])", line.strip().removeprefix("$ "))[0]
            release_set = set_of_shell(one, release_set)
            for found in re.split(r"&&|\||\$\(|;", one.partition(" #")[0]):
                command = found.strip().rstrip(')"')
                if command.startswith("patchctl ") or SCRIPT.match(command):
                    yield command.partition(" > ")[0].partition(" 2>")[0], release_set


ALL = sorted({(page, command) for page in PAGES for command, _ in commands(page)})
ON_SETS = sorted({(page, *found) for page in PAGES for found in commands(page)}, key=str)


@cache
def book(release_set: str | None) -> tuple[Distribution, Recipes]:
    """The distribution and its recipes as a verb has them, with the set's name and without."""
    chosen = on_set(Distribution.load(REPO), release_set, print)
    return chosen, read_recipes(chosen)


@cache
def recipes(release_set: str | None) -> set[str]:
    """PROFILE/RECIPE as it is taken while PATCHCTL_SET is that, and PROFILE/RECIPE@SET on each release set."""
    on_sets = {
        f"{p}/{name}@{read.set_of(p)}"
        for read in map(read_recipes, Distribution.load(REPO).each_set())
        for p, name in read.runnable()
    }
    return {"/".join(key) for key in book(release_set)[1].runnable()} | on_sets


@cache
def usage(script: str) -> str:
    run = [sys.executable, script, "--help"] if script.endswith(".py") else ["bash", script, "--help"]
    done = subprocess.run(run, cwd=REPO, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def words(command: str) -> list[str]:
    return [word for word in shlex.split(command) if word != "..."]


def parsed(args: list[str]) -> None:
    """Raises click.UsageError where the words do not fit a verb; runs nothing."""
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and args[0] != "--help":
        name, *args = args
        command = command.get_command(context, name)
        assert command is not None, f"there is no verb {name}"
    try:
        assert command is not None
        command.make_context("patchctl", args)
    except click.exceptions.Exit as done:  # --help
        assert done.exit_code == 0


@pytest.mark.parametrize(("page", "command"), [c for c in ALL if c[1].startswith("patchctl ")])
def test_the_tool_takes_a_command(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "series").mkdir()  # a colleague's mails, which have to be there
    monkeypatch.chdir(tmp_path)
    parsed(words(command)[1:])


@pytest.mark.parametrize(("page", "command"), [c for c in ALL if SCRIPT.match(c[1])])
def test_a_script_knows_its_options(page: str, command: str) -> None:
    found = SCRIPT.match(command)
    assert found is not None
    script, given = found[1], words(command[found.end() :])
    own = given[: given.index("--")] if "--" in given else given
    given_options = [w for w in own if re.match(r"--?[a-z]", w) and w != "--help"]
    text = all_usage(script, own)
    unknown = [w for w in given_options if not re.search(rf"(?<![\w-]){w}(?![\w-])", text)]
    assert unknown == []


def all_usage(script: str, given: list[str]) -> str:
    """What the script says of itself, and of the verb that is given."""
    text = usage(script)
    verb = next((w for w in given if not w.startswith("-")), "")
    if script.endswith(".py") and re.search(rf"^ +{re.escape(verb)} ", text, re.MULTILINE) and verb:
        run = [sys.executable, script, verb, "--help"]
        text += subprocess.run(run, cwd=REPO, capture_output=True, text=True, timeout=60, check=False).stdout
    return text


def recipes_in(command: str) -> list[str]:
    """The recipes that a command names, less placeholders."""
    text = f"{command} "
    profile = re.search(r"(?:-p|--profile) (\S+)", text)
    recipe = re.search(r"(?:-r|--recipe) (\S+)", text)
    train = re.search(r"train\.sh (\S+) ([a-z]\S*)", text)
    named = [f"{profile[1]}/{recipe[1]}"] if profile and recipe else []
    named += [f"{train[1]}/{train[2]}"] if train else []
    named += re.findall(r"recipe (?:show|command|diff) (\S+/\S+)", text)
    return [n for n in named if not PLACEHOLDERS & set(n.split("/"))]


@pytest.mark.parametrize(("page", "command", "release_set"), ON_SETS)
def test_the_recipe_of_a_command_is_there(page: str, command: str, release_set: str | None) -> None:
    """On the set that the page's reader is on: the one that is taken without a name, until the page says another."""
    text = f"{command} "
    said = re.search(r"--set (\d\S*) ", text)
    known = recipes(said[1] if said else release_set)
    assert [n for n in recipes_in(command) if n not in known] == []


def helped(command: click.Command) -> Iterator[str]:
    """The help of a verb and of those below it."""
    yield command.help or ""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helped(below)


def examples_of_help() -> Iterator[str]:
    """Lines of a verb's or script's help that name a recipe."""
    of_scripts = [usage(f"scripts/{name}.sh") for name in ("train", "ray_cluster")]
    for line in "\n".join([*helped(cli), *of_scripts]).splitlines():
        for command in re.split(r"(?<=\S) {3,}", line.partition(" #")[0])[0].split("&&"):
            if re.match(r"\s+(?:[A-Z_]+=\S+ )*(?:eval \"\$\()?(?:patchctl|train\.sh|ray_cluster\.sh) ", f"  {command}"):
                yield command.partition(" > ")[0].strip().removeprefix('eval "$(').removesuffix(')"')


def run_of(command: str, release_set: str | None) -> tuple[str, Given] | None:
    """PROFILE/RECIPE and what a command says instead of it; None for one that names no recipe that is there."""
    given = words(command)
    option = {o: given[i + 1] for i, o in enumerate(given[:-1]) if o.startswith("-")}
    nodes = option.get("--nodes")
    recipe = option.get("--recipe", option.get("-r", ""))
    profile = option.get("--profile", option.get("-p", ""))
    named = recipe if "/" in recipe else f"{profile}/{recipe}"
    train = re.search(r"train\.sh (\S+) ([a-z]\S*)", command)
    shown = re.search(r"recipe (?:show|command) (\S+/\S+)", command)
    title = f"{train[1]}/{train[2]}" if train else shown[1] if shown else named
    after = [given[i + 1] for i, o in enumerate(given[:-1]) if o == "--set"]
    title += "".join(f"@{word}" for word in after if "=" not in word)
    if title not in recipes(release_set):
        return None
    pairs = [given[i + 1].partition("=") for i, o in enumerate(given[:-1]) if o == "--size"]
    sizes = {name: value for name, _, value in pairs} | ({"nodes": nodes} if nodes and nodes.isdecimal() else {})
    settings = [word for word in after if "=" in word]
    settings += [word for word in given if train and re.match(r"\+*[a-z_]+\.\S+=", word)]
    return title, Given(sizes, {name: value for name, _, value in (word.partition("=") for word in settings)})


RUNS = sorted({found[1:] for found in ON_SETS} | {(command, None) for command in examples_of_help()}, key=str)


@pytest.mark.parametrize(("command", "release_set"), [run for run in RUNS if run_of(*run)])
def test_what_is_shown_keeps_the_rules(command: str, release_set: str | None) -> None:
    """With the nodes, sizes and overrides that the example has: a reader pastes it as it stands."""
    found = run_of(command, release_set)
    assert found is not None
    title, _, named = found[0].partition("@")
    dist, all_recipes = book(named or release_set)
    profile, name = title.split("/")
    run = resolve(all_recipes, profile, name, found[1])
    features, switches = features_and_switches(dist, profile)
    broken = [*broken_rules(run, all_recipes.rules), *wrong_needs(run, features, switches, all_recipes.rules)]
    assert [str(b) for b in broken] == []


def test_the_recipe_of_a_commands_help_is_there() -> None:
    """Whoever pastes an example of --help has named no set."""
    named = {command: recipes_in(command) for command in examples_of_help()}
    assert any(named.values())
    assert {c: found for c, found in named.items() if set(found) - recipes(None)} == {}


def test_examples_of_the_help_are_among_them() -> None:
    with_nodes = [command for command, on in RUNS if run_of(command, on) and "--nodes" in command]
    for start in (
        "patchctl cluster verify",
        "patchctl recipe command",
        "patchctl env",
        "patchctl preflight",
        "train.sh",
        "ray_cluster.sh worker",
        "scripts/ray_cluster.sh head",
    ):
        assert [command for command in with_nodes if command.startswith(start)], start


def test_there_are_commands_to_look_at() -> None:
    assert len({command for page, command in ALL if page == "docs/tutorial.md"}) > 25


def test_the_first_example_is_of_the_stacks_as_they_are() -> None:
    """README.md shows what `make apply` prints without git hosts; a changed stack wants it run again and put there."""
    text = (REPO / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(\S+) +(\S+)  sdist  applied  \d+ patch\w*  tip (\w+)  as locked$", text, re.MULTILINE)
    assert [upstream for upstream, _, _ in shown] == ["verl", "vllm", "vllm-ascend", "megatron-lm"]
    dist = Distribution.load(REPO)
    for upstream, name, tip in shown:
        lock = read_lock(REPO, dist.stacks[upstream, name])
        tips = (
            [r.forms["sdist"].tip_commit for r in lock.results if isinstance(r.forms["sdist"], LockedForm)]
            if lock
            else []
        )
        assert any(one.startswith(tip) for one in tips), f"{upstream}: {tip} is shown, {tips} are locked"
