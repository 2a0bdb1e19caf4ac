"""Recipes as people and machines read them. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.progress import size_text
from patchctl.terminal.text import visible_line
from patchctl.training.recipes.differences import SettingDifference
from patchctl.training.recipes.resolve import RecipeRun, Resolved
from patchctl.training.recipes.rules import Broken
from patchctl.training.recipes.shell import command_lines, literal, override_text
from patchctl.training.recipes.totals import Totals

if TYPE_CHECKING:
    from patchctl.terminal.style import Style


def list_json(runs: Sequence[RecipeRun]) -> dict[str, Any]:
    """The shape patchctl.training.recipes.list/1 (docs/json.md)."""
    rows = [
        {
            "profile": run.profile,
            "recipe": run.name,
            "release": run.release,
            "summary": run.summary,
            "nodes": int(run.sizes["nodes"].value),
            "devices": int(run.sizes["devices"].value),
            "module": run.entry.module,
            "limits": [_joined(limit) for limit in run.limits],
        }
        for run in runs
    ]
    return {"recipes": rows}


def list_text(runs: Sequence[RecipeRun], style: Style) -> Iterator[str]:
    """A line a recipe; a mark on one that does not run to its end."""
    width = max((len(run.title) for run in runs), default=0)
    for run in runs:
        size = f"{run.sizes['nodes'].value} x {run.sizes['devices_per_node'].value}"
        on = f"  on {run.release}" if run.release else ""
        mark = f" {style.note('(has limits, see show)')}" if run.limits else ""
        yield f"{style(f'{run.title:<{width}}', bold=True)}  {size:>7}  {run.entry.module}{on}{mark}"
        yield f"{'':{width}}           {visible_line(run.summary)}"
    yield f"{len(runs)} recipes; nodes x devices"


def env_json(run: RecipeRun) -> dict[str, Any]:
    """The shape patchctl.env/1."""
    return {
        "profile": run.profile,
        "recipe": run.name,
        "release": run.release,
        "environment": {name: literal(setting, run) for name, setting in run.environment.items()},
        "of_each_node": dict(run.of_each_node),
    }


def command_json(run: RecipeRun) -> dict[str, Any]:
    """The shape patchctl.training.recipes.command/1. `overrides` are for an argument list: nothing in them is quoted for a shell."""
    return {
        "profile": run.profile,
        "recipe": run.name,
        "release": run.release,
        "upstream": run.entry.upstream,
        "folder": run.entry.folder or ".",
        "module": run.entry.module,
        "config": run.entry.config,
        "overrides": [override_text(key, setting, run) for key, setting in run.overrides.items()],
        "paths": _paths(run),
        "limits": [_joined(limit) for limit in run.limits],
        "script": "\n".join(command_lines(run)) + "\n",
    }


def show_json(run: RecipeRun, broken: Sequence[Broken], totals: Totals) -> dict[str, Any]:
    """The shape patchctl.training.recipes.show/1."""
    return {
        "profile": run.profile,
        "recipe": run.name,
        "release": run.release,
        "summary": run.summary,
        "extends": list(run.chain),
        "entry": asdict(run.entry) | {"folder": run.entry.folder or "."},
        "needs": list(run.needs),
        "totals": asdict(totals) | {"kept_bytes": totals.kept_bytes},
        "sizes": _values(run.sizes, run),
        "environment": _values(run.environment, run),
        "of_each_node": dict(run.of_each_node),
        "overrides": _values(run.overrides, run),
        "paths": _paths(run),
        "data": {part: asdict(data) for part, data in run.data.items()},
        "limits": [_joined(limit) for limit in run.limits],
        "note": None if run.note is None else _joined(run.note),
        "broken": [{"rule": b.rule, "message": str(b), "file": b.where.file, "line": b.where.line} for b in broken],
    }


def _paths(run: RecipeRun) -> dict[str, Any]:
    return {
        name: {"what": path.what, "variable": path.variable, "path": run.path(name)} for name, path in run.paths.items()
    }


def _values(settings: Mapping[str, Resolved], run: RecipeRun) -> dict[str, Any]:
    return {
        name: {
            "value": literal(setting, run),
            "written": setting.written,
            "recipe": setting.recipe,
            "file": setting.where.file if setting.where else None,
            "line": setting.where.line if setting.where else None,
            "source": setting.source,
            "why": setting.why,
            "ours": setting.ours,
        }
        for name, setting in settings.items()
    }


def show_text(run: RecipeRun, broken: Sequence[Broken], totals: Totals, style: Style) -> Iterator[str]:
    """All of it: a line for the value, and below it where it stands, who gives it and why."""
    yield style(run.title, bold=True)
    yield f"  {visible_line(run.summary)}"
    if run.chain:
        yield f"  extends {', which extends '.join(run.chain)}"
    if run.release:
        yield f"  on      release {run.release}"
    yield f"  runs    python3 -m {run.entry.module} --config-name={run.entry.config}, in the tree of {run.entry.upstream}"
    yield f"  needs   {', '.join(run.needs) or 'no feature'}"
    for limit in run.limits:
        yield f"  {style.note('limit')}   {_joined(limit)}"
    if run.note:
        yield f"  note    {_joined(run.note)}"
    yield from _totals_text(totals, style)
    for title, settings in (("sizes", run.sizes), ("environment", run.environment), ("overrides", run.overrides)):
        yield ""
        yield style(title, bold=True)
        for name, setting in settings.items():
            yield from _value_text(name, setting, run, style)
    yield from _rest_text(run, style)
    yield from _broken_text(broken, style)


def _totals_text(totals: Totals, style: Style) -> Iterator[str]:
    yield ""
    yield style("comes to", bold=True)
    if totals.steps is None:
        yield "  steps: not known; --size train_rows=N says how many rows the training data has"
    else:
        filtered = ", as a step may take several batches while groups are filtered" if totals.at_most else ""
        made = f", {totals.trained:,} answers" if totals.trained is not None else ""
        yield f"  steps: {'at most ' if totals.at_most else ''}{totals.steps:,}{made}{filtered}"
    yield f"  {_validations(totals)}"
    yield f"  {_checkpoints(totals)}"


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
    place = f"{setting.where}" if setting.where else setting.recipe
    said = [place]
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


def _broken_text(broken: Sequence[Broken], style: Style) -> Iterator[str]:
    if broken:
        yield ""
    for one in broken:
        yield f"{style.bad('broken')}  {one.where}: {visible_line(str(one))}  {style(f'[{one.rule}]', dim=True)}"


def _on(run: RecipeRun) -> str:
    return f"{run.title}@{run.release}" if run.release else run.title


def diff_json(one: RecipeRun, other: RecipeRun, rows: Sequence[SettingDifference]) -> dict[str, Any]:
    """The shape patchctl.training.recipes.diff/1."""
    return {"one": _on(one), "other": _on(other), "differences": [asdict(row) for row in rows]}


def diff_text(one: RecipeRun, other: RecipeRun, rows: Sequence[SettingDifference], style: Style) -> Iterator[str]:
    """- what the first has, + what the second has."""
    yield style(f"--- {_on(one)}", bold=True)
    yield style(f"+++ {_on(other)}", bold=True)
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
    """A folded text of a manifest on one line."""
    return visible_line(" ".join(text.split()))
