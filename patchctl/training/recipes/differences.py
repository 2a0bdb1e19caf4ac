"""Compares two recipes, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc
from patchctl.training.recipes.conditions import same
from patchctl.training.recipes.resolve import RecipeRun, Resolved, bare


@dataclass(frozen=True)
class RecipeDifference:
    """A name and its value in each recipe; None if absent."""

    section: Annotated[str, Doc("`entry`, `needs`, `data`, `sizes`, `environment` or `overrides`")]
    name: Annotated[str, Doc("key, without `+`")]
    one: Annotated[str | None, Doc("value in the first recipe; null if absent")]
    other: Annotated[str | None, Doc("value in the second recipe; null if absent")]


def differences(one: RecipeRun, other: RecipeRun) -> list[RecipeDifference]:
    """Compare entry, needs, data, sizes, environment and overrides, each in the order of the first recipe."""
    return [
        *_compared("entry", _entry(one), _entry(other)),
        *_compared("needs", dict.fromkeys(one.needs, "needed"), dict.fromkeys(other.needs, "needed")),
        *_compared("data", _data(one), _data(other)),
        *_compared("sizes", _texts(one.sizes), _texts(other.sizes)),
        *_compared("environment", _texts(one.environment), _texts(other.environment)),
        *_compared("overrides", _texts(one.overrides), _texts(other.overrides)),
    ]


def _compared(section: str, one: Mapping[str, str], other: Mapping[str, str]) -> list[RecipeDifference]:
    names = dict.fromkeys([*one, *other])
    rows = [RecipeDifference(section, name, one.get(name), other.get(name)) for name in names]
    return [row for row in rows if row.one is None or row.other is None or not same(row.one, row.other)]


def _texts(settings: Mapping[str, Resolved]) -> dict[str, str]:
    return {bare(name): setting.value for name, setting in settings.items()}


def _entry(run: RecipeRun) -> dict[str, str]:
    return {"module": run.entry.module, "config": run.entry.config, "folder": run.entry.folder or "."}


def _data(run: RecipeRun) -> dict[str, str]:
    return {part: data.name for part, data in run.data.items()}
