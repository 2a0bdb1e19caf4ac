#!/usr/bin/env python3
"""Lists the keys of verl's Hydra configurations, as a tree composes them: manifests/keys/<upstream>/<stack>.tsv.

Usage: config_keys.py TREE [--out FILE | --check FILE]. TREE is verl's, patched, up to v0.6 with recipe/ (from git); the interpreter
needs hydra, and what verl's configuration classes import (a CPU torch). `patchctl recipe` and `patchctl env` refuse an
override that the list does not have, so that a typing error is told before a cluster waits for it, and without the tree.
`make config-keys` writes it again; tests/behaviour/test_recipes.py compares it with the composition.

One line a key and kind, with the configurations that have it so (`all` of them):
    value     a value
    mapping   keys of its own; + may add others
    class     keys of a configuration class, which refuses others
    field     of such a class and not in the configuration: + adds it
    free      a mapping that takes any key with +

Exit codes: 0; 1 with --check, where FILE differs; 2 wrong use.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CONFIGS = {
    "ppo_trainer": "verl.trainer.main_ppo",
    "ppo_megatron_trainer": "verl.trainer.main_ppo",
    "dapo_trainer": "recipe.dapo.main_dapo",
    "dapo_megatron_trainer": "recipe.dapo.main_dapo",
}
_WITHOUT_RECIPES = (0, 7)  # from this version on DAPO is the trainer's, and recipe/ another repository
# What verl reads of a section although the section's class has no such field: the reward managers, which get the mapping.
READ_BESIDES = {"reward": ("reward_kwargs",)}
HEAD = (
    "# the keys of verl's configurations, the stack's patches applied; `make config-keys` writes it again\n"
    "# value, mapping, class, field and free: scripts/config_keys.py\n"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("tree", type=Path)
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--out", type=Path)
    to.add_argument("--check", type=Path)
    given = parser.parse_args()
    tree = given.tree.resolve()
    lacking = [
        module
        for module in configs_of(tree).values()
        if not tree.joinpath(*module.split(".")).with_suffix(".py").is_file()
    ]
    if lacking:
        parser.error(f"{given.tree} has no {lacking[0]}: expected verl's tree from git, with recipe/")
    out, check = (path.resolve() if path else None for path in (given.out, given.check))
    text = HEAD + "".join(f"{line}\n" for line in lines(tree))
    if check:
        same = check.is_file() and check.read_text(encoding="utf-8") == text
        print(f"{given.check}: {'in step' if same else 'differs from the tree: `make config-keys` writes it again'}")
        return 0 if same else 1
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def configs_of(tree: Path) -> dict[str, str]:
    """The configurations of a tree of this version, and the modules that compose them."""
    file = tree / "verl" / "version" / "version"
    version = tuple(map(int, re.findall(r"\d+", file.read_text(encoding="utf-8"))[:2])) if file.is_file() else (0, 0)
    return {c: m for c, m in CONFIGS.items() if version < _WITHOUT_RECIPES or not m.startswith("recipe.")}


def lines(tree: Path) -> Iterator[str]:
    """KEY, KIND and the configurations, sorted."""
    configs = configs_of(tree)
    sys.path.insert(0, str(tree))
    found: dict[tuple[str, str], list[str]] = {}
    for config, module in configs.items():
        for key, kind in walked("", composed(tree, module, config), None):
            found.setdefault((key, kind), []).append(config)
    for (key, kind), having in sorted(found.items()):
        yield f"{key}\t{kind}\t{'all' if len(having) == len(configs) else ','.join(having)}"


def composed(tree: Path, module: str, config: str) -> Mapping[str, Any]:
    """The configuration as its entry module composes it, interpolations as they are written."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    os.chdir(tree)  # DAPO's configuration looks for ppo_trainer below the current folder
    with initialize_config_dir(str(config_folder(tree, module)), version_base=None):
        found = OmegaConf.to_container(compose(config), resolve=False)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def config_folder(tree: Path, module: str) -> Path:
    """The folder that the module's own @hydra.main names, read from its source."""
    path = tree.joinpath(*module.split(".")).with_suffix(".py")
    call = re.search(r"@hydra\.main\((.*?)\)", path.read_text(encoding="utf-8"), re.DOTALL)
    if call is None:
        raise SystemExit(f"{path}: no @hydra.main")
    arguments = ast.parse(f"f({call[1]})", mode="eval").body
    assert isinstance(arguments, ast.Call)
    named = {argument.arg: ast.literal_eval(argument.value) for argument in arguments.keywords}
    return path.parent / str(named["config_path"])


def walked(at: str, mapping: Mapping[str, Any], fields: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Every key below `at` with its kind; `fields` are those of the class that takes the mapping, None without one."""
    for name, value in mapping.items():
        if name == "_target_":
            continue
        key = f"{at}.{name}" if at else name
        if not isinstance(value, dict):
            yield key, "value"
            continue
        own = fields_of(value.get("_target_"))
        free = not value or (fields is not None and own is None and is_mapping(fields.get(name)))
        yield key, "free" if free else "mapping" if own is None else "class"
        yield from walked(key, value, own)
    for name in {*(fields or {}), *READ_BESIDES.get(at, ())} - mapping.keys():
        if not name.startswith("_"):
            yield f"{at}.{name}", "field"


def fields_of(target: str | None) -> dict[str, Any] | None:
    """The fields of a configuration class with their types. None without one, or for a name that verl itself has not."""
    if target is None:
        return None
    module, _, name = target.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    if found is None or not dataclasses.is_dataclass(found):
        return None
    hints = typing.get_type_hints(found)
    return {field.name: hints[field.name] for field in dataclasses.fields(found) if field.init}


def is_mapping(kind: Any) -> bool:
    """Whether a field takes any mapping."""
    parts = typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)
    return any((typing.get_origin(part) or part) in (dict, Mapping) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
