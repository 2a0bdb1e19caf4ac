"""Text and JSON output of the `recipe` verbs; recipes as a row each, for the report of a
distribution. Computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.catalog.overview import RecipeRow
from patchctl.doc import Doc
from patchctl.manifest.distribution import Distribution
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import Style, abridged, counted, summarised, visible_line
from patchctl.training.recipes.resolve import PER_NODE, RecipeDifference, RecipeRun, Resolved, every_run
from patchctl.training.recipes.rules import Broken
from patchctl.training.recipes.shell import command_lines, literal, override_text
from patchctl.training.recipes.totals import Totals
from patchctl.training.recipes.types import DataSet, EntryModule

if TYPE_CHECKING:
    from patchctl.workspace.state import TreeState


@dataclass(frozen=True)
class _OfRecipe:
    profile: Annotated[str, Doc("profile name")]
    recipe: Annotated[str, Doc("recipe name")]
    release: Annotated[str | None, Doc("release of the profile")]


@dataclass(frozen=True)
class ListedRecipe(_OfRecipe):
    """A recipe, as listed."""

    summary: Annotated[str, Doc("one-line summary")]
    nodes: Annotated[int, Doc("number of nodes")]
    devices: Annotated[int, Doc("total number of devices")]
    module: Annotated[str, Doc("entry module")]
    limits: Annotated[list[str], Doc("known limitations at these pins")]


@dataclass(frozen=True)
class RecipesOutput:
    """What `recipe list` prints."""

    recipes: Annotated[list[ListedRecipe], Doc("recipes, sorted by profile and name")]


def recipes_output(runs: Sequence[RecipeRun]) -> RecipesOutput:
    """Return one row per recipe."""
    rows = ((*_named(run), run.summary, run.machines, run.all_devices, run.entry.module, _limits(run)) for run in runs)
    return RecipesOutput([ListedRecipe(*row) for row in rows])


def _named(run: RecipeRun) -> tuple[str, str, str | None]:
    return run.profile, run.name, run.release


def _limits(run: RecipeRun) -> list[str]:
    return [_joined(limit) for limit in run.limits]


def list_text(runs: Sequence[RecipeRun], style: Style) -> Iterator[str]:
    """Yield one line per recipe, marked if it has limits."""
    width = max((len(run.title) for run in runs), default=0)
    for run in runs:
        size = f"{run.machines} x {run.sizes['devices_per_node'].value}"
        on = f"  on {run.release}" if run.release else ""
        mark = f" {style.note('(has limits, see show)')}" if run.limits else ""
        yield f"{style(f'{run.title:<{width}}', bold=True)}  {size:>7}  {run.entry.module}{on}{mark}"
        yield f"{'':{width}}           {visible_line(run.summary)}"
    yield f"{counted(len(runs), 'recipe')}; nodes x devices"


@dataclass(frozen=True)
class EnvOutput(_OfRecipe):
    """What `recipe env` prints."""

    environment: Annotated[dict[str, str], Doc("environment variables, the same on every node")]
    of_each_node: Annotated[
        Mapping[str, str], Doc("variables that each node sets for itself, each with a description of the value")
    ]


def env_output(run: RecipeRun) -> EnvOutput:
    """Return the values as text."""
    values = {name: literal(setting, run) for name, setting in run.environment.items()}
    return EnvOutput(*_named(run), values, run.of_each_node)


@dataclass(frozen=True)
class RecipePath:
    """A file or folder that the user provides."""

    what: Annotated[str, Doc("description of the contents")]
    variable: Annotated[str, Doc("environment variable with the path, if it is not given")]
    path: Annotated[str | None, Doc("path, if known")]


@dataclass(frozen=True)
class CommandOutput(_OfRecipe):
    """What `recipe command` prints."""

    upstream: Annotated[str, Doc("upstream whose tree the command starts in")]
    folder: Annotated[str, Doc("working directory in that tree")]
    module: Annotated[str, Doc("module that `python -m` runs")]
    config: Annotated[str, Doc("value of `--config-name`")]
    overrides: Annotated[
        list[str], Doc("KEY=VALUE, quoted for Hydra but not for a shell; `$VARIABLE` for a path that is not given")
    ]
    paths: Annotated[dict[str, RecipePath], Doc("files and folders that the user provides")]
    limits: Annotated[list[str], Doc("known limitations at these pins")]
    script: Annotated[str, Doc("shell script that is printed without `--json`")]


def command_output(run: RecipeRun, tree: TreeState | None = None) -> CommandOutput:
    """Return the command. `overrides` are for an argument list: they are not quoted for a shell."""
    entry, script = run.entry, "\n".join(command_lines(run, tree)) + "\n"
    overrides = [override_text(key, setting, run) for key, setting in run.overrides.items()]
    started = (entry.upstream, entry.folder or ".", entry.module, entry.config)
    return CommandOutput(*_named(run), *started, overrides, _paths(run), _limits(run), script)


@dataclass(frozen=True)
class RecipeEntry(EntryModule):
    """The command to start."""

    folder: Annotated[str, Doc("working directory in the upstream tree; `.` for its top")] = "."


@dataclass(frozen=True)
class RecipeValue:
    """A value and its source."""

    value: Annotated[str, Doc("computed value; `$VARIABLE` for a path that is not given")]
    written: Annotated[str, Doc("value as in the file: `= ...` is an expression, `@NAME` a path")]
    recipe: Annotated[str, Doc("recipe that sets the value, or the command line")]
    file: Annotated[str | None, Doc("file that sets the value")]
    line: Annotated[int | None, Doc("line number in the file, from 1")]
    source: Annotated[str | None, Doc("source of the value")]
    why: Annotated[str | None, Doc("purpose of the value")]
    ours: Annotated[str | None, Doc("why we chose the value, if no document gives it")]


@dataclass(frozen=True)
class BrokenRule:
    """A rule that a recipe breaks."""

    rule: Annotated[str, Doc("rule name from manifests/rules.yaml, `recipe-needs` or `known-keys`")]
    message: Annotated[str, Doc("requirement, actual value, reason and suggested action")]
    file: Annotated[str, Doc("file that sets the value")]
    line: Annotated[int | None, Doc("line number, from 1")]


@dataclass(frozen=True)
class RecipeOutput(_OfRecipe):
    """What `recipe show` prints."""

    summary: Annotated[str, Doc("one-line summary")]
    extends: Annotated[tuple[str, ...], Doc("recipes that this one inherits from, nearest first")]
    entry: Annotated[RecipeEntry, Doc("what is started")]
    needs: Annotated[tuple[str, ...], Doc("required features of the profile")]
    totals: Annotated[Totals, Doc("totals of a complete run")]
    sizes: Annotated[dict[str, RecipeValue], Doc("values by name, including `devices`")]
    environment: Annotated[dict[str, RecipeValue], Doc("values by environment variable")]
    of_each_node: Annotated[
        Mapping[str, str], Doc("variables that each node sets for itself, each with a description of the value")
    ]
    overrides: Annotated[dict[str, RecipeValue], Doc("values by key, with the `+` of a new key")]
    paths: Annotated[dict[str, RecipePath], Doc("files and folders that the user provides")]
    data: Annotated[Mapping[str, DataSet], Doc("data sets: `train` and, if used, `validation`")]
    limits: Annotated[list[str], Doc("known limitations at these pins")]
    note: Annotated[str | None, Doc("additional information")]
    broken: Annotated[list[BrokenRule], Doc("rules that the recipe breaks")]


def recipe_output(run: RecipeRun, broken: Sequence[Broken], totals: Totals) -> RecipeOutput:
    """Return the whole recipe."""
    entry = run.entry
    return RecipeOutput(
        *_named(run),
        summary=run.summary,
        extends=run.chain,
        entry=RecipeEntry(entry.module, entry.config, entry.upstream, entry.folder or ".", entry.why),
        needs=run.needs,
        totals=totals,
        sizes=_values(run.sizes, run),
        environment=_values(run.environment, run),
        of_each_node=run.of_each_node,
        overrides=_values(run.overrides, run),
        paths=_paths(run),
        data=run.data,
        limits=_limits(run),
        note=None if run.note is None else _joined(run.note),
        broken=[BrokenRule(b.rule, str(b), *b.where) for b in broken],
    )


def _paths(run: RecipeRun) -> dict[str, RecipePath]:
    return {name: RecipePath(path.what, path.variable, run.path(name)) for name, path in run.paths.items()}


def _values(settings: Mapping[str, Resolved], run: RecipeRun) -> dict[str, RecipeValue]:
    found = {}
    for name, one in settings.items():
        file, line = one.where or (None, None)
        told = (file, line, one.source, one.why, one.ours)
        found[name] = RecipeValue(literal(one, run), one.written, one.recipe, *told)
    return found


def show_text(
    run: RecipeRun,
    broken: Sequence[Broken],
    totals: Totals,
    documents: Mapping[str, str],
    style: Style,
    *,
    verbose: bool,
) -> Iterator[str]:
    """Yield what a recipe breaks, runs, needs and comes to; with `verbose` each value with its place, source and reason, and the
    documents that these cite."""
    more = "every value with its source, limits in full, paths and data"
    summary = _summary(run, broken, totals, style)
    return summarised(summary, _with_documents(_details(run, style), documents, style), verbose=verbose, more=more)


def _summary(run: RecipeRun, broken: Sequence[Broken], totals: Totals, style: Style) -> Iterator[str]:
    size = [counted(run.machines, "node"), counted(run.all_devices, "device")]
    where = [f"release {run.release}"] if run.release else []
    yield f"{style(run.title, bold=True)}  on {', '.join([*where, *size])}"
    for one in broken:
        yield f"{style.bad('broken')}  {one.where}: {visible_line(str(one))}  {style(f'[{one.rule}]', dim=True)}"
    yield f"  {visible_line(run.summary)}"
    yield f"  runs    python3 -m {run.entry.module} --config-name={run.entry.config}, in the tree of {run.entry.upstream}"
    yield f"  needs   {abridged(run.needs, _NEEDS) or 'no feature'}"
    for limit in run.limits[:_LIMITS]:
        first_sentence = re.split(r"(?<=\.) (?=[A-Z])", _joined(limit), maxsplit=1)[0]
        yield f"  {style.note('limit')}   {first_sentence}"
    if len(run.limits) > _LIMITS:
        yield f"  {style.note('limit')}   and {len(run.limits) - _LIMITS} more"
    yield f"  {_steps(totals)}"
    yield f"  {_validations(totals)}"
    yield f"  {_checkpoints(totals)}"
    if not broken:
        release = f" --release {run.release}" if run.release else ""
        yield f"next: patchctl preflight -p {run.profile} -r {run.name}{release}{visible_line(run.repeated())}"


_NEEDS, _LIMITS = 4, 2


def _with_documents(lines: Iterable[str], documents: Mapping[str, str], style: Style) -> Iterator[str]:
    shown = [*lines]
    yield from shown
    text = "\n".join(shown)
    cited = {number: title for number, title in documents.items() if re.search(rf"\b{re.escape(number)}\b", text)}
    if cited:
        yield ""
        yield style("documents", bold=True)
        yield from (f"  {visible_line(number)}  {visible_line(title)}" for number, title in cited.items())


def _details(run: RecipeRun, style: Style) -> Iterator[str]:
    if run.chain:
        yield f"extends {', which extends '.join(run.chain)}"
    if len(run.needs) > _NEEDS:
        yield f"needs   {', '.join(run.needs)}"
    for limit in run.limits:
        yield f"{style.note('limit')}   {_joined(limit)}"
    if run.note:
        yield f"note    {_joined(run.note)}"
    for title, settings in (("sizes", run.sizes), ("environment", run.environment), ("overrides", run.overrides)):
        yield ""
        yield style(title, bold=True)
        for name, setting in settings.items():
            yield from _value_text(name, setting, run, style)
    yield from _rest_text(run, style)


def _steps(totals: Totals) -> str:
    if totals.steps is None:
        return "steps: not known; --size train_rows=N says how many rows the training data has"
    filtered = ", as a step may take several batches while groups are filtered" if totals.at_most else ""
    made = f", {totals.trained:,} answers" if totals.trained is not None else ""
    return f"steps: {'at most ' if totals.at_most else ''}{totals.steps:,}{made}{filtered}"


def _validations(totals: Totals) -> str:
    if totals.validations == 0:
        return "validations: none (trainer.test_freq, trainer.val_before_train)"
    times = f"validations: {'not known how many' if totals.validations is None else f'{totals.validations:,}'}"
    if totals.validated is None:
        return f"{times}; --size validation_rows=N says how many rows that data has"
    share = f", {totals.validated / totals.trained:.0%} of those of training" if totals.trained else ""
    return f"{times}, {totals.validated:,} answers{share}"


def _checkpoints(totals: Totals) -> str:
    if totals.written == 0:
        return "checkpoints: none (trainer.save_freq)"
    each = f" of {size_text(totals.checkpoint_bytes)}" if totals.checkpoint_bytes else ""
    if totals.kept is None:
        return f"checkpoints: all{each} are kept, not known how many"
    written = "" if totals.written is None else f"{totals.written:,} written, "
    whole = f": {size_text(totals.kept_bytes)}" if totals.kept_bytes else ""
    return f"checkpoints: {written}{totals.kept:,}{each} kept{whole}"


def _value_text(name: str, setting: Resolved, run: RecipeRun, style: Style) -> Iterator[str]:
    written = f"   ({setting.written})" if setting.written.startswith("=") else ""
    yield f"  {visible_line(name)} = {visible_line(literal(setting, run))}{visible_line(written)}"
    said = [str(setting.where or setting.recipe)]
    said += [f"source: {_joined(setting.source)}"] if setting.source else []
    said += [f"ours: {_joined(setting.ours)}"] if setting.ours else []
    said += [_joined(setting.why)] if setting.why else []
    yield style(f"      {'; '.join(said)}", dim=True)


def _rest_text(run: RecipeRun, style: Style) -> Iterator[str]:
    if run.of_each_node:
        yield ""
        yield style("each node sets", bold=True)
        yield from (f"  {name}: {_joined(what)}" for name, what in run.of_each_node.items())
    yield ""
    yield style("paths", bold=True)
    for name, path in run.paths.items():
        yield f"  {name}: {_joined(path.what)} (--path {name}=..., or {path.variable}={run.path(name) or '...'})"
    yield ""
    yield style("data", bold=True)
    for part, data in run.data.items():
        note = f"; {_joined(data.note)}" if data.note else ""
        yield f"  {part}: {_joined(data.name)} (data_source {', '.join(map(visible_line, data.data_source))}){note}"


@dataclass(frozen=True)
class DiffOutput:
    """What `recipe diff` prints."""

    one: Annotated[str, Doc("PROFILE/RECIPE, with @RELEASE if the profile supports releases")]
    other: Annotated[str, Doc("as for `one`, of the second recipe")]
    differences: Annotated[
        Sequence[RecipeDifference], Doc("differences in entry, needs, data, sizes, environment and overrides")
    ]


def diff_output(one: RecipeRun, other: RecipeRun, rows: Sequence[RecipeDifference]) -> DiffOutput:
    """Return the differences, with both names."""
    return DiffOutput(one.title_on_release, other.title_on_release, rows)


def diff_text(one: RecipeRun, other: RecipeRun, rows: Sequence[RecipeDifference], style: Style) -> Iterator[str]:
    """Yield lines with - for the first recipe and + for the second."""
    yield style(f"--- {one.title_on_release}", bold=True)
    yield style(f"+++ {other.title_on_release}", bold=True)
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            yield f"@ {section}"
        if row.one is not None:
            yield style(f"- {visible_line(row.name)} = {visible_line(row.one)}", fg="red")
        if row.other is not None:
            yield style(f"+ {visible_line(row.name)} = {visible_line(row.other)}", fg="green")
    if not rows:
        yield "no difference"


def _joined(text: str) -> str:
    """Join folded manifest text into one line."""
    return visible_line(" ".join(text.split()))


def recipe_rows(dist: Distribution) -> list[RecipeRow]:
    """Every recipe that can be run. Raises InvalidManifest."""
    rows = []
    for run in every_run(dist):
        size = (run.machines, int(run.sizes[PER_NODE].value))
        named = (run.profile, run.name, run.summary)
        rows.append(RecipeRow(*named, *size, run.entry.module, run.needs, run.limits, run.release))
    return rows
