"""The types of manifests/models.yaml: public facts of the models that profiles train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from patchctl.doc import Doc
from patchctl.manifest.types import Address, Distributed, FormatVersion, Name, Text, Value, Word


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
