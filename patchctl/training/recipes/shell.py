"""What a shell is given: environment lines and the command, quoted so that every value arrives as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from patchctl.errors import WrongUse
from patchctl.terminal.text import one_line
from patchctl.training.recipes.grammar import BadElement, element
from patchctl.training.recipes.resolve import RecipeRun, Resolved

if TYPE_CHECKING:
    from patchctl.workspace.state import TreeState

# What Hydra's grammar takes in a value without quotes; commas and brackets make lists and choices there.
_PLAIN = re.compile(r"[A-Za-z0-9_./@%*+-][A-Za-z0-9_./:@%*+-]*")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_DOTENV_PLAIN = re.compile(r"[A-Za-z0-9_./:,=@%+-]*")


def environment_sh(run: RecipeRun) -> Iterator[str]:
    """Lines for `eval` or `source`; what each node sets for itself, and the recipe's limits, as comments."""
    yield from _comments(run)
    for name, what in run.of_each_node.items():
        yield f"# on each node: export {name}=...   {one_line(what)}"
    for name, setting in run.environment.items():
        known = _known(setting, run)
        value = shlex.quote(known) if known is not None else f'"{_from_variable(setting, run)}"'
        yield f"export {name}={value}"


def environment_dotenv(run: RecipeRun) -> Iterator[str]:
    """NAME=VALUE lines as `docker --env-file` and python-dotenv both read them: so no value may need quotes."""
    for name in run.environment:
        value = literal(run.environment[name], run)
        if not _DOTENV_PLAIN.fullmatch(value):
            raise WrongUse(f"{name}={value} cannot be said in a dotenv file", hint="use --format sh or json")
        yield f"{name}={value}"


def literal(setting: Resolved, run: RecipeRun) -> str:
    """The value as text; for a path that no one has given, the variable that it is read from."""
    if setting.path is None:
        return setting.value
    return run.path(setting.path) or f"${run.paths[setting.path].variable}"


def command_lines(run: RecipeRun, tree: TreeState | None = None) -> list[str]:
    """The command as a shell script: the working directory, the module, one override a line.

    Args:
        tree: the entry module's upstream in the workspace at hand, if there is one.
    """
    lines = [*_comments(run), f"cd {_working_directory(run, tree)} || exit"]
    words = [f"python3 -m {run.entry.module}", f"--config-name={run.entry.config}"]
    words += [override_word(key, setting, run) for key, setting in run.overrides.items()]
    return [*lines, f"{words[0]} \\", *(f"  {word} \\" for word in words[1:]), '  "$@"']


def _working_directory(run: RecipeRun, tree: TreeState | None) -> str:
    """The upstream's tree, quoted for the shell. Where the package is patched in place it is that checkout, or for an installed one, in whose
    folder a run should leave nothing behind, the workspace: Python finds it from anywhere.
    """
    below = f"/{run.entry.folder}" if run.entry.folder else ""
    if tree is None or tree.kind == "managed":
        return f'"${{WORKSPACE:-workspace}}/{run.entry.upstream}{below}"'
    if tree.record and not below:
        return '"${WORKSPACE:-workspace}"'
    return shlex.quote(tree.folder + below)


def override_word(key: str, setting: Resolved, run: RecipeRun) -> str:
    """KEY=VALUE, quoted for Hydra first and for the shell then."""
    known = _known(setting, run)
    if known is None:
        return f"""{key}="'{_from_variable(setting, run)}'\""""
    return shlex.quote(f"{key}={hydra_value(known)}")


def override_text(key: str, setting: Resolved, run: RecipeRun) -> str:
    """KEY=VALUE as Hydra gets it; for a path that no one has given, the variable that it is read from."""
    known = _known(setting, run)
    return f"{key}={literal(setting, run) if known is None else hydra_value(known)}"


def hydra_value(text: str) -> str:
    """A value in Hydra's grammar: in quotes where a bare word would mean something else. Hydra parses a list or a mapping as it is
    written."""
    if _PLAIN.fullmatch(text) or _QUOTED.fullmatch(text):
        return text
    if text.startswith(("[", "{")):
        try:
            element(text)
        except BadElement as error:
            hint = """an item with other characters goes in quotes: '["a#b",c]'"""
            raise WrongUse(f"{text}: Hydra would not parse it: {error}", hint=hint) from None
        return text
    # Hydra takes a backslash for an escape in front of a quote only.
    escaped = re.sub(r"(\\*)'", lambda m: m[1] * 2 + "\\'", text)
    ended = re.sub(r"(\\+)$", lambda m: m[1] * 2, escaped)
    return f"'{ended}'"


def _known(setting: Resolved, run: RecipeRun) -> str | None:
    """The value, or the path that is given; None for a path that no one has given, which a variable may name."""
    return setting.value if setting.path is None else run.given.paths.get(setting.path)


def _from_variable(setting: Resolved, run: RecipeRun) -> str:
    """What the shell fills in for a path: its variable, else its default, else a refusal with our words."""
    path = run.paths[setting.path or ""]
    if path.default is not None:
        return f"${{{path.variable}:-{path.default}}}"
    what = re.sub(r"[^A-Za-z0-9 ,.;:()/_-]", "", path.what)
    return f"${{{path.variable}:?{what}}}"


def _comments(run: RecipeRun) -> Iterator[str]:
    """What a recipe says of itself. One line each, whatever the text holds: a shell reads what comes after."""
    on = f", release {run.release}" if run.release else ""
    yield f"# {run.title}{on}: {one_line(run.summary)}"
    for limit in run.limits:
        yield f"# limit: {one_line(limit, 1000)}"
