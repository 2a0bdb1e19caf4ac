#!/usr/bin/env python3
"""Lists the keys of verl's Hydra configurations, as a tree composes them: manifests/keys/<upstream>/<stack>.tsv.

Usage: config_keys.py TREE [--out FILE | --check FILE]. TREE is verl's, patched, up to v0.6 with recipe/ (from git); the interpreter
needs hydra, and what verl's configuration classes import (a CPU torch). `patchctl recipe` refuses an
override that the list does not have, so that a typing error is told before a cluster waits for it, and without the tree.
`make config-keys` writes it again; tests/behaviour/test_recipes.py compares it with the composition.

One line a key and kind, with the compositions that have it so (`all` of them). A composition has its configuration's name; where a
group of the defaults chooses what others are (model_engine), that of the option:
    value     a value
    null      a value that is null or missing: + may set it too
    mapping   keys of its own; + may add others
    class     keys of a configuration class, which refuses others
    field     of such a class and not in the configuration: + adds it
    free      a mapping that takes any key with +

Before them, with something else in the third column:
    config    a configuration: GROUP=OPTION, the choice that it composes with
    group     a group that the defaults choose from: its choices
    options   a group that they do not: its options, which +GROUP or GROUP@PACKAGE takes
    words     a key: the values that the code has registered or asserts, read from its source
    unless    the same key: what may register others, so that none is refused

Exit codes: 0; 1 with --check, where FILE differs; 2 wrong use.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "# the keys of verl {version}'s configurations, the stack's patches applied; `make config-keys` writes it again\n"
    "# the kinds are those of scripts/config_keys.py\n"
)
# Words that a key may have: the function that registers them and the package that it is of. The keys are those of several versions.
_REGISTERED = {
    "actor_rollout_ref.actor.policy_loss.loss_mode": ("register_policy_loss", "verl.trainer.ppo"),
    "algorithm.adv_estimator": ("register_adv_est", "verl.trainer.ppo"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend": (
        "CheckpointEngineRegistry.register",
        "verl.checkpoint_engine",
    ),
    "reward.reward_manager.name": ("register", "verl.experimental.reward_loop.reward_manager"),
    "reward_model.reward_manager": ("register", "verl.workers.reward_manager"),
}
_LISTED = {
    "actor_rollout_ref.rollout.name": ("_ROLLOUT_REGISTRY", "verl/workers/rollout/base.py"),
    "actor_rollout_ref.actor.fsdp_config.dtype": ("_LIST", "verl/utils/torch_dtypes.py"),
    "actor_rollout_ref.actor.fsdp_config.model_dtype": ("_LIST", "verl/utils/torch_dtypes.py"),
    "actor_rollout_ref.ref.fsdp_config.dtype": ("_LIST", "verl/utils/torch_dtypes.py"),
    "actor_rollout_ref.ref.fsdp_config.model_dtype": ("_LIST", "verl/utils/torch_dtypes.py"),
}
# What imports a module of the user's, which may register more.
_LIBRARY = "actor_rollout_ref.model.external_lib"
_OPEN = {
    "actor_rollout_ref.actor.policy_loss.loss_mode": _LIBRARY,
    "algorithm.adv_estimator": _LIBRARY,
    "actor_rollout_ref.rollout.name": _LIBRARY,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module",
    "reward.reward_manager.name": "reward.reward_manager.source",
    "reward_model.reward_manager": _LIBRARY,
}


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
    text = HEAD.format(version=version_of(tree)) + "".join(f"{line}\n" for line in lines(tree))
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
    version = tuple(map(int, re.findall(r"\d+", version_of(tree))[:2]))
    return {c: m for c, m in CONFIGS.items() if version < _WITHOUT_RECIPES or not m.startswith("recipe.")}


def version_of(tree: Path) -> str:
    """The version that verl's tree says it is."""
    file = tree / "verl" / "version" / "version"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "0.0"


def lines(tree: Path) -> Iterator[str]:
    """Configurations, groups, words; then KEY, KIND and the compositions, sorted."""
    sys.path.insert(0, str(tree))
    composed = compositions(tree)
    for one in composed:
        if one.choice:
            yield f"{one.config}\tconfig\t{one.choice}={one.name}"
    yield from sorted(groups_of(composed))
    having: dict[tuple[str, str], dict[str, None]] = {}
    words: dict[str, dict[str, None]] = {}
    unbound: set[str] = set()  # what another composition's class takes as it comes
    for one in [*composed, *with_other_options(composed)]:
        bound = dict(asserted("", one.mapping))
        for key, kind in walked("", one.mapping, None, one.is_null):
            having.setdefault((key, kind), {})[one.name] = None
            unbound |= {key} - bound.keys()
        for key, allowed in bound.items():
            words.setdefault(key, {}).update(dict.fromkeys(allowed))
    yield from words_of(tree, {k: v for k, v in words.items() if k not in unbound}, {key for key, _ in having})
    names = {name for of in having.values() for name in of}
    for (key, kind), of in sorted(having.items()):
        yield f"{key}\t{kind}\t{'all' if len(of) == len(names) else ','.join(of)}"


@dataclasses.dataclass
class Composition:
    """What Hydra composes: `name` is the option of the group `choice` where one chooses, else the configuration's."""

    folder: Path
    config: str
    name: str
    choice: str | None
    mapping: Mapping[str, Any]
    loaded: Any
    chosen: Mapping[str, str]
    options: Mapping[str, Sequence[str]]

    def is_null(self, key: str) -> bool:
        """Whether Hydra finds nothing there, so that + takes the key."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            return OmegaConf.select(self.loaded, key, throw_on_missing=False) is None
        except OmegaConfBaseException:  # of an interpolation without a value; Hydra ends with it too
            return False


def compositions(tree: Path) -> list[Composition]:
    """Each configuration as its entry module composes it, interpolations as they are written."""
    os.chdir(tree)  # DAPO's configuration looks for ppo_trainer below the current folder
    found = [one_composition(config_folder(tree, module), config) for config, module in configs_of(tree).items()]
    for one in found:
        one.choice = next(choosing(one), None)
        one.name = one.chosen[one.choice] if one.choice else one.config
    return found


def with_other_options(found: Sequence[Composition]) -> Iterator[Composition]:
    """What the other options of the group that chooses make of the first configuration; they make the same of every other one."""
    first, names = found[0], {one.name for one in found}
    for option in first.options.get(first.choice or "", ()):
        if option not in names:
            yield one_composition(first.folder, first.config, first.choice, option)


def one_composition(folder: Path, config: str, choice: str | None = None, option: str | None = None) -> Composition:
    """A configuration, with an option of a group where one is named."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    overrides = [f"{choice}={option}"] if choice else []
    with initialize_config_dir(str(folder), version_base=None):
        loaded = compose(config, overrides)
        loader = GlobalHydra.instance().config_loader()
        made = loader.compute_defaults_list(config_name=config, overrides=overrides, run_mode=RunMode.RUN)
        chosen = {key: name for key, name in made.overrides.known_choices.items() if not key.startswith("hydra/")}
        folders = [path.name for path in sorted(folder.iterdir()) if path.is_dir()]
        chosen = {key: name for key, name in chosen.items() if "/.." not in key}  # of a file's own defaults
        names = {*folders, *(key.partition("@")[0] for key in chosen)}
        options = {name: found for name in names if (found := loader.get_group_options(name))}
    mapping = OmegaConf.to_container(loaded, resolve=False)
    assert isinstance(mapping, dict)
    return Composition(folder, config, option or config, choice, mapping, loaded, chosen, options)


def choosing(one: Composition) -> Iterator[str]:
    """Groups whose option other entries of the defaults are named by, as in ${model_engine}_actor."""
    for key, option in one.chosen.items():
        others = [name for name in one.options.get(key, ()) if name != option]
        if "@" in key or not others:
            continue
        with_other = one_composition(one.folder, one.config, key, others[0]).chosen
        if any(with_other.get(k) != v for k, v in one.chosen.items() if k != key):
            yield key


def groups_of(composed: Sequence[Composition]) -> Iterator[str]:
    """Groups that the defaults choose from, and those that they do not."""
    chosen = {key for one in composed for key in one.chosen}
    options = {name: found for one in composed for name, found in one.options.items()}
    for key in chosen:
        yield f"{key}\tgroup\t{','.join(options[key.partition('@')[0]])}"
    for name in options.keys() - chosen:
        yield f"{name}\toptions\t{','.join(options[name])}"


def words_of(tree: Path, words: dict[str, dict[str, None]], keys: set[str]) -> Iterator[str]:
    """What the keys may have: what the classes assert, and what is registered."""
    for key, (function, package) in _REGISTERED.items():
        words.setdefault(key, {}).update(dict.fromkeys(registered(tree, function, package)))
    for key, (name, place) in _LISTED.items():
        words.setdefault(key, {}).update(dict.fromkeys(listed(tree / place, name)))
    for key, allowed in sorted(words.items()):
        if allowed and key in keys:
            yield f"{key}\twords\t{','.join(allowed)}"
            if _OPEN.get(key) in keys:
                yield f"{key}\tunless\t{_OPEN[key]}"


def registered(tree: Path, function: str, package: str) -> Iterator[str]:
    """The names that calls of a package's function register, under whichever name a file imports it; of decorators too whose
    module cannot be imported here."""
    for path in sorted((tree / package.partition(".")[0]).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if function.rpartition(".")[2] not in text:
            continue
        code, module = ast.parse(text), ".".join(path.relative_to(tree).with_suffix("").parts)
        names, members = imported(code, module), members_of(code)
        for call in ast.walk(code):
            if isinstance(call, ast.Call) and call.args:
                head, dot, rest = ast.unparse(call.func).partition(".")
                home, original = names.get(head, (module, head))
                if f"{original}{dot}{rest}" == function and f"{home}.".startswith(f"{package}."):
                    yield from literals(members.get(ast.unparse(call.args[0]), call.args[0]))


def imported(code: ast.Module, module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports: from where, and what they are called there."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            above = ".".join(module.split(".")[: -node.level]) if node.level else ""
            home = ".".join(filter(None, (above, node.module)))
            found |= {name.asname or name.name: (home, name.name) for name in node.names}
    return found


def members_of(code: ast.Module) -> dict[str, ast.expr]:
    """The values of classes' members, as Kind.FIRST."""
    return {
        f"{kind.name}.{ast.unparse(one.targets[0])}": one.value
        for kind in code.body
        if isinstance(kind, ast.ClassDef)
        for one in kind.body
        if isinstance(one, ast.Assign)
    }


def listed(path: Path, ending: str) -> Iterator[str]:
    """The texts of lists, or of a table's keys, whose names end so."""
    code = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    for node in code.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(ending):
            yield from literals(node.value)


def literals(node: ast.expr) -> Iterator[str]:
    """Texts and numbers; of a list all, of a table the keys, of a tuple that is a key the first."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
        yield str(node.value)
    elif isinstance(node, ast.List):
        yield from (text for item in node.elts for text in literals(item))
    elif isinstance(node, ast.Tuple):
        yield from literals(node.elts[0])
    elif isinstance(node, ast.Dict):
        yield from (text for key in node.keys if key is not None for text in literals(key))


def asserted(at: str, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Keys of configuration classes whose values __post_init__ looks up in a list, with the list."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            key = f"{at}.{name}" if at else name
            for field, allowed in looked_up(value.get("_target_")):
                yield f"{key}.{field}", allowed
            yield from asserted(key, value)


def looked_up(target: str | None) -> Iterator[tuple[str, Sequence[str]]]:
    """Of a class: FIELD and the list, of `assert self.FIELD in [...]` and of `if self.FIELD not in NAME: raise`."""
    kind = class_of(target)
    for one in inspect.getmro(kind) if kind else ():
        check = vars(one).get("__post_init__")
        if check is None:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(check))).body[0].body  # type: ignore[attr-defined]
        named = {ast.unparse(s.targets[0]): s.value for s in body if isinstance(s, ast.Assign)}
        for statement in body:
            test = getattr(statement, "test", None)
            if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.In | ast.NotIn):
                continue
            field, held = ast.unparse(test.left), named.get(ast.unparse(test.comparators[0]), test.comparators[0])
            plain = isinstance(held, ast.List) and all(isinstance(item, ast.Constant) for item in held.elts)
            if field.startswith("self.") and plain:
                yield field.removeprefix("self."), [*literals(held)]


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


def walked(
    at: str, mapping: Mapping[str, Any], fields: Mapping[str, Any] | None, is_null: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """Every key below `at` with its kind; `fields` are those of the class that takes the mapping, None without one."""
    for name, value in mapping.items():
        if name == "_target_":
            continue
        key = f"{at}.{name}" if at else name
        if not isinstance(value, dict):
            yield key, "null" if is_null(key) else "value"
            continue
        own = fields_of(value.get("_target_"))
        free = not value or (fields is not None and own is None and is_mapping(fields.get(name)))
        yield key, "free" if free else "mapping" if own is None else "class"
        yield from walked(key, value, own, is_null)
    for name in {*(fields or {}), *READ_BESIDES.get(at, ())} - mapping.keys():
        if not name.startswith("_"):
            yield f"{at}.{name}", "field"


def fields_of(target: str | None) -> dict[str, Any] | None:
    """The fields of a configuration class with their types. None without one, or for a name that verl itself has not."""
    found = class_of(target)
    if found is None:
        return None
    hints = typing.get_type_hints(found)
    return {field.name: hints[field.name] for field in dataclasses.fields(found) if field.init}


def class_of(target: str | None) -> type | None:
    """The configuration class of that name. None without one, or for a name that verl itself has not."""
    module, _, name = (target or "").rpartition(".")
    found: Any = getattr(importlib.import_module(module), name, None) if module else None
    return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None


def is_mapping(kind: Any) -> bool:
    """Whether a field takes any mapping."""
    parts = typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)
    return any((typing.get_origin(part) or part) in (dict, Mapping) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
