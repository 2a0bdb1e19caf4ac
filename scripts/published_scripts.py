#!/usr/bin/env python3
"""Holds our checks of a recipe against verl's published scripts: docs/published-scripts.md says where they differ, and why.

Usage: published_scripts.py --mirror DIR --tree DIR --python PYTHON [--out FILE | --check FILE]. DIR of --mirror is a git repository of
verl, --tree the patched tree of the newest stack, --python an interpreter with Hydra and what verl imports (scripts/torch_env.py).

Each script of examples/ at the stack's tag that names the NPU and starts the trainer runs in an empty folder with DEVICE=npu, where every
program that it calls is a stub; the one of Python writes down its arguments and the environment. Hydra composes them on the patched
tree, then verl's own checks before workers start are asked (tests/behaviour/verl/probe_recipes_v1.py), then ours: the key list with its
words, Hydra's grammar, and the rules.

Exit codes: 0; 1 with --check, where FILE differs, or where a difference has no reason; 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from patchctl.__main__ import compose  # noqa: E402
from patchctl.catalog.chosen_release import on_release  # noqa: E402
from patchctl.errors import Where, WrongUse  # noqa: E402
from patchctl.manifest.distribution import Distribution  # noqa: E402
from patchctl.training.recipes.keys import read_keys, unknown_keys  # noqa: E402
from patchctl.training.recipes.read import read_recipes  # noqa: E402
from patchctl.training.recipes.resolve import DEVICES, NODES, PER_NODE, RecipeRun, Resolved, resolve  # noqa: E402
from patchctl.training.recipes.rules import Broken, broken_rules  # noqa: E402
from patchctl.training.recipes.shell import hydra_value  # noqa: E402

REASONS = ROOT / "scripts" / "published_scripts.yaml"
PROBE = ROOT / "tests" / "behaviour" / "verl" / "probe_recipes_v1.py"
TRAINER = "verl.trainer.main_ppo"
_TOOLS = (
    "bash",
    "env",
    "date",
    "dirname",
    "basename",
    "cat",
    "tee",
    "sed",
    "grep",
    "awk",
    "seq",
    "tr",
    "cut",
    "head",
    "tail",
    "nproc",
)
_STUBBED = ("python3", "python", "ray", "pip", "pip3", "mkdir", "hf", "sleep", "npu-smi", "wget", "rm", "cp")
_STUB = """\
#!{python}
import json, os, sys
if {trainer!r} in sys.argv:
    with open({out!r}, "w") as file:
        json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
"""
_WANTED = re.compile(r"(\w+): (?:unbound variable|[^\n]*must be set|[^\n]*required)")
_OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "LC_CTYPE")
_GIVEN = {"INFER_BACKEND": "vllm"}  # which one script reads before its own default is set
_ELSEWHERE = "couldn't connect to 'https://huggingface.co'"
_NAMED = re.compile("npu|ascend", re.IGNORECASE)


@dataclass(frozen=True)
class Started:
    """What a script gives its trainer: the configuration's name, the overrides and the variables that it exports."""

    script: str
    config: str
    overrides: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Judged:
    """What each says of a script: null is nothing, else who refused what."""

    script: str
    hydra: str | None
    verl: str | None
    not_asked: bool
    keys: tuple[Broken, ...]
    rules: tuple[Broken, ...]

    @property
    def taken_there(self) -> bool:
        return self.hydra is None and self.verl is None

    @property
    def taken_here(self) -> bool:
        return not self.keys and not self.rules


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--out", type=Path)
    to.add_argument("--check", type=Path)
    given = parser.parse_args()
    judged, tag = judged_scripts(given.mirror, given.tree.resolve(), given.python)
    text = page(judged, tag)
    if given.check:
        same = given.check.is_file() and given.check.read_text(encoding="utf-8") == text
        print(
            f"{given.check}: {'in step' if same else 'differs: `make published-scripts MIRRORS=DIR` writes it again'}"
        )
        return 0 if same else 1
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    lacking = without_reason(judged)
    for one in lacking:
        print(f"{one}: a difference without a reason; {REASONS.relative_to(ROOT)} has them", file=sys.stderr)
    return 1 if lacking else 0


def judged_scripts(mirror: Path, tree: Path, python: Path) -> tuple[list[Judged], str]:
    """Every published script of the stack's tag, judged by both sides; and the tag."""
    compose()
    known = Distribution.load(ROOT)
    tagged = [name for name, one in known.releases.items() if known.stack("verl", one.stacks["verl"]).pin.tag]
    dist = on_release(known, tagged[0], print)  # the newest whose verl is in its repository
    recipes = read_recipes(dist)
    assert recipes.rules is not None
    plain = resolve(recipes, *recipes.runnable()[0])
    tag = dist.stacks_of(dist.profile(plain.profile))[plain.entry.upstream].pin.tag or ""
    started = list(recorded(mirror, tag))
    judged = []
    for one, there in zip(started, asked(started, tree, python), strict=True):
        run = run_of(one, plain)
        keys = [*unknown_keys(run, read_keys(dist, run), None, ()), *unparsed(run)]
        rules = tuple(broken_rules(run, recipes.rules))
        judged.append(Judged(one.script, *sides(there), tuple(keys), rules))
    return judged, tag


def sides(there: str | None) -> tuple[str | None, str | None, bool]:
    """What Hydra refuses, what verl does, and whether verl could not be asked since it loads a model from elsewhere."""
    if there is None or _ELSEWHERE in there:
        return None, None, there is not None
    return (there, None, False) if there.startswith("hydra: ") else (None, there, False)


def recorded(mirror: Path, tag: str) -> Iterator[Started]:
    """What each script that names the NPU gives the trainer."""
    for script in git(mirror, "ls-tree", "-r", "--name-only", tag, "examples/").splitlines():
        text = git(mirror, "show", f"{tag}:{script}") if script.endswith(".sh") else ""
        if _NAMED.search(text) and TRAINER in text:
            yield started(script, text)


def git(mirror: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(mirror), *words], capture_output=True, text=True, check=True).stdout


def started(script: str, text: str) -> Started:
    """What a script starts, run with stubs in place of everything that it calls."""
    with tempfile.TemporaryDirectory() as name:
        said = said_by(script, text, Path(name))
    words = [word for word in said["arguments"] if "=" in word or word.startswith("~")]
    options = dict(word.split("=", 1) for word in words if word.startswith("--"))
    config = options.get("--config-name", "ppo_trainer").removesuffix(".yaml")
    return Started(script, config, tuple(w for w in words if not w.startswith("--")), said["environment"])


def said_by(script: str, text: str, folder: Path) -> dict[str, Any]:
    """Arguments and exported variables, as the stub wrote them down."""
    out, empty = folder / "said.json", folder / "empty"
    empty.joinpath("logs").mkdir(parents=True)
    given = {"PATH": str(stubs(folder / "bin", out)), "HOME": str(empty), "DEVICE": "npu"}
    # Open files cannot be raised everywhere.
    command = [f"{given['PATH']}/bash", "-c", f"ulimit() {{ :; }}\n{text}", script]
    while not out.is_file():
        done = subprocess.run(command, cwd=empty, env=given, capture_output=True, text=True, timeout=60, check=False)
        wanted = _WANTED.search(done.stderr)
        if not out.is_file() and (wanted is None or wanted[1] in given):
            raise SystemExit(f"{script} starts no trainer: {done.stderr[-500:]}")
        given |= {wanted[1]: _GIVEN.get(wanted[1], "/somewhere")} if wanted else {}
    said: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    ours = {*given, *_OF_THE_SHELL}
    return said | {"environment": {k: v for k, v in said["environment"].items() if k.isupper() and k not in ours}}


def stubs(folder: Path, out: Path) -> Path:
    """The folder with all programs that a script finds: a few real ones that only write to its own folder, and stubs."""
    folder.mkdir()
    for tool in _TOOLS:
        folder.joinpath(tool).symlink_to(shutil.which(tool) or "/bin/false")
    for stub in _STUBBED:
        folder.joinpath(stub).write_text(_STUB.format(python=sys.executable, trainer=TRAINER, out=str(out)))
        folder.joinpath(stub).chmod(0o755)
    return folder


def asked(started: Sequence[Started], tree: Path, python: Path) -> list[str | None]:
    """What Hydra and verl's own checks before workers start say; null where they take it."""
    jobs = [
        {"module": TRAINER, "folder": ".", "config": one.config, "overrides": one.overrides, "keys": []}
        for one in started
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(jobs, file)
        file.flush()
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run([python, PROBE, tree, file.name], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{PROBE.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return [one["error"] for one in json.loads(done.stdout.splitlines()[-1])]


def run_of(one: Started, plain: RecipeRun) -> RecipeRun:
    """A script as a run, which our checks can be asked about."""
    pairs = [override.partition("=") for override in one.overrides]
    overrides = {key: Resolved(value, value, one.script) for key, _, value in pairs}
    nodes, per_node = (overrides.get(f"trainer.{key}") for key in ("nnodes", "n_gpus_per_node"))
    sizes = {NODES: nodes.value if nodes else "1", PER_NODE: per_node.value if per_node else "8"}
    sizes[DEVICES] = str(int(sizes[NODES]) * int(sizes[PER_NODE]))
    return replace(
        plain,
        name=one.script,
        entry=replace(plain.entry, config=one.config),
        sizes={name: Resolved(value, value, one.script) for name, value in sizes.items()},
        environment={name: Resolved(value, value, one.script) for name, value in one.environment.items()},
        overrides=overrides,
        needs=(),
        data={},
        paths={},
    )


def unparsed(run: RecipeRun) -> Iterator[Broken]:
    """Lists and mappings that are none in Hydra's grammar."""
    for key, setting in run.overrides.items():
        try:
            if setting.value.startswith(("[", "{")):
                hydra_value(setting.value)
        except WrongUse as error:
            says, why = "a value is one of Hydra's grammar", "it is not parsed"
            yield Broken("hydra-grammar", says, f"{key}: {error.what}", why, error.hint or "", Where(run.name))


def reasons() -> dict[str, dict[str, str]]:
    found = yaml.safe_load(REASONS.read_text(encoding="utf-8")) if REASONS.is_file() else {}
    return {"rules": {}, "scripts": {}} | (found or {})


def without_reason(judged: Sequence[Judged]) -> list[str]:
    """Scripts on which both differ and nobody has said why."""
    known = reasons()
    found = []
    for one in judged:
        if one.taken_there and any(broken.rule not in known["rules"] for broken in (*one.keys, *one.rules)):
            found.append(one.script)
        if one.taken_here and not one.taken_there and one.script not in known["scripts"]:
            found.append(one.script)
    return found


def page(judged: Sequence[Judged], tag: str) -> str:
    """The table, and below it what is refused and why both differ."""
    return "\n".join([*_head(judged, tag), *_table(judged), *_refusals(judged), *_reasons(judged), ""])


def _head(judged: Sequence[Judged], tag: str) -> list[str]:
    both = sum(one.taken_here and one.taken_there for one in judged)
    neither = sum(not one.taken_here and not one.taken_there for one in judged)
    ours = sum(one.taken_there and not one.taken_here for one in judged)
    theirs = len(judged) - both - neither - ours
    return [
        "# Published scripts, compared with our checks",
        "",
        "<!-- `make published-scripts MIRRORS=DIR` writes this page; edits are lost. Reasons: scripts/published_scripts.yaml -->",
        "",
        f"The {len(judged)} scripts of verl {tag} (`examples/`) that name the NPU and start its trainer, run with `DEVICE=npu` for their",
        "arguments and variables. Hydra composes these on the patched tree, and verl's own checks before workers start are asked; then ours:",
        "keys and words against `manifests/keys/`, and the rules of `manifests/rules.yaml`.",
        "",
        f"Both take {both}, neither takes {neither}; ours alone refuse {ours}, verl's alone {theirs}. Each difference has its reason below.",
        "",
    ]


def _table(judged: Sequence[Judged]) -> Iterator[str]:
    yield "| Script | Hydra | verl | Keys, words | Rules |"
    yield "|---|---|---|---|---|"
    for one in judged:
        hydra = "takes it" if one.hydra is None else "refuses"
        verl = "" if one.hydra else "takes it" if one.verl is None else "refuses"
        verl = "takes it [1]" if one.not_asked else verl
        keys = ", ".join(dict.fromkeys(broken.rule for broken in one.keys)) or "take it"
        rules = ", ".join(broken.rule for broken in one.rules) or "take it"
        yield f"| {one.script.removeprefix('examples/')} | {hydra} | {verl} | {keys} | {rules} |"
    if any(one.not_asked for one in judged):
        yield ""
        yield (
            "[1] as far as it was asked: validate_config ended at the critic's model, which it loads from Hugging Face; "
            "checks after that did not run."
        )


def _refusals(judged: Sequence[Judged]) -> Iterator[str]:
    yield from ("", "## What verl refuses", "")
    for one in judged:
        if not one.taken_there:
            said = " ".join((one.hydra or one.verl or "").split())
            ours = "; ".join(f"{broken.rule}: {broken.found}" for broken in (*one.keys, *one.rules)) or "nothing"
            yield f"- `{one.script}`: {said} Ours: {ours}."


def _reasons(judged: Sequence[Judged]) -> Iterator[str]:
    known = reasons()
    yield from ("", "## Why both differ", "")
    for rule, why in known["rules"].items():
        scripts = [one for one in judged if one.taken_there and rule in {b.rule for b in (*one.keys, *one.rules)}]
        found = next((b.found for one in scripts for b in (*one.keys, *one.rules) if b.rule == rule), None)
        if found:
            yield f"- `{rule}`, {len(scripts)} {'script' if len(scripts) == 1 else 'scripts'} ({found}): {' '.join(why.split())}."
    for script, why in known["scripts"].items():
        yield f"- `{script}`: {' '.join(why.split())}."


if __name__ == "__main__":
    sys.exit(main())
