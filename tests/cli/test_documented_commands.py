"""Every command that patchctl shows, on a page, in a help text or in a hint, does what it is shown for: it is run where that takes
no cluster, network or hours, and parsed where it does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from distribution import REPO, run_patchctl
from documented import SCRIPT, Shown, all_shown, helped, in_blocks
from pins import distribution, on, recipes_on
from small_twin import make_twin

from patchctl.cli import cli
from patchctl.cli.app import App
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.read import Recipes
from patchctl.training.recipes.resolve import Given, resolve
from patchctl.training.recipes.rules import broken_rules, wrong_needs

PLACEHOLDERS = {"P", "R", "PROFILE", "RECIPE", "NAME"}
ALL = all_shown()
OURS = [shown for shown in ALL if re.match(r"(?:[A-Z_]+=\S* )*patchctl (?!<)", shown.command)]
ON_SETS = sorted({shown[:2] for shown in ALL if shown.whole}, key=str)


@cache
def book(release: str | None) -> tuple[Distribution, Recipes]:
    """The distribution and its recipes as a verb has them, with the release's name and without."""
    return on(release), recipes_on(release)


@cache
def on_each_release() -> set[str]:
    """PROFILE/RECIPE@RELEASE of all."""
    return {
        f"{p}/{name}@{read.release_of(p)}"
        for read in map(recipes_on, distribution().releases)
        for p, name in read.runnable()
    }


@cache
def recipes(release: str | None) -> set[str]:
    """PROFILE/RECIPE as it is taken while PATCHCTL_RELEASE is that, and PROFILE/RECIPE@RELEASE on each release."""
    return {"/".join(key) for key in book(release)[1].runnable()} | on_each_release()


@cache
def usage(script: str) -> str:
    run = [sys.executable, script, "--help"] if script.endswith(".py") else ["bash", script, "--help"]
    done = subprocess.run(run, cwd=REPO, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def words(command: str) -> list[str]:
    return [word for word in shlex.split(command) if word != "..."]


PROFILE = "qwen3-235b"
# What stands for a value in the documents, and one that is there; a command with another one is parsed.
FILLED = {
    "UPSTREAM": "verl",
    "STACK": "verl/{verl}",
    "UPSTREAM/STACK": "verl/{verl}",
    "OLD": "verl/{verl}",
    "FEATURE": "its_name",
    "F": "{profile}.bundle.tar",
    "DIR": "a-new-folder",
    "P": "{profile}",
    "PROFILE": "{profile}",
    "NAME": "{profile}",
    "R": "grpo",
    "N": "8",
    "P/R": "{profile}/grpo",
    "PROFILE/RECIPE": "{profile}/grpo",
    "PYTHON": sys.executable,
    "PY": sys.executable,
    "RELEASE": "{release}",
    "import DIR": "series",
    "identify DIR": "workspace/verl",
    "show NAME": "{feature}",
    "--root DIR": "{root}",
    "apply FILE": "{profile}.bundle.tar",
    "fetch FILE": "{profile}.bundle.tar",
    "bundle FILE": "{profile}.bundle.tar",
    "$last": "drift.json",
}
VALUE = re.compile(r"[A-Z]+(?:[/:][A-Z]+)*|.*[<>{}].*|\.\.\.")
# Why a command is parsed and no more; the first that fits.
PARSED = {
    r"cluster ": "wants a Ray cluster",
    r"prove |.* --prove": "runs tests on torch, for minutes to hours",
    r"bump --(continue|abort)": "is about a bump that has stopped: test_bump.py",
    r"bump [0-9]+\.[0-9]+ (?!.*--dry-run)": "rebases and locks for minutes: test_bump.py",
    r"rebase --(?!plan)": "is about a rebase that has stopped: test_rebase.py",
    r"image verify (-|.*--statement)": "reads standard input, or a signed statement: test_image_verify.py",
    r"install |.* --site-packages": "builds packages into an interpreter: test_install.py, test_installed_upstreams.py",
    r".*--(?:sign|allowed-signers) ": "wants a key that signs: test_bundle.py",
    r"bisect ": "runs a command of the reader's: test_bisect.py",
    r"use [A-Z]": "fetches from an address of the reader's: test_use.py",
    r"train |script ": "runs a script of the distribution: test_wheel.py",
    r"pin .*--source sdist|lock --requirements": "asks a package index",
    r"preflight (?!.*--machine)": "looks over this machine, 3 s each: test_preflight.py; below, that its recipe is there",
    r"init |.*\b(?:slime|sglang|f1_choice_a|empty_stop_refused)\b": "is of another upstream, or begins one: test_init.py",
    r".*\b(?:garden|harbour|weather|units)\b": "is of the example: test_example.py",
}
# They read, and are about what the twin has not: all features, and training.
ON_THE_REAL_ONE = ("list", "show", "recipe", "requirements", "sbom", "preflight")
READS = ("doctor", "status", "verify", "identify", "blame", "drift")
FINE = (0, 1, 10, 20)  # done, findings, and what `drift` and `rebase` say of patches


def filled(args: list[str], values: dict[str, str]) -> list[str] | None:
    """With values for what stands for one, paths of other machines below the current folder; None where one has no value here."""
    verb = args[0]
    found = []
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.rpartition("=")
        if value in FILLED or VALUE.fullmatch(value):
            known = FILLED.get(f"{before} {value}", FILLED.get(f"{verb} {value}", FILLED.get(value)))
            if known is None:
                return None
            value = known.format(**values)
        elif re.search(r"(?:^|/)python3?$", value):
            value = sys.executable
        elif before in ("--workspace", "-w") and verb != "apply":
            value = "workspace"
        elif value.startswith("/"):
            value = value[1:]
        found.append(f"{name}{equals}{value}")
    return found


def fits(shown: Shown, args: list[str]) -> bool:
    """Whether the words are all of a command. Raises click.UsageError where they do not fit a verb, and in a sentence not for what is
    lacking: it may name a verb alone."""
    command: click.Command | None = cli
    context = click.Context(cli)
    if args[0] == "--version":
        return False
    if args[0] == "--root":
        args = args[2:]
    while isinstance(command, click.Group) and args and args[0] != "--help":
        name, *args = args
        command = command.get_command(context, name)
        assert command is not None, f"there is no verb {name}"
    if command is None or isinstance(command, click.Group):
        return False
    try:
        command.make_context("patchctl", [*args], obj=App(None, None))
    except click.exceptions.Exit as done:  # --help
        return done.exit_code == 0
    except click.UsageError as wrong:
        lacking = isinstance(wrong, click.MissingParameter) or "requires an argument" in wrong.message
        lacking |= "does not exist" in wrong.message and any(VALUE.fullmatch(one) for one in args)
        if shown.whole or not lacking:
            raise
        return False
    return True


class Reader:
    """Whoever runs what the documents show, each command with everything as it was before."""

    def __init__(self, folder: Path) -> None:
        real = distribution()
        self.release = on(None).profile(PROFILE).release or ""
        self.stacks = {f"{upstream}/{name}" for upstream, name in real.stacks}
        text = "\n".join(shown.command for shown in OURS)
        said = re.findall(rf"(?:--to|--against|pin [\w-]+) (\S*\d\S*)|\b(?:{'|'.join(real.upstreams)})/(v\S+)", text)
        revisions = {one for found in said for one in "".join(found).split(",")} - {
            s.rpartition("/")[2] for s in self.stacks
        }
        self.twin = make_twin(
            folder, set(re.findall(r"\w+", text)), sorted(r for r in revisions if r != "latest"), PROFILE, self.release
        )
        self.whole = folder / "whole"
        self.home = folder / "home"
        for one in (self.twin.root, self.home):
            shutil.copytree(one, self.whole / one.name, symlinks=True)
        stack = next(stack for (upstream, _), stack in real.stacks.items() if upstream == "verl")
        feature = Path(real.patches(stack)[0].path).parent.name
        self.values = {
            "verl": stack.name,
            "profile": PROFILE,
            "release": self.release,
            "feature": feature,
            "root": str(self.twin.root),
        }

    def run(self, shown: Shown, args: list[str]) -> subprocess.CompletedProcess[str]:
        verb = next(w for w in args if not w.startswith(("-", "/")))
        env = dict(re.findall(r"([A-Z_]+)=(\S*) ", shown.command.partition("patchctl ")[0] + " "))
        env |= {"PATCHCTL_RELEASE": shown.release} if shown.release else {}
        if verb in ON_THE_REAL_ONE:
            here = ["--root", str(REPO), "--cache", str(self.twin.cache)]
            if "--machine" in args:
                record = ["--record" if w == "--machine" else w for w in args]
                run_patchctl(*here, *record, home=self.home, env=env)
            return run_patchctl(*here, *args, home=self.home, env=env)
        env = {"PATCHCTL_RELEASE": self.release_of(args), **env}
        for name in (w for w in args if re.fullmatch(r"[\w-]+/v\d\S*", w) and w not in self.stacks):
            self.twin.good("pin", *name.split("/"), env=env)
        if "--in-place" in args:
            env["PATCHCTL_WORKSPACE"] = "beside"  # what the workspace has already is taken nowhere else
        if verb == "export" and "--mbox" not in args:
            self.twin.good("edit", args[1], env=env)
        return self.twin.patchctl(*args, env=env)

    def release_of(self, args: list[str]) -> str:
        """The release on which the real distribution takes the profile of a command: the twin has no proofs."""
        named = next((v for o, v in pairwise(args) if o in ("-p", "--profile")), PROFILE)
        return on(None).profile(named).release or self.release

    def again(self, verb: str) -> None:
        """What the verb writes as it was before."""
        written = [self.twin.root, *([self.home] if verb in ("apply", "revert", "repair") else [])]
        for one in written:
            shutil.rmtree(one)
            shutil.copytree(self.whole / one.name, one, symlinks=True)
        for new in {one.name for one in self.home.iterdir()} - {one.name for one in (self.whole / "home").iterdir()}:
            shutil.rmtree(self.home / new) if (self.home / new).is_dir() else (self.home / new).unlink()


@pytest.mark.heavy("runs a hundred and fifty commands; make test-shown does, in make test-all")
def test_the_tool_does_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prints how many commands were run, and how many parsed."""
    reader = Reader(tmp_path / "made")
    wrong: list[str] = []
    ran, looked_at = set[tuple[object, ...]](), 0  # what is shown in several places is run once
    for shown in OURS:
        monkeypatch.chdir(reader.home)
        args = shlex.split(shown.command.partition("patchctl ")[2].removeprefix("--lang zh-CN "))
        ours = filled(args, reader.values) if args else None
        try:
            whole = fits(shown, ours or [w for w in args if w != "..."] or ["--help"])
        except (click.UsageError, AssertionError) as error:
            wrong.append(f"{shown.where}: {shown.command}\n    {error}")
            continue
        mention = not shown.whole and len(args) == 1
        if mention or not (whole and ours) or any(re.match(rule, " ".join(ours) + " ") for rule in PARSED):
            looked_at += 1
            continue
        key = (shown.command.partition("patchctl ")[0], shown.release, *ours)
        if key in ran:
            continue
        ran.add(key)
        done = reader.run(shown, ours)
        named = "a switch from the practice documents" in done.stderr  # `show SWITCH` says what it is here
        if done.returncode not in FINE and not named:
            wrong.append(
                f"{shown.where}: {shown.command}\n    {' '.join(ours)} ended with {done.returncode}: {done.stderr[-600:]}"
            )
        if not (ours[0] in (*READS, *ON_THE_REAL_ONE) or "--dry-run" in ours):
            reader.again(ours[0])
    assert not wrong, "\n".join(wrong)
    print(f"{len(ran)} run, {looked_at} parsed")


def test_every_rule_of_what_is_parsed_is_of_use() -> None:
    shown = [one.command.partition("patchctl ")[2] + " " for one in OURS]
    assert [rule for rule in PARSED if not any(re.match(rule, one) for one in shown)] == []


def test_every_target_of_make_is_there() -> None:
    rules = re.findall(r"^([\w.-]+):(?!=)", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {
        (shown.where, word)
        for shown in ALL
        if shown.command.startswith("make ")
        for word in shlex.split(shown.command)[1:]
        if re.fullmatch(r"[a-z][\w.-]*", word)
    }
    assert len({word for _, word in named}) > 20
    assert sorted(one for one in named if one[1] not in rules) == []


def names_a_script(shown: Shown) -> bool:
    """To be run, and not in a sentence alone, where upstreams have scripts, too."""
    found = SCRIPT.match(shown.command)
    return found is not None and (shown.whole or (" --" in shown.command and (REPO / found[1]).is_file()))


@pytest.mark.parametrize("command", sorted({shown.command for shown in ALL if names_a_script(shown)}))
def test_a_script_knows_its_options(command: str) -> None:
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
    named += re.findall(r"recipe (?:show|command|env|diff) (\S+/\S+)", text)
    return [n for n in named if not PLACEHOLDERS & set(n.split("/"))]


@pytest.mark.parametrize(("command", "release"), [one for one in ON_SETS if recipes_in(one[0])])
def test_the_recipe_of_a_command_is_there(command: str, release: str | None) -> None:
    """On the release that the page's reader is on: the one that is taken without a name, until the page says another."""
    text = f"{command} "
    said = re.search(r"--release (\d\S*) ", text)
    known = recipes(said[1] if said else release)
    assert [n for n in recipes_in(command) if n not in known] == []


def examples_of_help() -> Iterator[str]:
    """Lines of a verb's or script's help that name a recipe."""
    of_scripts = [usage(f"scripts/{name}.sh") for name in ("train", "ray_cluster")]
    for line in "\n".join([*helped(cli), *of_scripts]).splitlines():
        for command in re.split(r"(?<=\S) {3,}", line.partition(" #")[0])[0].split("&&"):
            if re.match(r"\s+(?:[A-Z_]+=\S+ )*(?:eval \"\$\()?(?:patchctl|train\.sh|ray_cluster\.sh) ", f"  {command}"):
                yield command.partition(" > ")[0].strip().removeprefix('eval "$(').removesuffix(')"')


def run_of(command: str, release: str | None) -> tuple[str, Given] | None:
    """PROFILE/RECIPE and what a command says instead of it; None for one that names no recipe that is there."""
    given = words(command)
    option = {o: given[i + 1] for i, o in enumerate(given[:-1]) if o.startswith("-")}
    nodes = option.get("--nodes")
    recipe = option.get("--recipe", option.get("-r", ""))
    profile = option.get("--profile", option.get("-p", ""))
    named = recipe if "/" in recipe else f"{profile}/{recipe}"
    train = re.search(r"train\.sh (\S+) ([a-z]\S*)", command)
    shown = re.search(r"recipe (?:show|command|env) (\S+/\S+)", command)
    title = f"{train[1]}/{train[2]}" if train else shown[1] if shown else named
    after = [given[i + 1] for i, o in enumerate(given[:-1]) if o == "--release"]
    title += "".join(f"@{word}" for word in after if "=" not in word)
    if title not in recipes(release):
        return None
    pairs = [given[i + 1].partition("=") for i, o in enumerate(given[:-1]) if o == "--size"]
    sizes = {name: value for name, _, value in pairs} | ({"nodes": nodes} if nodes and nodes.isdecimal() else {})
    settings = [word for word in after if "=" in word]
    settings += [word for word in given if train and re.match(r"\+*[a-z_]+\.\S+=", word)]
    return title, Given(sizes, {name: value for name, _, value in (word.partition("=") for word in settings)})


RUNS = sorted({*ON_SETS} | {(command, None) for command in examples_of_help()}, key=str)


@pytest.mark.parametrize(("command", "release"), [run for run in RUNS if run_of(*run)])
def test_what_is_shown_keeps_the_rules(command: str, release: str | None) -> None:
    """With the nodes, sizes and overrides that the example has: a reader pastes it as it stands."""
    found = run_of(command, release)
    assert found is not None
    title, _, named = found[0].partition("@")
    dist, all_recipes = book(named or release)
    profile, name = title.split("/")
    run = resolve(all_recipes, profile, name, found[1])
    features, switches = features_and_switches(dist, profile)
    broken = [*broken_rules(run, all_recipes.rules), *wrong_needs(run, features, switches, all_recipes.rules)]
    assert [str(b) for b in broken] == []


def test_the_recipe_of_a_commands_help_is_there() -> None:
    """Whoever pastes an example of --help has named no release."""
    named = {command: recipes_in(command) for command in examples_of_help()}
    assert any(named.values())
    assert {c: found for c, found in named.items() if set(found) - recipes(None)} == {}


def test_examples_of_the_help_are_among_them() -> None:
    with_nodes = [command for command, on in RUNS if run_of(command, on) and "--nodes" in command]
    for start in (
        "patchctl cluster verify",
        "patchctl recipe command",
        "patchctl recipe env",
        "patchctl preflight",
        "train.sh",
        "ray_cluster.sh worker",
        "scripts/ray_cluster.sh head",
    ):
        assert [command for command in with_nodes if command.startswith(start)], start


def test_every_verb_has_two_examples() -> None:
    example = re.compile(r"^ *(?:\S+=\S+ |eval \"\$\(|ssh .*\| )*(?:patchctl|pip) \S", re.MULTILINE)
    _, *of_verbs = helped(cli)
    assert len(of_verbs) > 40
    assert [text.split("\n")[0] for text in of_verbs if len(example.findall(text)) < 2] == []


def test_there_are_commands_to_look_at() -> None:
    assert len({command for command, _ in in_blocks(REPO / "docs/tutorial.md")}) > 25


def test_the_first_example_is_of_the_stacks_as_they_are() -> None:
    """README.md shows what `make apply` prints without git hosts; a changed stack wants it run again and put there."""
    text = (REPO / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(\S+) +(\S+)  sdist  applied  \d+ patch\w*  tip (\w+)  as locked$", text, re.MULTILINE)
    assert [upstream for upstream, _, _ in shown] == ["verl", "vllm", "vllm-ascend", "megatron-lm"]
    dist = distribution()
    for upstream, name, tip in shown:
        lock = read_lock(REPO, dist.stacks[upstream, name])
        tips = (
            [r.forms["sdist"].tip_commit for r in lock.results if isinstance(r.forms["sdist"], LockedForm)]
            if lock
            else []
        )
        assert any(one.startswith(tip) for one in tips), f"{upstream}: {tip} is shown, {tips} are locked"
