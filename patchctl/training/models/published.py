"""Reads manifests/models.yaml: public facts of the models that profiles train.

Like recipes it is no part of `ManifestContent`: apply, verify and revert need no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.check.series import Series, manifest_findings
from patchctl.doc import Doc
from patchctl.findings import Report
from patchctl.manifest.diagnostics import InvalidManifest, Problem, did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import read
from patchctl.manifest.types import Address, Distributed, FormatVersion, Name, Text, Value, Word
from patchctl.training.models.parameters import UnknownModel, read_model


@dataclass(frozen=True)
class PublishedModel:
    """A model, as published."""

    profiles: Annotated[list[Name], Doc("Profiles that train it.")]
    address: Annotated[Address, Doc("URL that it is published at.")]
    config: Annotated[dict[Word, Value], Doc("The keys of its config.json that determine its size.")]
    bytes: Annotated[Value, Doc("Download size of its weights, in bytes.")]
    source: Annotated[Text, Doc("Source of the figures.")]
    note: Annotated[Text | None, Doc("What a training run changes about it.")] = None
    recipes: Annotated[
        list[Name],
        Doc("The recipes of these profiles that train it; if omitted, every recipe that no other model lists."),
    ] = field(default_factory=list)


@dataclass(frozen=True)
class Models:
    """manifests/models.yaml: the figures that preflight uses when the model itself is unavailable."""

    schema: FormatVersion
    models: Annotated[dict[Distributed, PublishedModel], Doc("Models, by name.")] = field(default_factory=dict)


FILE = Path("manifests") / "models.yaml"
SCHEMAS: dict[str, type] = {"models": Models}


def read_models(dist: Distribution) -> Models:
    """The table; empty where the distribution keeps none. Raises InvalidManifest with every fault."""
    path = dist.root / FILE
    if not path.exists():
        return Models(1)
    loaded = read(path, Models)
    problems: list[Problem] = []
    for name, model in loaded.value.models.items():
        for index, profile in enumerate(model.profiles):
            if profile not in dist.variants:
                what = f"no profile {quoted(profile)}{did_you_mean(profile, dist.variants)}"
                problems.append(loaded.positions.problem(("models", name, "profiles", index), what))
        try:
            read_model(model.config)
        except UnknownModel as error:
            problems.append(loaded.positions.problem(("models", name, "config"), str(error)))
        if not model.bytes.isdigit():
            problems.append(loaded.positions.problem(("models", name, "bytes"), "expected a whole number of bytes"))
    if problems:
        raise InvalidManifest(problems)
    return loaded.value


def check_models(dist: Distribution, series: Series, report: Report) -> None:
    """Adds the faults of the table, which nothing else loads before someone asks preflight."""
    try:
        read_models(dist)
    except InvalidManifest as error:
        report.add(manifest_findings(dist.root, error).findings)


def model_of(models: Models, profile: str, recipe: str | None = None) -> tuple[str, PublishedModel] | None:
    """The model that a recipe trains, with its name; without a recipe that of the profile."""
    of_profile = [(name, model) for name, model in models.models.items() if profile in model.profiles]
    named = [found for found in of_profile if recipe in found[1].recipes]
    return next(iter(named or [found for found in of_profile if not found[1].recipes]), None)
